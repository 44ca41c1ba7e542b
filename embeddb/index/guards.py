"""What a first choice must promise over the default before it is believed: guards, found from first
choices that were held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_SLOWER", "NEVER", "Limit", "safe_guard", "usual_guard"]

Floats = NDArray[np.float64]

#: The mean log gain that may be given up so that fewer answers are slower than the default.
_CAUTION = 0.003
#: Log gains over the default that a first choice may have to promise more than.
_GUARDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
#: Where slower answers are limited: further guards, the last of which nothing is ever promised.
_HIGH_GUARDS = (1.5, 2.0, 3.0, 8.0)


class Limit(NamedTuple):
    """At most a `share` of the answers may take more than `times` what the default takes."""

    share: float
    times: float


#: By what is tuned: a schedule or tile that does not suit costs more than a format
#: (docs/decisions/nests.md, docs/decisions/tensors.md).
MOST_SLOWER = {"nest": Limit(0.02, 1.02), "kernel": Limit(0.02, 1.2)}
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
