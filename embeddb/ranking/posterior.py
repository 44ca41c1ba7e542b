"""What is believed of every ranked configuration: its mean log gain and how sure that is.

The same evidence that gave the answer, over all configurations at once, so that answers can be
compared and the value of measuring one can be told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.timing import TimingSummary
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import REACH

Floats = NDArray[np.float64]

#: With fewer configurations measured on the pattern, what ranks cannot be checked against them.
_FEWEST_SHARED = 3


@dataclass(frozen=True, eq=False)
class Posterior:
    """`configs` u configurations; `mean` float64[u] log gain over the default (-inf: known to
    fail); `spread` float64[u] its standard deviation, `apart` float64[u] that of the difference to
    the answer (nan: not known). `better` float64[u] is by how much it beats the answer on average,
    a worse one counting as 0, and `chance` float64[u] how often, where neighbours tell that without
    mean and spread (else nan): few of them gain much and most nothing, which is not normal. `known`
    bool[u] says which were measured on the very pattern at the asked width. `over_default` is false
    where the default's own time is not known: then only differences mean anything.
    """

    configs: tuple[Config, ...]
    mean: Floats
    spread: Floats
    apart: Floats
    better: Floats
    chance: Floats
    known: NDArray[np.bool_]
    over_default: bool

    def place(self, config: Config) -> int | None:
        return self._places.get(config)

    @cached_property
    def _places(self) -> dict[Config, int]:
        return {config: at for at, config in enumerate(self.configs)}


def over_default_of(
    query: Query, configs: tuple[Config, ...], score: Floats, spread: Floats
) -> Posterior:
    """Scores told relative to the default's own, where it has one."""
    at = configs.index(query.default) if query.default in configs else None
    mean = score - (score[at] if at is not None else 0.0)
    known = np.zeros(len(configs), dtype=np.bool_)
    unknown = np.full(len(configs), np.nan)
    return Posterior(
        configs, mean, spread, spread, unknown, unknown, known, query.vote.knows_default
    )


def with_spread(
    query: Query, configs: tuple[Config, ...], score: Floats, spread: Floats, answer: Config
) -> Posterior:
    """Errors over the default count as independent, as in the predicted intervals: that is on the
    wide side. Between configurations that are alike they are not, or close variants of the answer
    would look worth a measurement."""
    found = over_default_of(query, configs, score, spread)
    at, default = found.place(answer), found.place(query.default)
    apart = spread
    if at is not None:
        shared = alike(configs, at) * spread * spread[at]
        apart = np.sqrt(np.maximum(spread**2 + spread[at] ** 2 - 2.0 * shared, 0.0))
    over = np.hypot(spread, spread[default]) if default is not None else spread
    return replace(found, spread=over, apart=apart)


def alike(configs: Sequence[Config], at: int) -> Floats:
    """How a cost model's errors on configurations correlate float64[u] with those on one of them,
    as `embeddb.ranking.rankers.order` has it: by the share of parameters in which they differ."""
    names = {name for config in configs for name in config}
    one = set(configs[at].items())
    differ = [len({name for name, _ in one ^ set(config.items())}) for config in configs]
    found: Floats = np.exp(-np.array(differ) / max(len(names), 1) / REACH)
    return found


def anchored(
    found: Posterior, query: Query, curves: Mapping[Config, TimingSummary], *, exact: bool
) -> Posterior:
    """Beliefs with what was measured in their place, and the rest moved and scattered as the
    ranking is off on the measured ones. `exact`: measured at the asked width."""
    base = curves.get(query.default)
    over_default = base is not None and math.isfinite(base.seconds)
    # As the answer is: with preparation shared out over the calls.
    costs = {c: curve.seconds + curve.conversion_s / query.calls for c, curve in curves.items()}
    zero = math.log(costs[query.default]) if over_default else 0.0
    stored = query.space.canonical
    own = {stored(c): zero - math.log(cost) for c, cost in costs.items()}
    seen = set(found.configs)
    configs = (*found.configs, *(c for c in own if c not in seen))
    extra = len(configs) - len(found.configs)
    gain = np.array([own.get(c, math.nan) for c in configs])
    mean = np.concatenate([found.mean, np.full(extra, np.nan)])
    shared = np.isfinite(gain) & np.isfinite(mean)
    off = gain[shared] - mean[shared]
    shift = float(np.median(off)) if off.size else 0.0
    tail = np.full(extra, np.nan)
    spread, apart = np.append(found.spread, tail), np.append(found.apart, tail)
    if off.size >= _FEWEST_SHARED:
        # One of them went into the shift.
        scatter = math.sqrt(float(((off - shift) ** 2).sum()) / (off.size - 1))
        spread = apart = np.full(len(configs), scatter)
    known = ~np.isnan(gain)
    still = np.where(known, 0.0, spread) if exact else spread
    unknown = np.full(len(configs), np.nan)
    return Posterior(
        configs,
        np.where(known, gain, mean + shift),
        still,
        np.where(known, 0.0, apart) if exact else apart,
        unknown,
        unknown,
        known if exact else np.zeros_like(known),
        over_default,
    )
