"""The order in which to try configurations: not the best k one by one, but the k of which the best
is expected to be best, with ties settled by a fixed rule and likely failures last.

Configurations that are nearly the same fail together: five of them are one try. So after the first
each next one is chosen by what it adds to the best of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.small_matrices import cholesky, product
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import LIKELY, Candidate

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
    draws = gain[near] + own * product(_noise(len(near)), alike)
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
    query: Query,
    configs: Sequence[Config],
    order: NDArray[np.int64],
    gain: Floats,
    *,
    unrun_first: bool = False,
) -> NDArray[np.int64]:
    """The order, but before everything the best by gain float64[c] of the default and those that
    are well tried (where none are known to be: of those that ran anywhere), unless it has been
    shown that one which never ran may be first. Of the rest a ranking knows least, and the best of
    hundreds of predictions is mostly the largest error."""
    vote = query.vote
    allowed = {query.default, *vote.well_tried} if vote.well_tried else set(vote.configs)
    if unrun_first or not len(order) or configs[order[0]] in allowed:
        return order
    first = max((at for at in order.tolist() if configs[at] in allowed), key=gain.item, default=-1)
    if first < 0:
        return order
    return np.concatenate([[first], order[order != first]])


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
    return cholesky(correlation + 1e-6 * np.eye(len(configs)))


#: Log gains that differ by less are rounding, and ties. Within the noise of a measurement the first
#: five would be worse off on some machines: first answers on Zen 3 lost 0.2 (SpMM) and 0.5 points
#: (SpMV) of the optimum.
_EQUAL = 1e-9


def settled(
    query: Query,
    configs: Sequence[Config],
    order: Sequence[int] | NDArray[np.int64],
    gain: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The order int64[u] with those that gain as much as the best (log gains float64[c]) before
    all others: first what is cheaper to prepare, then what differs less from the default, then by
    canonical JSON."""
    places = np.asarray(order, dtype=np.int64)
    if len(places) < 2:
        return places
    equal = gain[places] >= gain[places].max() - _EQUAL
    near = places[equal].tolist()
    if len(near) == 1:
        return np.concatenate([places[equal], places[~equal]])
    cost = (
        query.vote.preparation.of([configs[at] for at in near]) if query.vote.preparation else None
    )
    price = dict(zip(near, [0.0] * len(near) if cost is None else cost.tolist(), strict=True))
    default = set(query.default.items())
    near.sort(key=lambda at: (price[at], len(default ^ set(configs[at].items())), configs[at].json))
    return np.concatenate([np.array(near, dtype=np.int64), places[~equal]])


def chances(query: Query, configs: Sequence[Config]) -> Floats:
    """Chance float64[u] that each fails: the part of the neighbours' runs of it that failed,
    weighted as their votes, with what all measured patterns tell of it as one more neighbour. 0
    where nothing ever failed."""
    vote = query.vote
    if not vote.failures.rate:
        return np.zeros(len(configs))
    found = np.array([vote.failures.chance(config) for config in configs])
    if not (vote.failing.size and len(vote.weights)):
        return found
    place = {config: at for at, config in enumerate(vote.configs)}
    told = [(at, place[config]) for at, config in enumerate(configs) if config in place]
    if told:
        mine, theirs = np.array(told).T
        ran = np.isfinite(vote.gains[:, theirs])
        one = float(vote.weights.mean())
        failed = vote.weights @ np.where(ran, vote.failing[:, theirs], 0.0)
        found[mine] = (failed + one * found[mine]) / (vote.weights @ ran + one)
    return found


def likely_last(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in their order, but those that rather fail than not behind all others. Their
    votes count failures already; to take the chance off every gain as well made answers worse
    (benchmarks/results/failures_held.json)."""
    found = chances(query, [Config(candidate.config) for candidate in candidates])
    doubted = found >= LIKELY
    if not doubted.any() or doubted.all():
        return list(candidates)
    first = [c for c, behind in zip(candidates, doubted, strict=True) if not behind]
    # What is put behind has no better score than that before it.
    worst = max(candidate.score for candidate in first)
    last = [c for c, behind in zip(candidates, doubted, strict=True) if behind]
    return first + [msgspec.structs.replace(c, score=max(c.score, worst)) for c in last]


def with_failures(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their chances of failing, where any configuration ever failed and they
    did not run on the very pattern."""
    if not query.vote.failures.rate:
        return list(candidates)
    configs = [Config(candidate.config) for candidate in candidates]
    told = []
    for one, config, chance in zip(candidates, configs, chances(query, configs), strict=True):
        failed, tried = query.vote.failures.counts.get(config, (0, 0))
        known = config in query.own.timings
        told.append(
            msgspec.structs.replace(
                one,
                failure=None if known else float(chance),
                failed_on=failed,
                tried_on=tried,
            )
        )
    return told
