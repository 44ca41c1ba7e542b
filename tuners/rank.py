"""The cost model alone: configurations in the order in which to try them by its predictions."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "RankTuner"]


class RankTuner(RankedTuner):
    """Asks in the order of `CostModelRanker`."""

    def rank(self) -> Iterator[Candidate]:
        return CostModelRanker(self.query).candidates()


PLUGIN = RankTuner
