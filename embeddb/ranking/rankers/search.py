"""Spaces too large to be predicted whole: random configurations, then steps from the best ones.

A search spends predictions, which cost microseconds, never runs. Its results ran nowhere, so they
are not the first answer: a model predicts too much of what it likes best in a space that it knows
little of. Behind one that ran they are worth measuring (docs/explanation/cost-model.md, "Large
spaces").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, between
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.order import order_to_try
from embeddb.ranking.recommendation import Candidate

#: Predictions of one search, and how many of them are of random configurations.
_BUDGET, _POOL = 4096, 1024
#: Steps are taken from so many of the best.
_BEST = 16


class SearchRanker(CostModelRanker):
    """The best predicted that ran somewhere, then what a search found; where everything is
    predicted already, as `rank`. The search is made when a second candidate is asked for."""

    name = "search"

    def __init__(self, query: Query, *, rng: np.random.Generator) -> None:
        super().__init__(query)
        self._rng = rng

    def again(self, query: Query) -> Ranker:
        """Without the walk: by what is predicted already."""
        return CostModelRanker(query)

    def candidates(self) -> Iterator[Candidate]:
        query = self.query
        ranked = super().candidates()
        if query.prediction.predict is None or predicted_whole(query):
            yield from ranked
            return
        known = next(ranked)
        yield known
        seen = Predicted(query, _BUDGET)
        seen.of(query.prediction.configs)
        search(seen, rng=self._rng)
        configs = [c for c in seen.best() if c != Config(known.config)]
        gain = np.array([seen.gain[c] for c in configs])
        spread = np.array([seen.spread[c] for c in configs])
        for at in order_to_try(configs, gain, spread):
            yield self._candidate(seen, configs[at], known.score)

    def _candidate(self, seen: Predicted, config: Config, first: float) -> Candidate:
        """However much is promised of it, its score is not below that of the `first`."""
        query, gain = self.query, seen.gain[config]
        is_default = config == query.default
        low, high = between(query, gain, 0.0 if is_default else seen.over_default(config))
        return Candidate(
            config=dict(config),
            score=max(-gain, first),
            origin="cost model" if config in self._known else "cost model, searched",
            expected_gain=math.exp(gain) if query.vote.knows_default else None,
            gain_low=low,
            gain_high=high,
        )

    @cached_property
    def _known(self) -> frozenset[Config]:
        return frozenset(self.query.prediction.configs)


def predicted_whole(query: Query) -> bool:
    """Whether every legal configuration is among those predicted."""
    size = query.space.size()
    return size is not None and size <= len(query.prediction.configs)


class Predicted:
    """Predictions made so far, at most `budget` of them; a repeated one is free. `gain` over the
    default and `spread` (its own standard deviation) by configuration."""

    def __init__(self, query: Query, budget: int) -> None:
        assert query.prediction.predict is not None
        self.query, self.budget = query, budget
        self.gain: dict[Config, float] = {}
        self.spread: dict[Config, float] = {}
        self._predict = query.prediction.predict
        self._default_spread = float(query.prediction.predict([query.default])[1][0])

    @property
    def count(self) -> int:
        return len(self.gain)

    def of(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """float64[c] predicted log gains over the default; -inf beyond the budget."""
        new = [c for c in dict.fromkeys(configs) if c not in self.gain]
        new = new[: max(self.budget - self.count, 0)]
        if new:
            gain, spread = self._predict(new)
            self.gain.update(zip(new, gain.tolist(), strict=True))
            self.spread.update(zip(new, spread.tolist(), strict=True))
        return np.array([self.gain.get(c, -math.inf) for c in configs])

    def over_default(self, config: Config) -> float:
        """Standard deviation of the gain over the default, as `rank` has it."""
        return math.hypot(self.spread[config], self._default_spread)

    def best(self) -> list[Config]:
        """Everything predicted, best first; ties in the order in which it was asked for."""
        return sorted(self.gain, key=lambda c: -self.gain[c])


def search(seen: Predicted, *, rng: np.random.Generator) -> None:
    """Predict configurations drawn at random, then those that differ in one value from the best
    ones, until a round finds no better one or the budget is spent."""
    space = seen.query.space
    seen.of(space.sample(_POOL, rng=rng))
    stepped: set[Config] = set()
    while seen.count < seen.budget:
        best = [config for config in seen.best()[:_BEST] if config not in stepped]
        stepped.update(best)
        steps = [step for config in best for step in one_value_apart(space, config)]
        before = seen.count
        seen.of(steps)
        if seen.count == before:
            return


def one_value_apart(space: ConfigSpace, config: Config) -> Iterator[Config]:
    """Legal configurations that differ in the value of one parameter, or in one swap of two
    neighbours in an order."""
    for param in space.params:
        value = config.get(param.name)
        others: Sequence[Any] = [v for v in param.values if v != value]
        if isinstance(value, tuple):
            swaps = range(len(value) - 1)
            others = [(*value[:i], value[i + 1], value[i], *value[i + 2 :]) for i in swaps]
        if value is not None:
            changed = (Config({**config, param.name: other}) for other in others)
            yield from (one for one in changed if space.reason(one) is None)
