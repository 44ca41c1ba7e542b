"""The choice of the ranker: the best by the held-out figures of each."""

from __future__ import annotations

import math
from functools import cached_property

from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, StaticBest
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.rankers.search import SearchRanker, predicted_whole

#: With fewer neighbours than this the vote is left to the platform's average.
FEWEST_NEIGHBOURS = 3


def ranker_of(query: Query) -> type[Ranker]:
    """Return the vote, the cost model or both joined: the best by the held-out share of the optimum
    at 1, on ties at 5 (with a guard that lets only the default be first, all tie at 1), then the
    simplest. A model of every machine is joined with the vote: with local runs, either alone is
    worse (docs/results/machines.md)."""
    near = len(query.vote.neighbours) >= FEWEST_NEIGHBOURS and bool(query.vote.configs)
    at_1, at_5 = query.prediction.judged, query.prediction.judged_5
    able: list[type[Ranker]] = [NeighbourVote] if near else []
    # Where no run has a preparation, the vote counts none either.
    counted = query.vote.preparation is not None or bool(query.vote.configs)
    if query.prediction.configs and (math.isinf(query.calls) or counted):
        if near and query.prediction.joins:
            return JointRanker
        # Cards judge an infinite number of calls. For few, the model alone was up to 2.4 points
        # worse than the vote, joined with it at most 0.1 (benchmarks/results/calls_cpu.json).
        alone = not near or math.isinf(query.calls) or JointRanker.card_name() not in at_1
        able += [one for one in [CostModelRanker] * alone if one.card_name() in at_1]
        able += [one for one in [JointRanker] * near if one.card_name() in at_1]

    def judged(ranker: type[Ranker]) -> tuple[float, float]:
        card = ranker.card_name()
        return at_1.get(card, -math.inf), at_5.get(card, -math.inf)

    return max(able, key=judged, default=NeighbourVote)


class Rankers:
    """The rankers of one query, each created on first use."""

    def __init__(self, query: Query) -> None:
        self.query = query

    @cached_property
    def vote(self) -> NeighbourVote:
        return NeighbourVote(self.query)

    @cached_property
    def model(self) -> CostModelRanker:
        return CostModelRanker(self.query)

    @cached_property
    def static_best(self) -> StaticBest:
        return StaticBest(self.query)

    @cached_property
    def chosen(self) -> Ranker:
        """The ranker of the answer. In a space too large to be predicted whole, a search replaces
        the cost model alone, if the model can predict any configuration."""
        best = ranker_of(self.query)
        if best is NeighbourVote:
            return self.vote
        if best is JointRanker:
            return JointRanker(self.query, self.vote)
        if self.query.prediction.predict is None or predicted_whole(self.query):
            return self.model
        return SearchRanker(self.query)
