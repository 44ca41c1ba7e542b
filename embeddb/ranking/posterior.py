"""The posterior of every ranked configuration: mean and spread of its log gain.

From the same evidence as the answer, over all configurations at once, so that answers can be
compared and the value of a measurement estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.timing import TimingSummary
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import codes_of, error_correlation

Floats = NDArray[np.float64]

#: Fewest configurations measured on the pattern for an estimate of the ranking's errors.
_FEWEST_SHARED = 3


@dataclass(frozen=True, eq=False)
class Posterior:
    """`configs` u configurations; `mean` float64[u] log gain over the default (-inf: it fails);
    `spread` float64[u] its standard deviation, `apart` float64[u] that of the difference to the
    answer (nan: unknown). `better` float64[u] is the mean of max(log gain over the answer, 0) and
    `chance` float64[u] its probability to be positive, where neighbours provide both (else nan):
    their gains are mostly small with a few large ones, not normal. `measured` bool[u] marks those
    measured on the very pattern at the queried width. Without `over_default` the default's time is
    unknown, and only differences are meaningful.
    """

    configs: tuple[Config, ...]
    mean: Floats
    spread: Floats
    apart: Floats
    better: Floats
    chance: Floats
    measured: NDArray[np.bool_]
    over_default: bool

    def place(self, config: Config) -> int | None:
        return self._places.get(config)

    @cached_property
    def _places(self) -> dict[Config, int]:
        return {config: at for at, config in enumerate(self.configs)}


def over_default_of(
    query: Query, configs: tuple[Config, ...], score: Floats, spread: Floats
) -> Posterior:
    """Posterior with means relative to the default's score, where it has one."""
    at = configs.index(query.default) if query.default in configs else None
    mean = score - (score[at] if at is not None else 0.0)
    measured = np.zeros(len(configs), dtype=np.bool_)
    unknown = np.full(len(configs), np.nan)
    return Posterior(
        configs, mean, spread, spread, unknown, unknown, measured, query.vote.knows_default
    )


def with_spread(
    query: Query, configs: tuple[Config, ...], score: Floats, spread: Floats, answer: Config
) -> Posterior:
    """Posterior with a spread for every configuration. Errors over the default count as
    independent, as in the predicted intervals, which overestimates them; errors of similar
    configurations correlate, or close variants of the answer would seem worth a measurement."""
    posterior = over_default_of(query, configs, score, spread)
    at, default = posterior.place(answer), posterior.place(query.default)
    apart = spread
    if at is not None:
        shared = error_correlation(codes_of(configs), at) * spread * spread[at]
        apart = np.sqrt(np.maximum(spread**2 + spread[at] ** 2 - 2.0 * shared, 0.0))
    over = np.hypot(spread, spread[default]) if default is not None else spread
    return replace(posterior, spread=over, apart=apart)


def anchored(
    posterior: Posterior, query: Query, curves: Mapping[Config, TimingSummary], *, exact: bool
) -> Posterior:
    """The posterior with measurements in their place; the rest is shifted and scattered by the
    ranking's errors on the measured ones. `exact`: measured at the queried width."""
    base = curves.get(query.default)
    over_default = base is not None and math.isfinite(base.seconds)
    # As in the answer, the preparation is shared out over the calls.
    costs = {c: curve.seconds + curve.conversion_s / query.calls for c, curve in curves.items()}
    zero = math.log(costs[query.default]) if over_default else 0.0
    stored = query.space.canonical
    own = {stored(c): zero - math.log(cost) for c, cost in costs.items()}
    seen = set(posterior.configs)
    configs = (*posterior.configs, *(c for c in own if c not in seen))
    extra = len(configs) - len(posterior.configs)
    gain = np.array([own.get(c, math.nan) for c in configs])
    mean = np.concatenate([posterior.mean, np.full(extra, np.nan)])
    shared = np.isfinite(gain) & np.isfinite(mean)
    off = gain[shared] - mean[shared]
    shift = float(np.median(off)) if off.size else 0.0
    tail = np.full(extra, np.nan)
    spread, apart = np.append(posterior.spread, tail), np.append(posterior.apart, tail)
    if off.size >= _FEWEST_SHARED:
        # One of them went into the shift.
        scatter = math.sqrt(float(((off - shift) ** 2).sum()) / (off.size - 1))
        spread = apart = np.full(len(configs), scatter)
    measured = ~np.isnan(gain)
    still = np.where(measured, 0.0, spread) if exact else spread
    unknown = np.full(len(configs), np.nan)
    return Posterior(
        configs,
        np.where(measured, gain, mean + shift),
        still,
        np.where(measured, 0.0, apart) if exact else apart,
        unknown,
        unknown,
        measured if exact else np.zeros_like(measured),
        over_default,
    )
