"""How many accesses miss a cache, for every size of it, from one pass over a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReuseCurve"]


@dataclass(frozen=True, eq=False)
class ReuseCurve:
    """The average footprint of a trace of `length` accesses to `units` different units.

    Shapes: `times` int64[length - units], ascending: accesses between two of one unit, the later
    one included. `gaps` int64[length + units], ascending: these, and from the ends of the trace to
    each unit's first and last access.

    Source: Xiang, Ding, Luo, Bao, "HOTL: a higher order theory of locality", ASPLOS 2013, Section
    2.2: O(t log t) and no tree, where `embeddb.dynamics.counting.reuse` is exact.
    """

    length: int
    units: int
    times: NDArray[np.int64]
    gaps: NDArray[np.int64]

    @classmethod
    def of(cls, trace: NDArray[np.int64]) -> ReuseCurve:
        """Of units int64[t] in the order of access."""
        at = np.argsort(trace, kind="stable")
        ordered, steps = trace[at], np.diff(at)
        same = ordered[1:] == ordered[:-1]
        edge = np.flatnonzero(~same)
        ends = [at[-1:], at[edge]] if trace.size else []
        starts = [at[:1], at[edge + 1]] if trace.size else []
        first = np.concatenate([np.zeros(0, np.int64), *starts]) + 1
        last = trace.size - np.concatenate([np.zeros(0, np.int64), *ends])
        times = np.sort(steps[same])
        return cls(trace.size, first.size, times, np.sort(np.concatenate([times, first, last])))

    def footprint(self, window: int) -> float:
        """The mean number of different units in windows of so many accesses."""
        if window >= self.length:
            return float(self.units)
        longer = self.gaps[np.searchsorted(self.gaps, window, side="right") :]
        missed = float(longer.sum()) - window * longer.size
        return self.units - missed / (self.length - window + 1)

    def window(self, units: float) -> int:
        """The longest window whose mean footprint is at most so many units."""
        if units >= self.units:
            return self.length
        low, high = 0, self.length
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.footprint(middle) <= units else (low, middle)
        return low

    def misses(self, units: float, *, beyond: int = 0) -> int:
        """Accesses again after more than `beyond` accesses that an LRU cache of so many units does
        not hold any more; first accesses are not among them."""
        longest = max(self.window(units), beyond)
        return int(self.times.size - np.searchsorted(self.times, longest, side="right"))
