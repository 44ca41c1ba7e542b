"""Spaces too large to be predicted whole: a walk that the cost model guides, then annealing.

`graph_search` is WACO's: a neighbourhood graph is built over vectors of configurations, without
the model, and descended with the predicted time in place of the distance. It jumps far, but only
among the drawn pool. `anneal` moves in the space itself, one parameter at a time, and so reaches
what the pool does not hold. Both spend predictions, which cost microseconds, never runs.

What a search found ran nowhere, so it is never the first answer: of what a model likes best in a
space that it knows little of it promises too much. Behind one that ran it is worth measuring
(docs/explanation/cost-model.md, "Large spaces").
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, between
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.order import order_to_try
from embeddb.ranking.recommendation import Candidate

#: Predictions of one search: half for the graph, half for annealing. Twice as many find no more.
_BUDGET = 2048
#: Configurations that the graph is over; a smaller space is in it whole.
_POOL = 4096
#: The walk ends when this many best nodes have been expanded, as the `ef` of HNSW.
_WIDTH = 64
#: Chains annealed at once, so that a prediction is for a batch.
_CHAINS = 16
#: Log gain that a chain gives up with a chance of 1/e, at first and at last.
_HOT, _COLD = 0.1, 0.005
_STARTS = 16
#: Rounds without a new configuration after which annealing ends.
_STALE = 32


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
        graph_search(seen, rng=self._rng, most=_BUDGET // 2)
        anneal(seen, rng=self._rng)
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


def graph_search(seen: Predicted, *, rng: np.random.Generator, most: int) -> None:
    """Walk the graph over a pool, always on from the best node that is left, until that is worse
    than 64 which were expanded, or `most` predictions are made in total.

    WACO's search: HNSW over schedules, the predicted time as the distance to descend.
    """
    pool, links = _graph(seen.query, [*seen.best()[:_STARTS]], rng)
    starts = [*range(min(_STARTS, len(pool))), *rng.permutation(len(pool))[:_STARTS].tolist()]
    waiting: list[tuple[float, int]] = []
    visited: set[int] = set()
    expanded: list[float] = []
    fresh = list(dict.fromkeys(starts))
    while fresh or waiting:
        fresh = fresh[: max(min(most, seen.budget) - seen.count, 0)]
        visited.update(fresh)
        for at, gain in zip(fresh, seen.of([pool[i] for i in fresh]), strict=True):
            heapq.heappush(waiting, (-float(gain), at))
        if not waiting or seen.count >= most:
            return
        cost, node = heapq.heappop(waiting)
        # Costs of the best _WIDTH expanded, the worst of them on top (negated).
        if len(expanded) == _WIDTH and cost > -expanded[0]:
            return
        heapq.heappush(expanded, -cost)
        if len(expanded) > _WIDTH:
            heapq.heappop(expanded)
        fresh = [int(i) for i in links[node] if i >= 0 and int(i) not in visited]


def _graph(
    query: Query, known: Sequence[Config], rng: np.random.Generator
) -> tuple[list[Config], NDArray[np.int64]]:
    """A pool of configurations, the known ones first, and its links int64[r,32]."""
    from embeddb.cost_model.encoders.loop_nest import homogeneous
    from embeddb.cost_model.encoders.nearest import config_vectors
    from embeddb.cost_model.encoders.own_parameters import Layout
    from embeddb.index.vectors.graph import links

    info, platform, op = query.pattern, query.platform, query.op
    pool = list(dict.fromkeys([*known, *_drawn(query.space, rng)]))
    nests = homogeneous(platform, op, pool, sizes=info.sizes)
    own = Layout(platform.kernel(op)).raw(pool)
    return pool, links(config_vectors(nests, own))


def _drawn(space: ConfigSpace, rng: np.random.Generator) -> list[Config]:
    size = space.size()
    return [*space.enumerate()] if size and size <= _POOL else space.sample(_POOL, rng=rng)


def anneal(seen: Predicted, *, rng: np.random.Generator) -> None:
    """Simulated annealing until the budget is spent, half of the chains from the best known and
    half from anywhere: they step to random neighbours, and to what is worse ever less often as
    they cool. It also ends where the chains find nothing new any more."""
    space = seen.query.space
    known = seen.best()[: _CHAINS // 2] or [seen.query.default]
    chains = [*known, *space.sample(_CHAINS - len(known), rng=rng)]
    gains = seen.of(chains)
    near: dict[Config, list[Config]] = {}
    first, stale = seen.count, 0
    while seen.count < seen.budget and stale < _STALE:
        heat = _HOT * (_COLD / _HOT) ** ((seen.count - first) / (seen.budget - first))
        steps = []
        for config in chains:
            if config not in near:
                near[config] = space.neighbours(config) or [config]
            steps.append(near[config][int(rng.integers(len(near[config])))])
        before = seen.count
        after = seen.of(steps)
        stale = 0 if seen.count > before else stale + 1
        chance = np.exp(np.minimum((after - gains) / heat, 0.0))
        moved = rng.random(len(chains)) < chance
        chains = [s if go else c for c, s, go in zip(chains, steps, moved, strict=True)]
        gains = np.where(moved, after, gains)
