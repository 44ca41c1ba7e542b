"""The order in which to try configurations: the first few as a set with the best expected maximum,
ties settled by a fixed rule, likely failures last.

Errors on similar configurations correlate, so five variants of one schedule are hardly more than
one try. After the first, each is chosen by its expected improvement over those before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.run_matrix import coded
from embeddb.ranking.query import Correlate, Query
from embeddb.ranking.recommendation import LIKELY, Candidate

Floats = NDArray[np.float64]

#: Number of configurations chosen as a set; the others follow by their own prediction.
MOST_CHOSEN = 5
#: Number of the best predictions that the set is chosen from.
LOOKED_AT = 192
#: Errors on two configurations correlate by exp(-share of differing parameters / this), unless the
#: cost model knows better.
REACH = 0.4
_DRAWS = 384
#: Keeps correlations positive definite in floating point.
_JITTER = 1e-6


def order_to_try(
    configs: Sequence[Config], gain: Floats, spread: Floats, correlate: Correlate | None = None
) -> NDArray[np.int64]:
    """Positions of all configurations with a finite gain, in the order to try them.

    `gain` float64[c] are predicted log gains (higher is faster), `spread` float64[c] their standard
    deviations (nan: the median of the others). The first is the best predicted; the next four
    maximise, one after the other, the expected gain of the best so far, over draws of gains whose
    errors correlate as `correlate` says, else between similar configurations; the rest follow by
    `gain`. Without any spread all do. The draws are the same every time.
    """
    order = np.argsort(-gain, kind="stable")
    order = order[np.isfinite(gain[order])]
    near = order[:LOOKED_AT]
    finite_spread = spread[near][np.isfinite(spread[near])]
    if len(near) <= 2 or not finite_spread.size or not finite_spread.max() > 0:
        return order
    own = np.where(np.isfinite(spread[near]), spread[near], np.median(finite_spread))
    draws = gain[near] + own * _correlated([configs[i] for i in near], correlate)
    chosen = [0]
    best = draws[:, 0].copy()
    while len(chosen) < min(MOST_CHOSEN, len(near)):
        with_it = np.maximum(draws, best[:, None]).mean(axis=0)
        with_it[chosen] = -np.inf
        chosen.append(int(with_it.argmax()))
        best = np.maximum(best, draws[:, chosen[-1]])
    first = near[chosen]
    return np.concatenate([first, order[~np.isin(order, first)]])


def _correlated(configs: Sequence[Config], correlate: Correlate | None) -> Floats:
    """Draws float64[draws,c] from a standard normal distribution of correlated errors."""
    if correlate is not None:
        # The tensors of a model file may be any numbers.
        with suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
            return _draws(correlate(configs))
    codes = codes_of(tuple(configs))
    return _draws(np.array([error_correlation(codes, at) for at in range(len(configs))]))


def _draws(correlation: Floats) -> Floats:
    """Draws float64[draws,c] for correlations float64[c,c]. Raises: numpy.linalg.LinAlgError if
    these are not finite or not positive definite."""
    count = len(correlation)
    draws: Floats = _noise(count) @ np.linalg.cholesky(correlation + _JITTER * np.eye(count)).T
    if not np.isfinite(draws).all():
        raise np.linalg.LinAlgError("correlations that are not finite")
    return draws


def behind_default(
    order: NDArray[np.int64], gain: Floats, default: int, guard: float
) -> NDArray[np.int64]:
    """The order with the platform's default (a position; -1: it is not there) first, unless the
    first is predicted to gain more than `guard` (log) over it."""
    if default < 0 or not len(order) or gain[order[0]] - gain[default] > guard:
        return order
    return _moved_first(order, default)


def _moved_first(order: NDArray[np.int64], at: int) -> NDArray[np.int64]:
    return np.concatenate([[at], order[order != at]])


def ran_first(
    query: Query,
    configs: Sequence[Config],
    order: NDArray[np.int64],
    gain: Floats,
    *,
    unrun_first: bool = False,
) -> NDArray[np.int64]:
    """The order with the best, by gain float64[c], of the default and the well tried (else of those
    that ran anywhere) first, unless `unrun_first`: judgements have shown that a configuration that
    never ran may be first. The largest of hundreds of predictions mostly has the largest error."""
    vote = query.vote
    if not vote.well_tried and configs is vote.configs:
        return order  # all of them ran
    allowed = {query.default, *vote.well_tried} if vote.well_tried else set(vote.configs)
    if unrun_first or not len(order) or configs[order[0]] in allowed:
        return order
    first = max((at for at in order.tolist() if configs[at] in allowed), key=gain.item, default=-1)
    return order if first < 0 else _moved_first(order, first)


@lru_cache(maxsize=8)
def _noise(count: int) -> Floats:
    return np.random.default_rng(0).standard_normal((_DRAWS, count))


@lru_cache(maxsize=8)
def codes_of(configs: tuple[Config, ...]) -> NDArray[np.int64]:
    """The `coded` parameters int64[c,p] of configurations, read only: answers for one matrix after
    the other rank the same ones."""
    codes = coded(configs)
    codes.flags.writeable = False
    return codes


def error_correlation(codes: NDArray[np.int64], at: int) -> Floats:
    """Correlation float64[c] of a cost model's errors on `coded` configurations with those on one
    of them, by the share of parameters in which they differ."""
    differ = (codes != codes[at]).sum(axis=1)
    return np.asarray(np.exp(-differ / max(codes.shape[1], 1) / REACH))


#: Log gains that differ by less are ties. A tolerance of the measurement noise made answers worse:
#: first answers on Zen 3 lost 0.2 (SpMM) and 0.5 points (SpMV) of the optimum.
_EQUAL = 1e-9


def settled(
    query: Query,
    configs: Sequence[Config],
    order: Sequence[int] | NDArray[np.int64],
    gain: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The order int64[u] with those that gain as much as the best (log gains float64[c]) first,
    among them the cheapest to prepare, then those closest to the default, then by canonical
    JSON."""
    places = np.asarray(order, dtype=np.int64)
    if not len(places):
        return places
    equal = gain[places] >= gain[places].max() - _EQUAL
    near = places[equal].tolist()
    preparation = query.vote.preparation
    costs = (
        preparation.of([configs[at] for at in near]).tolist() if preparation else [0.0] * len(near)
    )
    price = dict(zip(near, costs, strict=True))
    default = set(query.default.items())
    near.sort(key=lambda at: (price[at], len(default ^ set(configs[at].items())), configs[at].json))
    return np.concatenate([np.array(near, dtype=np.int64), places[~equal]])


