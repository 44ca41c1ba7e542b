"""What tells most of a machine: which matrices, and which configurations on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.pooling import Source, correlation_of
from embeddb.index.view import View, view_of, without
from embeddb.index.vote import Metric, plain_metric
from embeddb.platforms.platform import Platform
from indexer.campaign.plan import choose_configs

__all__ = ["Chooser", "panel_of"]

Floats = NDArray[np.float64]

#: Matrices looked at ahead of those chosen: each costs reading and features.
_POOL = 16
#: A configuration that is slower than the best on average by more than this log gain is not worth
#: asking every machine about.
_PLAUSIBLE = 0.7
#: Of a space nobody has measured, so many configurations are drawn; of another, so many are put in
#: order.
_DRAWN = 64
#: What machines may differ in any configuration, beside what they were seen to, in log gain; and
#: the variance of a measured difference.
_LEAST_SPREAD, _NOISE = 0.05, 0.01


class Chooser:
    """Matrices, those first that show most of what there is: farthest-first traversal (Gonzalez
    1985) in the coordinates in which neighbours are looked for, from the middle outwards.

    `vector_of` gives raw features float32[d] of a pattern. What nothing measured is like counts
    more among a user's own matrices, for these will be asked about, and less among others
    (`familiar`), for without neighbours they tell nothing about other machines.
    """

    def __init__(
        self,
        matrices: Iterator[Pattern],
        vector_of: Callable[[Pattern], NDArray[np.float32]],
        partition: AnswerIndex | None,
        *,
        done: Sequence[str] = (),
        familiar: bool = False,
    ) -> None:
        self._matrices, self._vector_of, self._partition = matrices, vector_of, partition
        self._familiar = familiar
        self._pool: list[tuple[Pattern, NDArray[np.float32]]] = []
        self._chosen: list[NDArray[np.float32]] = []
        if partition is not None:
            place = {pattern_id: at for at, pattern_id in enumerate(partition.ids)}
            self._chosen = [partition.vectors[place[i]] for i in done if i in place]

    def take(self, count: int) -> list[Pattern]:
        """At most `count` more, the first the most telling; none where no matrix is left."""
        while len(self._pool) < _POOL and (pattern := next(self._matrices, None)) is not None:
            self._pool.append((pattern, self._vector_of(pattern)))
        if not self._pool:
            return []
        raw = np.array([v for _, v in self._pool] + self._chosen, dtype=np.float32)
        metric = plain_metric(raw) if self._partition is None else self._partition.metric
        taken = _farthest_first(_coordinates(metric, raw), len(self._pool), count, self._worth(raw))
        found = [self._pool[at] for at in taken]
        self._pool = [one for at, one in enumerate(self._pool) if at not in set(taken)]
        self._chosen += [vector for _, vector in found]
        return [pattern for pattern, _ in found]

    def _worth(self, raw: NDArray[np.float32]) -> Floats:
        """float64[p] in 0.5..1.5 by how new each of the pool is."""
        partition, count = self._partition, len(self._pool)
        if partition is None:
            return np.ones(count)
        found = [partition.nearest(vector, count=1)[1] for vector in raw[:count]]
        new = np.array([partition.percentile(float(d[0])) if d.size else 1.0 for d in found])
        new = np.where(np.isfinite(new), new, 0.5)
        worth: Floats = 1.5 - new if self._familiar else 0.5 + new
        return worth


def _coordinates(metric: Metric, raw: NDArray[np.float32]) -> Floats:
    return metric.apply(raw).astype(np.float64)


def _farthest_first(at: Floats, pool: int, count: int, worth: Floats) -> list[int]:
    """Positions below `pool` in `at` float64[p,d], whose later rows are taken already."""
    far = np.sqrt(((at[:pool, None] - at[None]) ** 2).sum(axis=2))
    taken: list[int] = []
    gap = far[:, pool:].min(axis=1, initial=np.inf)
    while len(taken) < min(count, pool):
        score = gap * worth if np.isfinite(gap).any() else -far[:, :pool].mean(axis=1) / worth
        score[taken] = -np.inf
        taken.append(int(np.argmax(score)))
        gap = np.minimum(gap, far[:, taken[-1]])
    return taken


def panel_of(partition: AnswerIndex | None, here: Platform, op: Op) -> list[Config]:
    """Configurations for every matrix, those first that tell most: in turn one from which most is
    learned of what machines differ in, and the next of a fixed set that serves most patterns. What
    this machine has measured has no say: a second call goes on where the first one stopped."""
    rest = None
    if partition is not None:
        rest = without(partition.ground, here.id)
    if partition is None or rest is None or not rest.layers:
        space = here.space(op)
        return choose_configs(space, here.default(op), _DRAWN, rng=np.random.default_rng(0))
    view = view_of(rest, Source(here.id, op), partition.policy, partition.left_out)
    known = np.isfinite(view.gains).any(axis=0)
    prior = np.where(known, view.averages.prior, -np.inf)
    plausible = prior >= prior.max() - _PLAUSIBLE
    cover = [int(at) for at in view.averages.cover if plausible[at]][:_DRAWN]
    worth = (_between_machines(view) + _LEAST_SPREAD) * np.exp(prior - prior.max())
    spread = np.where(plausible, worth, 0.0)
    telling = _most_telling(correlation_of(rest.configs) * np.outer(spread, spread), _DRAWN)
    order = [at for pair in zip_longest(telling, cover) for at in pair if at is not None]
    return [rest.configs[at] for at in dict.fromkeys(order)]


def _most_telling(covariance: Floats, count: int) -> list[int]:
    """Positions, each of which lessens most of the variance that is left in all: active learning by
    Cohn's criterion (1996) under a Gaussian process with that covariance float64[c,c]."""
    left, found = covariance.copy(), list[int]()
    while len(found) < count:
        var = np.diag(left)
        lessened = (left**2).sum(axis=0) / (var + _NOISE)
        lessened[found] = 0.0
        if lessened.max() <= 1e-12:
            break
        at = int(np.argmax(lessened))
        found.append(at)
        left -= np.outer(left[:, at], left[at]) / (var[at] + _NOISE)
    return found


def _between_machines(view: View) -> Floats:
    """float64[c] standard deviation of what machines gain by each; with one machine, of what
    patterns do, beyond their own level."""
    if len(view.effects) > 1:
        spread: Floats = view.effects.std(axis=0)
        return spread
    off = view.gains - view.averages.level[:, None] - view.averages.prior
    ran = np.isfinite(off)
    square = np.where(ran, off**2, 0.0).sum(axis=0)
    varying: Floats = np.sqrt(square / np.maximum(ran.sum(axis=0), 1))
    return varying
