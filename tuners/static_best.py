"""The baseline of one good schedule for all: configurations by their mean gain."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.rankers.static_best import StaticBest
from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "StaticBestTuner"]


class StaticBestTuner(RankedTuner):
    """Asks in the order of `StaticBest`."""

    def rank(self) -> Iterator[Candidate]:
        return StaticBest(self.query).candidates()


PLUGIN = StaticBestTuner
