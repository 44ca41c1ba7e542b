"""Tuners whose order is fixed when the query arrives: those of the product's strategies, and the
baselines that they are judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import Measurement
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, by_score, default_candidate
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.rankers.search import SearchRanker
from embeddb.ranking.rankers.static_best import StaticBest
from embeddb.ranking.recommendation import Candidate

__all__ = ["RankedTuner", "by_score", "default_candidate"]

#: At most so many configurations are drawn at random.
_MOST_DRAWN = 256


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


def tuner_of(
    strategy: Callable[[Query, np.random.Generator], Ranker],
) -> type[RankedTuner]:
    """Return a tuner that asks in the order of a strategy."""

    class StrategyTuner(RankedTuner):
        def rank(self) -> Iterator[Candidate]:
            return strategy(self.query, self.rng).candidates()

    return StrategyTuner


TransferTuner = tuner_of(lambda query, rng: NeighbourVote(query))
RankTuner = tuner_of(lambda query, rng: CostModelRanker(query))
SearchTuner = tuner_of(lambda query, rng: SearchRanker(query, rng=rng))
TransferRankTuner = tuner_of(lambda query, rng: JointRanker(query))
StaticBestTuner = tuner_of(lambda query, rng: StaticBest(query))


class DefaultTuner(RankedTuner):
    """Proposes the platform's default, and nothing after it."""

    def rank(self) -> Iterator[Candidate]:
        yield default_candidate(self.query)


class RandomTuner(RankedTuner):
    """Draws distinct legal configurations uniformly, from those that evidence exists for, or from
    the space without any."""

    def rank(self) -> Iterator[Candidate]:
        pool = list(self.query.vote.configs)
        if pool:
            drawn = [pool[i] for i in self.rng.permutation(len(pool))[:_MOST_DRAWN]]
        else:
            drawn = self.query.space.sample(_MOST_DRAWN, rng=self.rng)
        for at, config in enumerate(drawn):
            yield Candidate(config=dict(config), score=float(at), origin="random draw")


class StaticTopKTuner(RankedTuner):
    """Proposes the small fixed set that together serves most patterns (a greedy cover): each next
    configuration adds most to the mean of the best gain so far."""

    def rank(self) -> Iterator[Candidate]:
        vote = self.query.vote
        for place, at in enumerate(vote.cover):
            known = vote.knows_default and math.isfinite(vote.mean[at])
            yield Candidate(
                config=dict(vote.configs[at]),
                score=float(place),
                origin="fixed set that serves most patterns",
                expected_gain=math.exp(vote.mean[at]) if known else None,
            )
