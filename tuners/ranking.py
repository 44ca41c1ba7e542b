"""Tuners with a fixed order per query: those of the product's strategies, and the baselines of
evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import Measurement
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, StaticBest, by_score, default_candidate
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.rankers.search import SearchRanker
from embeddb.ranking.recommendation import Candidate

__all__ = ["RankedTuner", "by_score", "default_candidate"]

#: Most configurations drawn at random.
_MOST_DRAWN = 256


class RankedTuner:
    """Proposes each candidate of `rank` once, in its order, whatever the measurements."""

    def __init__(self, query: Query, *, rng: np.random.Generator) -> None:
        self.query = query
        self.rng = rng
        self.measured: dict[Config, Measurement] = {}
        self._ranked = self.rank()

    def rank(self) -> Iterator[Candidate]:
        """Generate the candidates, best first."""
        raise TypeError(f"{type(self).__name__} does not rank")

    def ask(self, count: int) -> list[Candidate]:
        fresh = (c for c in self._ranked if Config(c.config) not in self.measured)
        return list(islice(fresh, count))

    def tell(self, config: Config, measurement: Measurement) -> None:
        self.measured[config] = measurement


def tuner_of(strategy: Callable[[Query], Ranker]) -> type[RankedTuner]:
    """Make a tuner class of a strategy."""

    class StrategyTuner(RankedTuner):
        def rank(self) -> Iterator[Candidate]:
            return strategy(self.query).candidates()

    return StrategyTuner


TransferTuner = tuner_of(NeighbourVote)
RankTuner = tuner_of(CostModelRanker)
SearchTuner = tuner_of(SearchRanker)
TransferRankTuner = tuner_of(JointRanker)
StaticBestTuner = tuner_of(StaticBest)


class DefaultTuner(RankedTuner):
    """Proposes the platform's default, and nothing after it."""

    def rank(self) -> Iterator[Candidate]:
        yield default_candidate(self.query)


class RandomTuner(RankedTuner):
    """Draws distinct legal configurations uniformly, from those with evidence, or from the space if
    there are none."""

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
            has_gain = vote.knows_default and math.isfinite(vote.mean[at])
            yield Candidate(
                config=dict(vote.configs[at]),
                score=float(place),
                origin="fixed set that serves most patterns",
                expected_gain=math.exp(vote.mean[at]) if has_gain else None,
            )
