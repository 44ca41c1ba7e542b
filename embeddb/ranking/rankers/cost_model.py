"""Ranking by the cost model alone, which also covers configurations that no neighbour ran.

Predicted gains are relative to the prediction for the default, so that errors about the matrix as a
whole cancel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, with_spread
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Floats, Ranker, default_candidate
from embeddb.ranking.rankers.order import position
from embeddb.ranking.recommendation import Candidate


class CostModelRanker(Ranker):
    """Ranks by predicted gain; yields the default alone without a model."""

    name, source = "rank", "model"
    by_vote, by_model = False, True

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.query.prediction.configs

    @property
    def score(self) -> Floats:
        return self._predicted[0]

    @property
    def spread(self) -> Floats:
        return self._predicted[1]

    @cached_property
    def _predicted(self) -> tuple[Floats, Floats]:
        return over_default(self.query)

    @property
    def held_out(self) -> float:
        """The expected share where it is known: that of the best sample is too high."""
        expected = self.query.prediction.expected
        return super().held_out if math.isnan(expected) else expected

    def candidates(self) -> Iterator[Candidate]:
        if not self.configs:
            yield default_candidate(self.query)
        elif self.query.prediction.plain:  # the papers' models rank by the prediction alone
            yield from self._by_gain()
        else:
            yield from self._as_a_set(self.query.prediction.spread, self.query.prediction.guard)

    def _by_gain(self) -> Iterator[Candidate]:
        """Candidates by their own predictions, without regard to those before them."""
        unknown = np.full(len(self.configs), math.nan)
        return self._as_a_set(unknown, self.query.prediction.guard)

    def posterior(self, answer: Config) -> Posterior:
        return with_spread(
            self.query, self.configs, self.score, self.query.prediction.spread, answer
        )


def over_default(query: Query) -> tuple[Floats, Floats]:
    """Predicted log gains float64[p] over the default's prediction, and the standard deviations
    float64[p] of these differences, as if errors of two configurations were independent, which
    overestimates them."""
    gain, spread = query.prediction.gain, query.prediction.spread
    at = position(query.prediction.configs, query.default)
    return (gain, spread) if at < 0 else (gain - gain[at], np.hypot(spread, spread[at]))
