"""The neighbours' vote and the cost model's prediction, joined.

Both are log gains; each is centred over the configurations that both speak of and the model counts
with the query's `weight`. What no neighbour ran is judged by the model alone, and doubted as
`transfer` doubts it, so far as the neighbours count at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, with_spread
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Floats, Ranker, between
from embeddb.ranking.rankers.cost_model import over_default
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote, doubt_of_unrun
from embeddb.ranking.rankers.order import behind_default, order_to_try, ran_first, settled
from embeddb.ranking.recommendation import Candidate


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """u configurations, those with votes first; `score` float64[u] is a log gain up to a constant
    (higher is faster), `spread` float64[u] the model's standard deviation over the default's
    and `own_spread` that of its own (nan: not predicted),
    `voters` int64[u] how many neighbours ran each."""

    configs: tuple[Config, ...]
    score: Floats
    spread: Floats
    own_spread: Floats
    voters: NDArray[np.int64]


class JointRanker(Ranker):
    """Ranks by both; by the vote alone where there is no model. `vote` is the question's, where it
    was counted already."""

    name, source = "transfer-rank", "neighbours"
    by_model = True

    def __init__(self, query: Query, vote: NeighbourVote | None = None) -> None:
        super().__init__(query)
        self._vote = vote or NeighbourVote(query)

    @property
    def configs(self) -> tuple[Config, ...]:
        return self._both.configs

    @property
    def score(self) -> Floats:
        return self._both.score

    @cached_property
    def _both(self) -> Joined:
        return joined(self.query, self._vote)

    def candidates(self) -> Iterator[Candidate]:
        query = self.query
        if not query.prediction.configs:
            yield from self._vote.candidates()
            return
        both = self._both
        default = [at for at, config in enumerate(both.configs) if config == query.default]
        base = float(both.score[default[0]]) if default else 0.0
        order = order_to_try(both.configs, both.score, both.own_spread)
        order = settled(query, both.configs, order, both.score)
        place = default[0] if default and math.isfinite(base) else -1
        unrun_first = query.prediction.unrun_first
        order = ran_first(query, both.configs, order, both.score, unrun_first=unrun_first)
        order = behind_default(order, both.score, place, guard_of(query))
        for at in order:
            # A promise that was not believed is no better score than that before it.
            most = float(both.score[order[0]]) - base
            yield self._candidate(int(at), base, most)

    def _candidate(self, at: int, base: float, most: float) -> Candidate:
        query, both = self.query, self._both
        voters, gain = int(both.voters[at]), float(both.score[at]) - base
        spread = 0.0 if both.configs[at] == query.default else float(both.spread[at])
        low, high = between(query, gain, query.prediction.joint_width * spread)
        return Candidate(
            config=dict(both.configs[at]),
            score=-min(gain, most),
            origin=f"{voters} neighbours, cost model" if voters else "cost model",
            expected_gain=math.exp(gain) if query.vote.knows_default else None,
            gain_low=low,
            gain_high=high,
            voters=voters,
        )

    def posterior(self, answer: Config) -> Posterior:
        both = self._both
        spread = self.query.prediction.joint_width * both.own_spread
        return with_spread(self.query, both.configs, both.score, spread, answer)


def guard_of(query: Query) -> float:
    """What the first must promise over the default by the joined score, a log gain: what held-out
    answers have shown of that, else of the model's own guard the share with which it counts. The
    vote has a guard of its own."""
    known = query.prediction.joint_guard
    return query.prediction.weight * query.prediction.guard if known is None else known


def joined(query: Query, vote_of: NeighbourVote | None = None) -> Joined:
    """Vote and prediction over all configurations that either speaks of. With a `weight` of 1
    the order is the prediction's. `vote_of`: the question's vote, where it was counted already."""
    counted = vote_of or NeighbourVote(query)
    configs = tuple(dict.fromkeys([*query.vote.configs, *query.prediction.configs]))
    place = {config: at for at, config in enumerate(configs)}
    vote, predicted, spread, own_spread = np.full((4, len(configs)), np.nan)
    voters = np.zeros(len(configs), dtype=np.int64)
    vote[: len(query.vote.configs)], voters[: len(query.vote.configs)] = (
        counted.score,
        counted.voters,
    )
    there = [place[config] for config in query.prediction.configs]
    predicted[there], spread[there] = over_default(query)
    own_spread[there] = query.prediction.spread
    common = np.isfinite(vote) & np.isfinite(predicted)
    if common.any():
        vote -= vote[common].mean()
        predicted -= predicted[common].mean()
    weight = query.prediction.weight
    score = (1.0 - weight) * vote + weight * predicted
    alone = np.isfinite(predicted) & (voters == 0)
    score[alone] = predicted[alone] - (1.0 - weight) * doubt_of_unrun(query)
    return Joined(configs, np.where(np.isfinite(score), score, vote), spread, own_spread, voters)
