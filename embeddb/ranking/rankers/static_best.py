"""One good schedule for all: configurations by their mean gain over the platform's patterns."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, over_default_of
from embeddb.ranking.rankers.base import Floats, Ranker, by_score
from embeddb.ranking.recommendation import Candidate

__all__ = ["StaticBest"]


class StaticBest(Ranker):
    """First the configuration with the highest mean gain over all measured patterns."""

    name, source = "static-best", "static-best"
    by_vote = False

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.query.vote.configs

    @property
    def score(self) -> Floats:
        return self.query.vote.mean

    def candidates(self) -> Iterator[Candidate]:
        mean = self.query.vote.mean
        for at in by_score(-mean):
            yield Candidate(
                config=dict(self.query.vote.configs[at]),
                score=-float(mean[at]),
                origin="best on average over the platform's patterns",
                expected_gain=math.exp(mean[at]) if self.query.vote.knows_default else None,
            )

    def posterior(self, answer: Config) -> Posterior:
        unknown = np.full(len(self.configs), np.nan)
        return over_default_of(self.query, self.configs, self.score, unknown)
