"""Search of the cost model in spaces too large to be predicted whole: random configurations, then
steps from the best ones.

A search spends predictions, which take microseconds, never runs. Its results never ran, so none is
the first answer: the largest predictions in a little known space are too optimistic. Ranked after
one that ran they are worth measuring (docs/explanation/cost-model.md, "Large spaces").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.platforms.space.rules import Param
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, between
from embeddb.ranking.rankers.cost_model import CostModelRanker, over_default
from embeddb.ranking.rankers.order import LOOKED_AT, order_to_try
from embeddb.ranking.recommendation import Candidate

#: Predictions of one search, and how many of them are of random configurations.
_BUDGET, POOL = 4096, 1024
#: Steps are taken from so many of the best.
_BEST = 16


class SearchRanker(CostModelRanker):
    """The best prediction that ran somewhere, then the results of a search, which runs when a
    second candidate is requested. Same as `rank` where everything is predicted already."""

    name = "search"

    def again(self, query: Query) -> Ranker:
        """The ranker by the existing predictions, without a search."""
        return CostModelRanker(query)

    def candidates(self) -> Iterator[Candidate]:
        query = self.query
        if query.prediction.predict is None or predicted_whole(query):
            yield from super().candidates()
            return
        first = next(self._by_gain())
        yield first
        best = Config(first.config)
        seen = Predicted(query, _BUDGET)
        seen.start()
        search(seen, drawn(query.space))
        configs = [config for config in seen.best() if config != best]
        gain = np.array([seen.gain[c] for c in configs])
        spread = seen.spreads(configs)
        predicted = frozenset(query.prediction.configs)
        for at in order_to_try(configs, gain, spread, query.prediction.correlate):
            config, own = configs[at], float(gain[at])
            apart = 0.0 if config == query.default else seen.over_default(spread[at])
            low, high = between(query, own, apart)
            yield Candidate(
                config=dict(config),
                score=max(-own, first.score),
                origin="cost model" if config in predicted else "cost model, searched",
                expected_gain=math.exp(own) if query.vote.knows_default else None,
                gain_low=low,
                gain_high=high,
            )


def predicted_whole(query: Query) -> bool:
    """True if every legal configuration is predicted."""
    return query.space.size(len(query.prediction.configs)) is not None


class Predicted:
    """Predictions of a search, at most `budget`; a repeated one is free. `gain` over the default
    by configuration; spreads, which take a process longer, only of the best in the end."""

    def __init__(self, query: Query, budget: int) -> None:
        assert query.prediction.predict is not None
        self.query, self.budget = query, budget
        self.gain: dict[Config, float] = {}
        self._predict, self._gains = query.prediction.predict, query.prediction.gains
        self._default_spread = float(query.prediction.predict([query.default])[1][0])

    @property
    def count(self) -> int:
        return len(self.gain)

    def start(self) -> None:
        """Take the predictions that the query has; without one of the default they are not over it
        and made again."""
        own = self.query.prediction.configs
        if self.query.default in own:
            gain, _ = over_default(self.query)
            self.gain.update(zip(own, gain.tolist(), strict=True))
        else:
            self.of(own)

    def of(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Predicted log gains float64[c] over the default; -inf beyond the budget."""
        new = [c for c in dict.fromkeys(configs) if c not in self.gain]
        new = new[: max(self.budget - self.count, 0)]
        if new:
            gain = self._gains(new) if self._gains is not None else self._predict(new)[0]
            self.gain.update(zip(new, gain.tolist(), strict=True))
        return np.array([self.gain.get(c, -math.inf) for c in configs])

    def spreads(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Standard deviations float64[c] of the gains of configurations, best first: of those that
        a set is chosen from, and the largest of these for the others."""
        own = self._predict(configs[:LOOKED_AT])[1]
        most = own[np.isfinite(own)].max(initial=0.0)
        return np.concatenate([own, np.full(max(len(configs) - len(own), 0), most)])

    def over_default(self, spread: float) -> float:
        """Standard deviation of a gain over the default, as `rank` has it."""
        return math.hypot(spread, self._default_spread)

    def best(self) -> list[Config]:
        """All predicted configurations, best first; ties in the order of prediction."""
        return sorted(self.gain, key=lambda c: -self.gain[c])


@lru_cache(maxsize=16)
def drawn(space: ConfigSpace) -> tuple[Config, ...]:
    """`POOL` configurations drawn at random, the same for every question about a space."""
    return tuple(space.sample(POOL, rng=np.random.default_rng(0)))


def search(seen: Predicted, start: Sequence[Config]) -> None:
    """Predict the configurations of a `start`, drawn at random, then those that differ in one value
    from the best ones, until a round finds no better one or the budget is spent."""
    space = seen.query.space
    seen.of(start)
    stepped: set[Config] = set()
    while seen.count < seen.budget:
        best = [config for config in seen.best()[:_BEST] if config not in stepped]
        stepped.update(best)
        steps = [step for config in best for step in one_value_apart(space, config)]
        before = seen.count
        seen.of(steps)
        if seen.count == before:
            return


@lru_cache(maxsize=512)
def one_value_apart(space: ConfigSpace, config: Config) -> tuple[Config, ...]:
    """Legal configurations that differ in the value of one parameter, or in one swap of two
    neighbours in an order; cached, since the best on similar matrices are the same."""
    steps = ((param.name, step) for param in space.params for step in _steps(param, config))
    return tuple(step for name, step in steps if space.reason_of_step(step, name) is None)


def _steps(param: Param, config: Config) -> Iterator[Config]:
    value = config.get(param.name)
    others: Sequence[Any] = [v for v in param.values if v != value]
    if isinstance(value, tuple):
        swaps = range(len(value) - 1)
        others = [(*value[:i], value[i + 1], value[i], *value[i + 2 :]) for i in swaps]
    if value is not None:
        yield from (config.replace(**{param.name: other}) for other in others)
