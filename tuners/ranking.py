"""From scores over the query's configurations to candidates: shared by the ranking tuners."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import Measurement
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import by_score, default_candidate
from embeddb.ranking.recommendation import Candidate

__all__ = ["RankedTuner", "by_score", "default_candidate"]


class RankedTuner:
    """Asks in the order of a score that is fixed when the query arrives.

    A subclass yields its candidates from `rank`, best first; each is proposed once.
    """

    def __init__(self, query: Query, *, rng: np.random.Generator) -> None:
        self.query = query
        self.rng = rng
        self.told: dict[Config, Measurement] = {}
        self._ranked = self.rank()

    def rank(self) -> Iterator[Candidate]:
        """Candidates worth proposing, best first; made as they are asked for."""
        raise TypeError(f"{type(self).__name__} does not rank")

    def ask(self, count: int) -> list[Candidate]:
        fresh = (c for c in self._ranked if Config(c.config) not in self.told)
        return list(islice(fresh, count))

    def tell(self, config: Config, measurement: Measurement) -> None:
        self.told[config] = measurement
