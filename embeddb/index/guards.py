"""Bounds for the next first choice from held-out ones: the predicted gain over the default that it
must exceed (guard), and the prediction interval of its gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit

Floats = NDArray[np.float64]

#: The mean log gain that may be lost so that fewer answers are slower than the default.
_CAUTION = 0.003
#: Candidate guards: log gains over the default that the predicted one must exceed.
_GUARDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
#: Further guards where slower answers are limited; no prediction exceeds the last.
_HIGH_GUARDS = (1.5, 2.0, 3.0, 8.0)

#: An answer below this share of the optimum falls short.
GOOD = 0.9
#: With fewer groups there is no prediction interval.
_FEWEST_GROUPS = 3
#: With fewer groups the mean error is mostly chance, and predictions are not corrected by it.
_FEWEST_FOR_BIAS = 8
#: Machines with fewer first choices are ignored for other machines.
_FEWEST_OF_MACHINE = 8
#: The 90th percentile of a standard normal distribution.
_NINETIETH = 1.2815515655446004


class GainErrors(NamedTuple):
    """Measured less predicted log gain of the next first choice: the mean (`bias`, 0 for few
    groups), and the bounds `low` and `high` of the 80 % prediction interval, which contain it; nan
    where too few were judged. `guard` is the predicted gain that it must exceed."""

    bias: float = math.nan
    low: float = math.nan
    high: float = math.nan
    guard: float = 0.0


#: The guard that nothing passes.
NEVER = _HIGH_GUARDS[-1]


def usual_guard(by_machine: Sequence[Floats]) -> float:
    """The least of the guards with the fewest first choices slower than the default, among those
    that lose at most `_CAUTION` of the mean gain; first choices are float64[q,2] (predicted,
    measured), and machines count alike."""
    gains, slower = np.zeros((2, len(_GUARDS)))
    for at, guard in enumerate(_GUARDS):
        behind = [np.where(first[:, 0] > guard, first[:, 1], 0.0) for first in by_machine]
        gains[at] = np.mean([gain.mean() for gain in behind])
        slower[at] = np.mean([(gain < 0).mean() for gain in behind])
    able = np.flatnonzero(gains >= gains.max() - _CAUTION)
    return _GUARDS[int(able[slower[able].argmin()])]


def safe_guard(by_machine: Sequence[Floats], most: Limit) -> float:
    """The least guard under which first choices float64[q,2] keep to the limit, with one more
    counted as slower."""
    every, slower_than = np.concatenate(list(by_machine)), -math.log(most.times)
    for guard in (*_GUARDS, *_HIGH_GUARDS):
        slower = int(((every[:, 0] > guard) & (every[:, 1] < slower_than)).sum())
        if slower + 1 <= most.share * (len(every) + 1):
            return guard
    return NEVER


def gain_errors(errors: Floats, group: NDArray[np.int64]) -> GainErrors:
    """Expected error of the next predicted gain, from held-out errors float64[q] (nan: none) of
    groups int64[q].

    The quantiles are those at q + 1 (the next error is as likely to lie in each gap), widened about
    the median by Student's t of the groups over the normal: neighbours, guard and bias were fitted
    to the same few groups.
    """
    judged = np.isfinite(errors)
    errors, groups = errors[judged], np.unique(group[judged]).size
    if groups < _FEWEST_GROUPS:
        return GainErrors()
    low, middle, high = np.quantile(errors, (0.1, 0.5, 0.9), method="weibull")
    wider = _t_ninetieth(groups - 1) * math.sqrt(1.0 + 1.0 / groups) / _NINETIETH
    bias = float(errors.mean()) if groups >= _FEWEST_FOR_BIAS else 0.0
    low, high = middle + wider * (low - middle), middle + wider * (high - middle)
    return GainErrors(bias, min(float(low), bias), max(float(high), bias))


def errors_across_machines(by_machine: Sequence[Floats]) -> GainErrors:
    """Expected error on a machine that is none of these: errors of one machine are correlated (a
    normal distribution of their means, with the t quantile of the few machines)."""
    errors = [of[np.isfinite(of)] for of in by_machine]
    errors = [of for of in errors if of.size >= _FEWEST_OF_MACHINE]
    if not errors:
        return GainErrors()
    means = np.array([of.mean() for of in errors])
    within = float(np.mean([of.var() for of in errors]))
    between = float(means.var(ddof=1)) * (1 + 1 / len(means)) if len(means) > 1 else within
    wider = _t_ninetieth(max(len(means) - 1, 1)) / _NINETIETH
    reach = _NINETIETH * math.sqrt(within + wider**2 * between)
    bias = float(means.mean())
    return GainErrors(bias, bias - reach, bias + reach)


def short_bound(loss: Floats, group: NDArray[np.int64]) -> float:
    """Upper 90 % bound (Clopper and Pearson's) of the share of answers below `GOOD`, from log
    losses float64[q] to the optimum; each of the groups int64[q] is one trial."""
    from scipy.special import betaincinv

    groups, of = np.unique(group, return_inverse=True)
    short = np.bincount(of, weights=loss > -math.log(GOOD)) / np.bincount(of)
    missed = float(short.sum())
    if missed >= groups.size:
        return 1.0
    return float(betaincinv(missed + 1.0, groups.size - missed, 0.9))


def _t_ninetieth(freedom: int) -> float:
    """The 90th percentile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.9))
