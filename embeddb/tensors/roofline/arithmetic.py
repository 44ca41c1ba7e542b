"""Cycles of a nest of loops from its operations alone, with all data in the first cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.roofline.loops import (
    BRANCH,
    CHOICE,
    INDEX,
    ROWS,
    Access,
    Extents,
    Floats,
    Ints,
    Loops,
    Nest,
    Step,
    lengths,
)
from embeddb.tensors.roofline.machine import LINE, Machine, function_cycles
from embeddb.tensors.roofline.traffic import Layout
from embeddb.tensors.tiling.forms import Var

#: Cycles of an iteration of an outer loop, of entering a loop of known and of unknown length, and
#: of a mispredicted loop end, and the trip count from which it is mispredicted.
_TURN, _KNOWN, _ENTERED, _MISSED, _FORESEEN = 2.0, 2.0, 7.0, 14.0, 32
#: Largest trip count, in iterations or vectors, of a loop that is unrolled completely.
_SHORT = 8
#: Latency of an addition; loading a scalar, adding up the lanes of a vector.
_LATENCY, _NUMBER, _LANES = 4.0, 0.5, 2.5
#: Cost of inserting one element into a vector, and of extracting one.
_GATHERED, _SCATTERED = 1.2, 1.5
#: Cost of half a vector relative to a whole one.
_HALF = 0.6
#: Steps of several operations: cycles for a vector, and for a scalar.
_STEPS = {INDEX: (6.0, 4.0), CHOICE: (2.0, 1.5), BRANCH: (2.0, 1.5)}


#: One value per tile, or one for all.
Number = float | Floats


@dataclass(slots=True)
class _Cycles:
    """Cycles of an iteration over a vector, and over a scalar."""

    vector: Number = 0.0
    number: Number = 0.0

    def add(self, times: float, vector: Number, number: Number) -> None:
        self.vector += times * vector
        self.number += times * number


@dataclass(slots=True)
class _Turn:
    """Cycles of an iteration of the innermost loop: reads, writes and steps overlap, functions do
    not. `entered` is once for all iterations."""

    reads: _Cycles = field(default_factory=_Cycles)
    writes: _Cycles = field(default_factory=_Cycles)
    steps: _Cycles = field(default_factory=_Cycles)
    functions: _Cycles = field(default_factory=_Cycles)
    entered: float = 0.0

    def loop(self, turns: Ints, lanes: Ints) -> Floats:
        """Cycles of the innermost loop: whole vectors, half a vector, then scalars."""
        beside = (self.reads, self.writes, self.steps)
        vector: Number = 1.0
        number: Number = 1.0
        for one in beside:
            vector = np.maximum(vector, one.vector + self.functions.vector)
            number = np.maximum(number, one.number)
        number = number + self.functions.number
        whole, rest = np.divmod(turns, lanes)
        whole, rest = np.where(lanes > 1, whole, 0), np.where(lanes > 1, rest, turns)
        half, single = np.divmod(rest, np.maximum(lanes // 2, 1))
        half, single = np.where(lanes > 2, half, 0), np.where(lanes > 2, single, rest)
        entered = self.entered + np.where(whole + single <= _SHORT, _KNOWN, _ENTERED)
        entered = entered + np.where(whole + single > _FORESEEN, _MISSED, 0.0)
        return np.asarray((whole + _HALF * half) * vector + single * number + entered)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Arithmetic of a nest under tiles with the same loops. `layouts` are those of its accesses,
    which only the innermost loops use."""

    nest: Nest
    loops: Loops
    extents: Extents
    layouts: Sequence[Layout]
    machine: Machine

    def cycles(self, runs: Floats, innermost: Floats) -> Floats:
        """float64[c] of so many runs of the nest, with this cost of the innermost loops."""
        around, total = runs, runs * self._once(None, self.loops.inside(0))
        for at, var in enumerate(self.loops.outside):
            trip_counts = lengths(self.nest, var, self.extents)
            around = around * np.sum([n * share for n, share in trip_counts], axis=0)
            total += around * (_TURN + self._once(var, self.loops.inside(at + 1)))
        return total + around * innermost

    def _once(self, last: Var | None, inside: frozenset[Var]) -> float:
        """Cost of the steps executed once per iteration of an outer loop `last`, or per run of the
        nest: they depend on it and on no loop inside it."""
        own = [
            step
            for step in self.nest.steps
            if not step.variables & inside and (last is None or last in step.variables)
        ]
        return sum(step.share * self._step(step)[1] for step in own)

    def innermost(self) -> Floats:
        """float64[c] of all iterations of the rows and of the loop inside; without the outer
        loops."""
        rows, inner = self.loops.rows, self.loops.inner
        lanes = np.where(self._in_vectors(), self.machine.lanes(self.nest.each), 1)
        one = self._turn(1)
        together = one if rows is None else self._turn(ROWS)
        once = [(np.ones(len(self.extents), dtype=np.int64), np.ones(len(self.extents)))]
        total = np.zeros(len(self.extents))
        for turns, share in lengths(self.nest, inner, self.extents) if inner else once:
            single = one.loop(turns, lanes)
            if rows is None:
                total += share * single
                continue
            four = together.loop(turns, lanes)
            for count, part in lengths(self.nest, rows, self.extents):
                whole, rest = np.divmod(count, ROWS)
                total += share * part * (whole * (four + _TURN) + rest * (single + _TURN))
        return total

    def _turn(self, rows: int) -> _Turn:
        """Cycles of an iteration with so many rows."""
        turn, inner = _Turn(), self.loops.inner
        written = {var for var, _ in self.loops.written}
        # A sum over the innermost loop is kept in registers.
        in_registers = bool(self.nest.summed) and (inner is None or inner in self.nest.summed)
        for access, layout in zip(self.nest.accesses, self.layouts, strict=True):
            times = access.share * self.loops.copies(access.variables, rows)
            if inner is None or inner not in access.variables:
                turn.entered += times * (_LANES if in_registers and access.written else _NUMBER)
            else:
                self._access(turn, times, access, layout)
        for step in self.nest.steps:
            times = step.share * self.loops.copies(step.variables, rows)
            vector, number = self._step(step)
            if inner is not None and inner in step.variables:
                function = vector > 2 * self.machine.units
                (turn.functions if function else turn.steps).add(times, vector, number)
            elif self.loops.rows in step.variables or step.variables & written:
                turn.entered += times * number
        if in_registers:
            # If the innermost loop of a sum has one iteration, four terms are added together.
            waits = _LATENCY if inner == self.nest.inner else _LATENCY / ROWS
            turn.steps.vector = np.maximum(turn.steps.vector, waits)
            turn.steps.number = np.maximum(turn.steps.number, waits)
        return turn

    def _access(self, turn: _Turn, times: float, access: Access, layout: Layout) -> None:
        """Add an access that moves with the innermost loop."""
        lanes = self.machine.lanes(self.nest.each)
        stride = self._stride(access, layout)
        each = 1.0 if access.written else _NUMBER
        row = np.asarray(False if stride is None else stride == 1)
        wide = 2 * each * self.machine.units * (1 + self._crossing(access, layout))
        if access.written:
            turn.writes.add(times, np.where(row, wide, lanes * _SCATTERED), each)
        else:
            turn.reads.add(times, np.where(row, wide, 0.0), each)
            turn.steps.add(times, np.where(row, 0.0, lanes * _GATHERED), 0.0)

    def _step(self, step: Step) -> tuple[float, float]:
        """Cycles of a vector, and of a scalar."""
        if step.opcode in _STEPS:
            vector, number = _STEPS[step.opcode]
            return vector * self.machine.units, number
        vector, number = function_cycles(step.opcode, step.each, self.machine.vector_bytes)
        return (vector, number) if vector else (self.machine.units, 0.5)

    def _in_vectors(self) -> NDArray[np.bool_]:
        """bool[c]: true if a compiler vectorises the innermost loop: it is no loop of rows, no
        index is divided by it, and it writes contiguously or can scatter."""
        nest, inner, vectorised = (
            self.nest,
            self.loops.inner,
            np.ones(len(self.extents), dtype=bool),
        )
        if inner is None or (nest.summed and inner != nest.inner and not self.loops.written):
            return ~vectorised
        if any(step.opcode == INDEX and inner in step.variables for step in nest.steps):
            return ~vectorised
        if any(step.opcode == BRANCH for step in nest.steps):
            return ~vectorised
        anywhere = self.machine.scatters and not nest.summed
        for access, layout in zip(nest.accesses, self.layouts, strict=True):
            stride = self._stride(access, layout) if access.written else np.zeros(1)
            if stride is None:
                return ~vectorised
            if not anywhere:
                vectorised &= (stride == 0) | (stride == 1)
        return vectorised

    def _stride(self, access: Access, layout: Layout) -> Ints | None:
        """int64[c] elements from one iteration of the innermost loop to the next; None where that
        varies."""
        total = np.zeros(len(self.extents), dtype=np.int64)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            for var, by in terms:
                if var == self.loops.inner and by is None:
                    return None
                if var == self.loops.inner and by is not None:
                    total += by * stride
        return total

    def _crossing(self, access: Access, layout: Layout) -> Floats:
        """float64[c]: fraction of its vectors that cross a cache line, for arbitrary alignment."""
        wide = min(self.machine.vector_bytes, LINE)
        anywhere = np.zeros(len(self.extents), dtype=bool)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            if any(var != self.loops.inner for var, _ in terms):
                anywhere |= stride * access.each % wide != 0
        return np.where(anywhere, (wide - access.each) / LINE, 0.0)
