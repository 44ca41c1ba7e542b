"""Bounds for the next first choice from held-out ones: the gain that it must promise over the
default (guards), and the interval in which its gain will lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit

Floats = NDArray[np.float64]

#: The mean log gain that may be given up so that fewer answers are slower than the default.
_CAUTION = 0.003
#: Log gains over the default that a first choice may have to promise more than.
_GUARDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
#: Where slower answers are limited: further guards, the last of which nothing is ever promised.
_HIGH_GUARDS = (1.5, 2.0, 3.0, 8.0)


#: An answer below this share of the optimum falls short.
GOOD = 0.9
#: With fewer groups nothing is predicted of the error of a promised gain.
_FEWEST_GROUPS = 3
#: With fewer groups the mean error is mostly chance, and promises are not corrected by it.
_FEWEST_FOR_BIAS = 8
#: Of a machine with fewer first choices nothing is predicted for another one.
_FEWEST_OF_MACHINE = 8
#: The 90th percentile of a standard normal distribution.
_NINETIETH = 1.2815515655446004


class GainErrors(NamedTuple):
    """Log gain got less promised: the mean (`bias`, 0 of few groups), and the bounds `low` and
    `high` of the 80 % prediction interval, which contain it; nan where too few were judged."""

    bias: float = math.nan
    low: float = math.nan
    high: float = math.nan


#: The guard that nothing passes.
NEVER = _HIGH_GUARDS[-1]


def usual_guard(by_machine: Sequence[Floats]) -> float:
    """The least of the guards that let the fewest first choices float64[q,2] be slower than the
    default, among those that give up at most `_CAUTION` of the mean gain; machines count alike."""
    gains, slower = np.zeros((2, len(_GUARDS)))
    for at, guard in enumerate(_GUARDS):
        behind = [np.where(first[:, 0] > guard, first[:, 1], 0.0) for first in by_machine]
        gains[at] = np.mean([gain.mean() for gain in behind])
        slower[at] = np.mean([(gain < 0).mean() for gain in behind])
    able = np.flatnonzero(gains >= gains.max() - _CAUTION)
    return _GUARDS[int(able[slower[able].argmin()])]


def safe_guard(by_machine: Sequence[Floats], most: Limit) -> float:
    """The least guard under which first choices float64[q,2] keep to the limit; one more that was
    not seen is counted as slower."""
    every, slower_than = np.concatenate(list(by_machine)), -math.log(most.times)
    for guard in (*_GUARDS, *_HIGH_GUARDS):
        slower = int(((every[:, 0] > guard) & (every[:, 1] < slower_than)).sum())
        if slower + 1 <= most.share * (len(every) + 1):
            return guard
    return NEVER


def gain_errors(off: Floats, group: NDArray[np.int64]) -> GainErrors:
    """The error to expect of the next promise, from held-out errors float64[q] (nan: not known) of
    groups int64[q].

    The quantiles are those at q + 1 (the next one is as likely to lie in each gap), widened about
    the median by Student's t of the groups over the normal: neighbours, guard and bias were found
    on the same few groups, and of two groups the extremes say little.
    """
    known = np.isfinite(off)
    groups = np.unique(group[known]).size
    if groups < _FEWEST_GROUPS:
        return GainErrors()
    low, middle, high = np.quantile(off[known], (0.1, 0.5, 0.9), method="weibull")
    wider = _t_ninetieth(groups - 1) * math.sqrt(1.0 + 1.0 / groups) / _NINETIETH
    bias = float(off[known].mean()) if groups >= _FEWEST_FOR_BIAS else 0.0
    low, high = middle + wider * (low - middle), middle + wider * (high - middle)
    return GainErrors(bias, min(float(low), bias), max(float(high), bias))


def errors_across_machines(by_machine: Sequence[Floats]) -> GainErrors:
    """As `gain_errors` for a machine that is none of these: rows of one machine err together, by as
    much as machines differ (a normal law for their means, with the t quantile of so few)."""
    known = [off[np.isfinite(off)] for off in by_machine]
    known = [off for off in known if off.size >= _FEWEST_OF_MACHINE]
    if not known:
        return GainErrors()
    means = np.array([off.mean() for off in known])
    within = float(np.mean([off.var() for off in known]))
    between = float(means.var(ddof=1)) * (1 + 1 / len(means)) if len(means) > 1 else within
    wider = _t_ninetieth(max(len(means) - 1, 1)) / _NINETIETH
    reach = _NINETIETH * math.sqrt(within + wider**2 * between)
    bias = float(means.mean())
    return GainErrors(bias, bias - reach, bias + reach)


def short_bound(loss: Floats, group: NDArray[np.int64]) -> float:
    """Upper 90 % bound (Clopper and Pearson's) of the part of answers that fall short of `GOOD`,
    from log losses float64[q] to the optimum; each of the groups int64[q] is one trial."""
    from scipy.special import betaincinv

    groups, of = np.unique(group, return_inverse=True)
    short = np.bincount(of, weights=loss > -math.log(GOOD)) / np.bincount(of)
    missed = float(short.sum())
    return (
        float(betaincinv(missed + 1.0, groups.size - missed, 0.9)) if missed < groups.size else 1.0
    )


def _t_ninetieth(freedom: int) -> float:
    """The 90th percentile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.9))
