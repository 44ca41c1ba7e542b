"""The neighbours' vote and the cost model's prediction, joined.

Both are log gains, centred over the configurations that both cover; the model counts with the
query's `weight`. Configurations that no neighbour ran are scored by the model alone, and those that
are not well tried either less the vote's doubt times the vote's weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.wording import plural
from embeddb.ranking.posterior import Posterior, with_spread
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Floats, Ranker
from embeddb.ranking.rankers.cost_model import over_default
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote, doubt_of_unrun
from embeddb.ranking.recommendation import Candidate


class JointRanker(Ranker):
    """Ranks by vote and model; by the vote alone without a model. `vote` is the query's, if it was
    computed already.

    `configs` are those of the vote, then the others that are predicted. `spread` float64[u] is the
    model's standard deviation of the gain over the default, times `Prediction.joint_width`,
    `own_spread` that of its own prediction (nan: not predicted), `voters` int64[u] the number of
    neighbours that ran each.
    """

    name, source = "transfer-rank", "neighbours"
    by_model = True
    configs: tuple[Config, ...] = ()
    score: Floats = np.zeros(0)
    voters: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    spread: Floats = np.zeros(0)

    def __init__(self, query: Query, vote: NeighbourVote | None = None) -> None:
        super().__init__(query)
        self._vote = vote or NeighbourVote(query)
        self.configs = tuple(dict.fromkeys([*query.vote.configs, *query.prediction.configs]))
        count, voted = len(self.configs), len(query.vote.configs)
        self.voters = np.zeros(count, dtype=np.int64)
        votes, predicted, self.spread, self.own_spread = np.full((4, count), np.nan)
        votes[:voted], self.voters[:voted] = self._vote.score, self._vote.voters
        place = {config: at for at, config in enumerate(self.configs)}
        there = [place[config] for config in query.prediction.configs]
        predicted[there], self.spread[there] = over_default(query)
        self.spread *= query.prediction.joint_width
        self.own_spread[there] = query.prediction.spread
        common = np.isfinite(votes) & np.isfinite(predicted)
        if common.any():
            votes -= votes[common].mean()
            predicted -= predicted[common].mean()
        weight = query.prediction.weight
        score = (1.0 - weight) * votes + weight * predicted
        alone = np.isfinite(predicted) & (self.voters == 0)
        tried = query.vote.well_tried or ()
        doubted = np.array([config not in tried for config in self.configs], dtype=np.bool_)
        doubt = (1.0 - weight) * doubt_of_unrun(query) * doubted
        score[alone] = predicted[alone] - doubt[alone]
        self.score = np.where(np.isfinite(score), score, votes)

    def candidates(self) -> Iterator[Candidate]:
        if not self.query.prediction.configs:
            yield from self._vote.candidates()
        else:
            yield from self._as_a_set(self.own_spread, guard_of(self.query))

    def _origin(self, voters: int) -> str:
        return f"{plural(voters, 'neighbour')}, cost model" if voters else "cost model"

    def posterior(self, answer: Config) -> Posterior:
        spread = self.query.prediction.joint_width * self.own_spread
        return with_spread(self.query, self.configs, self.score, spread, answer)


def guard_of(query: Query) -> float:
    """Log gain by the joined score above which an answer replaces the default: from held-out
    answers, else the model's own guard times its weight."""
    guard = query.prediction.joint_guard
    return query.prediction.weight * query.prediction.guard if guard is None else guard
