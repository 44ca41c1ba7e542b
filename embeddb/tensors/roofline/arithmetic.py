"""Cycles of a nest of loops from its operations alone, everything at hand in the first cache."""

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

#: Cycles of a turn of an outer loop, of entering a loop of known and of unknown length, of a loop's
#: end that was not foreseen, and turns from which on it is not.
_TURN, _KNOWN, _ENTERED, _MISSED, _FORESEEN = 2.0, 2.0, 7.0, 14.0, 32
#: Loops of so few turns, or vectors, have no turns at all.
_SHORT = 8
#: Until a sum can be added to again; reading a number, adding up the lanes of a vector to one.
_LATENCY, _NUMBER, _LANES = 4.0, 0.5, 2.5
#: Of an element that is put into a vector by itself, and of one taken out of it.
_GATHERED, _SCATTERED = 1.2, 1.5
#: What half a vector costs of a whole one.
_HALF = 0.6
#: Steps that are more than one operation: of a vector, and of one number.
_STEPS = {INDEX: (6.0, 4.0), CHOICE: (2.0, 1.5), BRANCH: (2.0, 1.5)}


#: Of every tile, or the same for all.
Number = float | Floats


@dataclass(slots=True)
class _Cycles:
    """Of a turn over a vector, and of one over a number."""

    vector: Number = 0.0
    number: Number = 0.0

    def add(self, times: float, vector: Number, number: Number) -> None:
        self.vector += times * vector
        self.number += times * number


@dataclass(slots=True)
class _Turn:
    """What a turn of the innermost loop waits for: reads, writes and steps go on beside each other,
    functions do not. `entered` is once for all turns."""

    reads: _Cycles = field(default_factory=_Cycles)
    writes: _Cycles = field(default_factory=_Cycles)
    steps: _Cycles = field(default_factory=_Cycles)
    functions: _Cycles = field(default_factory=_Cycles)
    entered: float = 0.0

    def loop(self, turns: Ints, lanes: Ints) -> Floats:
        """The innermost loop: whole vectors, half a one, numbers one by one."""
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
    """Of a nest under tiles that have the same loops. `layouts` are those of its accesses, which
    the innermost loops alone look at."""

    nest: Nest
    loops: Loops
    extents: Extents
    layouts: Sequence[Layout]
    machine: Machine

    def cycles(self, runs: Floats, innermost: Floats) -> Floats:
        """float64[c] of so many runs of the nest, with so many of the innermost loops."""
        around, total = runs, runs * self._once(None, self.loops.inside(0))
        for at, var in enumerate(self.loops.outside):
            told = lengths(self.nest, var, self.extents)
            around = around * np.sum([n * share for n, share in told], axis=0)
            total += around * (_TURN + self._once(var, self.loops.inside(at + 1)))
        return total + around * innermost

    def _once(self, last: Var | None, inside: frozenset[Var]) -> float:
        """Steps that are made once for each turn of an outer loop `last`, or for each run of the
        nest: they move with it and with nothing inside of it."""
        own = [
            step
            for step in self.nest.steps
            if not step.variables & inside and (last is None or last in step.variables)
        ]
        return sum(step.share * self._step(step)[1] for step in own)

    def innermost(self) -> Floats:
        """float64[c] of all turns of the rows and of the loop inside; not of the loops outside."""
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
        """Of so many rows."""
        turn, inner = _Turn(), self.loops.inner
        written = {var for var, _ in self.loops.written}
        # A sum over the innermost loop stays in registers.
        kept = bool(self.nest.summed) and (inner is None or inner in self.nest.summed)
        for access, layout in zip(self.nest.accesses, self.layouts, strict=True):
            times = access.share * self.loops.copies(access.variables, rows)
            if inner is None or inner not in access.variables:
                turn.entered += times * (_LANES if kept and access.written else _NUMBER)
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
        if kept:
            # Where the innermost loop of a sum has one turn, four terms are added at once instead.
            waits = _LATENCY if inner == self.nest.inner else _LATENCY / ROWS
            turn.steps.vector = np.maximum(turn.steps.vector, waits)
            turn.steps.number = np.maximum(turn.steps.number, waits)
        return turn

    def _access(self, turn: _Turn, times: float, access: Access, layout: Layout) -> None:
        """One that moves with the innermost loop."""
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
        """Cycles of a vector, and of one number."""
        if step.opcode in _STEPS:
            vector, number = _STEPS[step.opcode]
            return vector * self.machine.units, number
        vector, number = function_cycles(step.opcode, step.each, self.machine.vector_bytes)
        return (vector, number) if vector else (self.machine.units, 0.5)

    def _in_vectors(self) -> NDArray[np.bool_]:
        """bool[c]: whether a compiler makes vectors of the innermost loop: it is no loop of rows,
        nothing is divided by it, and what it writes lies in a row or can be scattered."""
        nest, inner, found = self.nest, self.loops.inner, np.ones(len(self.extents), dtype=bool)
        if inner is None or (nest.summed and inner != nest.inner and not self.loops.written):
            return ~found
        if any(step.opcode == INDEX and inner in step.variables for step in nest.steps):
            return ~found
        if any(step.opcode == BRANCH for step in nest.steps):
            return ~found
        anywhere = self.machine.scatters and not nest.summed
        for access, layout in zip(nest.accesses, self.layouts, strict=True):
            stride = self._stride(access, layout) if access.written else np.zeros(1)
            if stride is None:
                return ~found
            if not anywhere:
                found &= (stride == 0) | (stride == 1)
        return found

    def _stride(self, access: Access, layout: Layout) -> Ints | None:
        """int64[c] elements from one turn of the innermost loop to the next; None where that is not
        the same everywhere."""
        total = np.zeros(len(self.extents), dtype=np.int64)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            for var, by in terms:
                if var == self.loops.inner and by is None:
                    return None
                if var == self.loops.inner and by is not None:
                    total += by * stride
        return total

    def _crossing(self, access: Access, layout: Layout) -> Floats:
        """float64[c]: the share of its vectors that lie in two lines: of those that begin
        anywhere."""
        wide = min(self.machine.vector_bytes, LINE)
        anywhere = np.zeros(len(self.extents), dtype=bool)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            if any(var != self.loops.inner for var, _ in terms):
                anywhere |= stride * access.each % wide != 0
        return np.where(anywhere, (wide - access.each) / LINE, 0.0)
