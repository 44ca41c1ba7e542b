"""Which few to try: not the best k one by one, but the k of which the best is expected to be best.

Configurations that are nearly the same fail together: five of them are one try. So after the first
each next one is chosen by what it adds to the best of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config

__all__ = ["MOST_CHOSEN", "REACH", "behind_default", "order_to_try", "ran_first"]

Floats = NDArray[np.float64]

#: So many are chosen as a set; those after them follow by their own prediction.
MOST_CHOSEN = 5
#: Only so many of the best predicted are looked at: what is behind them adds nothing.
_LOOKED_AT = 192
#: Errors on two configurations correlate by exp(-share of parameters that differ / this).
REACH = 0.4
_DRAWS = 384


def order_to_try(configs: Sequence[Config], gain: Floats, spread: Floats) -> NDArray[np.int64]:
    """Positions of all configurations with a finite gain, in the order to try them.

    `gain` float64[c] are predicted log gains (higher is faster), `spread` float64[c] their standard
    deviations (nan: as the others' median). The first is the best predicted; the next four
    maximise, one after the other, the expected gain of the best so far, over draws of gains whose
    errors correlate between similar configurations; the rest follow by `gain`. Where nothing is
    known of the spread, all do. The draws are the same every time.
    """
    order = np.argsort(-gain, kind="stable")
    order = order[np.isfinite(gain[order])]
    near = order[:_LOOKED_AT]
    known = spread[near][np.isfinite(spread[near])]
    if len(near) <= 2 or not known.size or not known.max() > 0:
        return order
    own = np.where(np.isfinite(spread[near]), spread[near], np.median(known))
    alike = _alike(tuple(configs[i] for i in near))
    draws = gain[near] + own * (_noise(len(near)) @ alike.T)
    chosen = [0]
    best = draws[:, 0].copy()
    while len(chosen) < min(MOST_CHOSEN, len(near)):
        with_it = np.maximum(draws, best[:, None]).mean(axis=0)
        with_it[chosen] = -np.inf
        chosen.append(int(with_it.argmax()))
        best = np.maximum(best, draws[:, chosen[-1]])
    first = near[chosen]
    return np.concatenate([first, order[~np.isin(order, first)]])


def behind_default(
    order: NDArray[np.int64], gain: Floats, default: int, guard: float
) -> NDArray[np.int64]:
    """The order with the platform's default (a position; -1: it is not there) before everything,
    unless the first promises more than `guard` (log gain) over it."""
    if default < 0 or not len(order) or gain[order[0]] - gain[default] > guard:
        return order
    return np.concatenate([[default], order[order != default]]).astype(np.int64)


def ran_first(
    order: NDArray[np.int64], ran: NDArray[np.bool_], *, unrun_first: bool
) -> NDArray[np.int64]:
    """The order with the first of those that ran anywhere (bool[c]) before everything, unless it
    has been shown that one which never ran may be first. Of what nobody ran a model knows least,
    and the best of hundreds of such predictions is mostly its largest error."""
    known = order[ran[order]]
    if unrun_first or not len(known) or ran[order[0]]:
        return order
    return np.concatenate([known[:1], order[order != known[0]]]).astype(np.int64)


@lru_cache(maxsize=8)
def _noise(count: int) -> Floats:
    return np.random.default_rng(0).standard_normal((_DRAWS, count))


def _alike(configs: tuple[Config, ...]) -> Floats:
    """Cholesky factor float64[c,c] of the correlation of their errors."""
    names = sorted({name for config in configs for name in config})
    codes = np.empty((len(configs), len(names)), dtype=np.int64)
    for at, name in enumerate(names):
        values: dict[object, int] = {}
        for row, config in enumerate(configs):
            codes[row, at] = values.setdefault(config.get(name), len(values))
    differ = np.zeros((len(configs), len(configs)))
    for column in codes.T:
        differ += column[:, None] != column[None, :]
    correlation = np.exp(-differ / max(len(names), 1) / REACH)
    return np.asarray(np.linalg.cholesky(correlation + 1e-6 * np.eye(len(configs))), np.float64)
