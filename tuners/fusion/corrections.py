"""How far a model of kernels is off in one program, by those of its kernels that ran."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

__all__ = ["Corrections"]

#: What the median of all kernels weighs beside those that share operations; a kernel of the same
#: operations would weigh 1.
_PRIOR = 0.05


class Corrections:
    """Of kernels by their members, places in the program. What a model misses of a kernel it mostly
    misses of the next one with the same operations, too: a convolution that is slower than it says
    stays so with another operation fused to it. The factor of a kernel is a mean, in logarithms, of
    what the kernels that ran took over what the model said of them, each with the square of its
    Jaccard similarity to the members as weight, and little of the median of all."""

    def __init__(self) -> None:
        self._off: dict[int, float] = {}  # by members as bits: the logarithm
        self._median = 0.0

    def learn(self, members: Iterable[int], ratio: float) -> None:
        """A kernel took `ratio` times as long as the model said."""
        self._off[_bits(members)] = math.log(ratio)
        self._median = median(self._off.values())

    def factor(self, members: Iterable[int]) -> float:
        """By which the model is off for a kernel that did not run; 1 where nothing ran."""
        own = _bits(members)
        weight, total = _PRIOR, _PRIOR * self._median
        for bits, off in self._off.items():
            if shared := (bits & own).bit_count():
                alike = (shared / (bits | own).bit_count()) ** 2
                weight, total = weight + alike, total + alike * off
        return math.exp(total / weight)


def _bits(members: Iterable[int]) -> int:
    return sum(1 << place for place in members)
