"""The cost model alone: every configuration in the order in which to try them by its predictions.

The model sees what no neighbour ran. What it promises is told relative to what it promises of the
default, so that its own errors about the matrix as a whole cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, with_spread
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Floats, Ranker, between, default_candidate
from embeddb.ranking.rankers.order import behind_default, order_to_try, ran_first, settled
from embeddb.ranking.recommendation import Candidate


class CostModelRanker(Ranker):
    """Ranks by prediction; the default alone where there is no model."""

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
        """float64[u] standard deviations of the gains over the default."""
        return self._predicted[1]

    @cached_property
    def _predicted(self) -> tuple[Floats, Floats]:
        return over_default(self.query)

    def candidates(self) -> Iterator[Candidate]:
        query, gain = self.query, self.score
        if not self.configs:
            yield default_candidate(query)
            return
        # The papers' models answer with the best predicted: without spreads that is the order.
        spread = query.prediction.spread * (math.nan if query.prediction.plain else 1.0)
        order = order_to_try(self.configs, gain, spread)
        order = settled(query, self.configs, order, gain)
        unrun_first = query.prediction.unrun_first
        order = ran_first(query, self.configs, order, gain, unrun_first=unrun_first)
        order = behind_default(order, gain, _place(query), query.prediction.guard)
        for at in order:
            is_default = self.configs[at] == query.default
            low, high = between(query, gain[at], 0.0 if is_default else self.spread[at])
            yield Candidate(
                config=dict(self.configs[at]),
                # A promise that was not believed is no better score than that before it.
                score=-float(min(gain[at], gain[order[0]])),
                origin="cost model",
                expected_gain=math.exp(gain[at]) if query.vote.knows_default else None,
                gain_low=low,
                gain_high=high,
            )

    def posterior(self, answer: Config) -> Posterior:
        return with_spread(
            self.query, self.configs, self.score, self.query.prediction.spread, answer
        )


def _place(query: Query) -> int:
    """Where the default is among what is predicted, or -1."""
    try:
        return query.prediction.configs.index(query.default)
    except ValueError:
        return -1


def over_default(query: Query) -> tuple[Floats, Floats]:
    """Predicted log gains float64[p] over the default's own prediction, and the standard deviations
    float64[p] of these differences, as if errors on two configurations were independent: that is
    on the wide side."""
    gain, spread = query.prediction.gain, query.prediction.spread
    for at, config in enumerate(query.prediction.configs):
        if config == query.default:
            return gain - gain[at], np.hypot(spread, spread[at])
    return gain, spread