def position(configs: Sequence[Config], config: Config) -> int:
    """The index of a configuration, or -1."""
    text = config.json  # `tuple.index` takes six times as long: it calls `Config.__eq__`
    return next((at for at, one in enumerate(configs) if one.json == text), -1)


def chances(query: Query, configs: Sequence[Config]) -> Floats:
    """Chance float64[u] that each fails: the share of its failed runs on this very pattern if any
    did, else on the neighbours, weighted as their votes, with the share on all measured patterns as
    one more neighbour. 0 where nothing ever failed."""
    chance = _voted_chances(query, configs)
    if failing := query.failing:
        chance[:] = [failing.get(c, one) for c, one in zip(configs, chance.tolist(), strict=True)]
    return chance


def _voted_chances(query: Query, configs: Sequence[Config]) -> Floats:
    """Chance float64[u] that each fails, by its runs on other patterns."""
    vote = query.vote
    if not vote.failures.rate:
        return np.zeros(len(configs))
    chance = np.array([vote.failures.chance(config) for config in configs])
    if not (vote.failing.size and len(vote.weights)):
        return chance
    place = {config: at for at, config in enumerate(vote.configs)}
    pairs = [(at, place[config]) for at, config in enumerate(configs) if config in place]
    if pairs:
        mine, theirs = np.array(pairs).T
        ran = np.isfinite(vote.gains[:, theirs])
        one = float(vote.weights.mean())
        failed = vote.weights @ np.where(ran, vote.failing[:, theirs], 0.0)
        chance[mine] = (failed + one * chance[mine]) / (vote.weights @ ran + one)
    return chance


def likely_last(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in their order, but those with a failure chance of `LIKELY` or more last. The
    votes count failures already; reducing every gain by its chance too made answers worse
    (benchmarks/results/failures_held.json)."""
    chance = chances(query, [Config(candidate.config) for candidate in candidates])
    doubted = chance >= LIKELY
    first = [c for c, behind in zip(candidates, doubted, strict=True) if not behind]
    # Scores follow the order.
    worst = max((candidate.score for candidate in first), default=-math.inf)
    last = [c for c, behind in zip(candidates, doubted, strict=True) if behind]
    return first + [msgspec.structs.replace(c, score=max(c.score, worst)) for c in last]


def with_failures(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their failure chances, unless nothing ever failed, or they never did on
    this very pattern, where they ran."""
    failing, rate = query.failing, query.vote.failures.rate
    if not rate and not failing:
        return list(candidates)
    configs = [Config(candidate.config) for candidate in candidates]
    updated = []
    for one, config, chance in zip(candidates, configs, chances(query, configs), strict=True):
        failed, tried = query.vote.failures.counts.get(config, (0, 0))
        unknown = config not in failing and (config in query.own.timings or not rate)
        updated.append(
            msgspec.structs.replace(
                one,
                failure=None if unknown else float(chance),
                failed_on=failed,
                tried_on=tried,
            )
        )
    return updated
