"""Spaces too large to be predicted whole: a walk that the cost model guides, then annealing."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.rankers.search import SearchRanker
from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "SearchTuner"]


class SearchTuner(RankedTuner):
    """Asks in the order of `SearchRanker`."""

    def rank(self) -> Iterator[Candidate]:
        return SearchRanker(self.query, rng=self.rng).candidates()


PLUGIN = SearchTuner
