"""Cycles of a nest of loops from its operations alone, everything at hand in the first cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from embeddb.tensors.roofline.accesses import CHOICE, INDEX, Access, Nest, Step
from embeddb.tensors.roofline.extents import Extents
from embeddb.tensors.roofline.loops import ROWS, Loops, lengths
from embeddb.tensors.roofline.machine import LINE, Machine, function_cycles
from embeddb.tensors.roofline.traffic import Layout
from embeddb.tensors.tiling.forms import Var

__all__ = ["Arithmetic"]

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
_STEPS = {INDEX: (6.0, 4.0), CHOICE: (2.0, 1.5)}


@dataclass(slots=True)
class _Cycles:
    """Of a turn over a vector, and of one over a number."""

    vector: float = 0.0
    number: float = 0.0

    def add(self, times: float, vector: float, number: float) -> None:
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

    def loop(self, turns: int, lanes: int) -> float:
        """The innermost loop: whole vectors, half a one, numbers one by one."""
        beside = (self.reads, self.writes, self.steps)
        vector = max(1.0, max(one.vector for one in beside) + self.functions.vector)
        number = max(1.0, max(one.number for one in beside)) + self.functions.number
        whole, rest = divmod(turns, lanes) if lanes > 1 else (0, turns)
        half, single = divmod(rest, lanes // 2) if lanes > 2 else (0, rest)
        entered = self.entered + (_KNOWN if whole + single <= _SHORT else _ENTERED)
        if whole + single > _FORESEEN:
            entered += _MISSED
        return (whole + _HALF * half) * vector + single * number + entered


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Of a nest under a tile. `layouts` are those of its accesses."""

    nest: Nest
    loops: Loops
    extents: Extents
    layouts: Sequence[Layout]
    machine: Machine

    def cycles(self) -> float:
        """Of all runs of the nest in the kernel."""
        around = float(self.extents.turns(self.extents.depth(self.nest.depends)))
        blocked, block = self.nest.blocked, self.extents.tile.reduced
        if blocked is not None and 0 < block < blocked.extent:
            around *= -(-blocked.extent // block)
        total = around * self._once(None, self.loops.inside(0))
        for at, var in enumerate(self.loops.outside):
            told = lengths(self.nest, var, self.extents)
            around *= math.fsum(n * share for n, share in told)
            total += around * (_TURN + self._once(var, self.loops.inside(at + 1)))
        return total + around * self._innermost()

    def _once(self, last: Var | None, inside: frozenset[Var]) -> float:
        """Steps that are made once for each turn of an outer loop `last`, or for each run of the
        nest: they move with it and with nothing inside of it."""
        own = [
            step
            for step in self.nest.steps
            if not step.variables & inside and (last is None or last in step.variables)
        ]
        return sum(step.share * self._step(step)[1] for step in own)

    def _innermost(self) -> float:
        """All turns of the rows and of the loop inside."""
        rows, inner = self.loops.rows, self.loops.inner
        lanes = self.machine.lanes(self.nest.each) if self._in_vectors() else 1
        one, together = self._turn(1), self._turn(ROWS)
        told = lengths(self.nest, inner, self.extents) if inner is not None else [(1, 1.0)]
        total = 0.0
        for turns, share in told:
            single = one.loop(turns, lanes)
            if rows is None:
                total += share * single
                continue
            four = together.loop(turns, lanes)
            for count, part in lengths(self.nest, rows, self.extents):
                whole, rest = divmod(count, ROWS)
                total += share * part * (whole * (four + _TURN) + rest * (single + _TURN))
        return total

    def _turn(self, rows: int) -> _Turn:
        """Of so many rows."""
        turn, inner = _Turn(), self.loops.inner
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
            elif self.loops.rows in step.variables or step.variables & self.loops.written.keys():
                turn.entered += times * number
        if kept:
            # Where the innermost loop of a sum has one turn, four terms are added at once instead.
            waits = _LATENCY if inner == self.nest.inner else _LATENCY / ROWS
            turn.steps.vector = max(turn.steps.vector, waits)
            turn.steps.number = max(turn.steps.number, waits)
        return turn

    def _access(self, turn: _Turn, times: float, access: Access, layout: Layout) -> None:
        """One that moves with the innermost loop."""
        cycles, each = (turn.writes, 1.0) if access.written else (turn.reads, _NUMBER)
        lanes = self.machine.lanes(self.nest.each)
        if self._stride(access, layout) == 1:
            wide = 2 * each * self.machine.units * (1 + self._crossing(access, layout))
            cycles.add(times, wide, each)
        elif access.written:
            cycles.add(times, lanes * _SCATTERED, each)
        else:
            cycles.add(times, 0.0, each)
            turn.steps.add(times, lanes * _GATHERED, 0.0)

    def _step(self, step: Step) -> tuple[float, float]:
        """Cycles of a vector, and of one number."""
        if step.opcode in _STEPS:
            vector, number = _STEPS[step.opcode]
            return vector * self.machine.units, number
        vector, number = function_cycles(step.opcode, step.each, self.machine.vector_bytes)
        return (vector, number) if vector else (self.machine.units, 0.5)

    def _in_vectors(self) -> bool:
        """Whether a compiler makes vectors of the innermost loop: it is no loop of rows, nothing is
        divided by it, and what it writes lies in a row or can be scattered."""
        nest, inner = self.nest, self.loops.inner
        if inner is None or (nest.summed and inner != nest.inner and not self.loops.written):
            return False
        if any(step.opcode == INDEX and inner in step.variables for step in nest.steps):
            return False
        pairs = zip(nest.accesses, self.layouts, strict=True)
        strides = [self._stride(access, layout) for access, layout in pairs if access.written]
        if self.machine.scatters and not nest.summed:
            return None not in strides
        return all(stride in (0, 1) for stride in strides)

    def _stride(self, access: Access, layout: Layout) -> int | None:
        """Elements from one turn of the innermost loop to the next; None where that is not the same
        everywhere."""
        total = 0
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            for var, by in terms:
                if var == self.loops.inner and by is None:
                    return None
                if var == self.loops.inner and by is not None:
                    total += by * stride
        return total

    def _crossing(self, access: Access, layout: Layout) -> float:
        """The share of its vectors that lie in two lines: of those that begin anywhere."""
        wide = min(self.machine.vector_bytes, LINE)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            moves = any(var != self.loops.inner for var, _ in terms)
            if moves and stride * access.each % wide:
                return (wide - access.each) / LINE
        return 0.0
