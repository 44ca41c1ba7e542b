"""The neighbours' vote and the cost model's prediction, joined."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "TransferRankTuner"]


class TransferRankTuner(RankedTuner):
    """Asks in the order of `JointRanker`."""

    def rank(self) -> Iterator[Candidate]:
        return JointRanker(self.query).candidates()


PLUGIN = TransferRankTuner
