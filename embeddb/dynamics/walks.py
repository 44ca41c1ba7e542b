"""Accesses of a walk over a pattern, and the misses in a cache of any size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.dynamics.record import LINE_BYTES
from embeddb.dynamics.traffic import matrix_bytes
from embeddb.dynamics.walk import Execution, entries_of, middle_of, plain
from embeddb.platforms.loopnest import LoopNest, complete_order


@dataclass(frozen=True, eq=False)
class ReuseCurve:
    """Average footprint of a trace of `length` accesses to `units` distinct units.

    Shapes: `times` int64[length - units], ascending: accesses between two of one unit, the later
    one included. `gaps` int64[length + units], ascending: these, and from the ends of the trace to
    each unit's first and last access.

    Source: Xiang, Ding, Luo, Bao, "HOTL: a higher order theory of locality", ASPLOS 2013, Section
    2.2: O(t log t) without a tree; `embeddb.dynamics.counting.reuse` is exact.
    """

    length: int
    units: int
    times: NDArray[np.int64]
    gaps: NDArray[np.int64]

    @classmethod
    def of(cls, trace: NDArray[np.int64]) -> ReuseCurve:
        """Curve of units int64[t] in the order of access."""
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
        """Mean number of distinct units in windows of so many accesses."""
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
        """Repeated accesses that miss an LRU cache of so many units, with more than `beyond`
        accesses between; first accesses are not counted."""
        longest = max(self.window(units), beyond)
        return int(self.times.size - np.searchsorted(self.times, longest, side="right"))


#: Number of entries whose visiting order is analysed; beyond, rows in the middle are taken.
_LOOKED_AT = 1 << 17
#: Size in bytes of a value of the matrix and of a vector of one dense column.
_VALUE = 4


@dataclass(frozen=True, eq=False)
class Walk:
    """Reuse of the operand that is reached by index; a unit is one of its rows (of a block of them;
    a cache line where a row is one value). `stored` values, `blocks` (entries where there are
    none), `segments` and `matrix_bytes` are per non-zero; `phases` have barriers between them."""

    curve: ReuseCurve
    stored: float
    blocks: float
    segments: float
    matrix_bytes: float
    phases: int

    @property
    def segment_length(self) -> float:
        """Mean number of blocks of a segment."""
        return self.blocks / max(self.segments, 1e-9)


class Walks:
    """Visiting orders of one pattern, cached."""

    def __init__(self, pattern: Pattern) -> None:
        self._part = middle_of(pattern, _LOOKED_AT)
        self._known: dict[tuple[Execution, bool], Walk] = {}

    def of(self, ex: Execution, op: Op) -> Walk:
        """Walk of an execution: executions that differ in tiles of dense columns, strips and
        schedules share one."""
        key = _bare(ex), op.width == 1
        if key not in self._known:
            self._known[key] = self._looked_at(*key)
        return self._known[key]

    def _looked_at(self, ex: Execution, scalar: bool) -> Walk:
        part = self._part
        entries = entries_of(part, ex)
        trace = entries.rows if by_columns(ex) else entries.columns
        if scalar:
            trace = trace * ex.block[1] * _VALUE // LINE_BYTES
        nnz = max(part.nnz, 1)
        return Walk(
            ReuseCurve.of(trace),
            entries.stored / nnz,
            entries.rows.size / nnz,
            entries.work.size / nnz,
            matrix_bytes(entries, ex, _VALUE) / nnz,
            max(1, entries.starts.size - 1),
        )


def by_columns(ex: Execution) -> bool:
    """Return true if whole columns of the matrix are outermost, rather than rows or panels."""
    outer = next(name for name in ex.nest.names if name[0] in "ij")
    return outer == "j2" and ex.nest.splits[1] == 1


def _bare(ex: Execution) -> Execution:
    """The execution reduced to the properties that decide the order of rows and columns."""
    outer = next(name for name in ex.nest.names if name[0] in "ij")
    bare = plain(1)
    if outer == "j2":
        panel = ex.nest.splits[1]
        loops = ("j2", "i2", "k2") if panel == 1 else ("j2", "i2", "k2", "j1")
        bare = replace(bare, nest=LoopNest((1, panel, 1, 1), complete_order(loops)))
    return replace(
        bare,
        block=ex.block,
        slice=ex.slice,
        sigma=ex.sigma,
        padded=ex.padded,
        by_length=ex.by_length,
    )
