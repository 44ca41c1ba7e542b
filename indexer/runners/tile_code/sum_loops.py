"""The C of one sum: over blocks of its longest dimension, several rows at a time."""

from __future__ import annotations

from typing import Protocol

from embeddb.kernels.emitter import Lines
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import Form, Forms, Var, of_var, whole
from embeddb.tensors.tiling.plan import Plan, Stage
from embeddb.tensors.tiling.spans import Span
from indexer.runners.tile_code.elements import Elements
from indexer.runners.tile_code.expressions import C_TYPES, combined

__all__ = ["SumLoops"]

#: Rows that one turn of the loop around the innermost one takes.
_JAMMED = 4


class Surroundings(Protocol):
    """The function that it is part of: its text so far, and where loops begin and end."""

    plan: Plan
    tile: Tile
    sizes: tuple[int, ...]
    lines: Lines
    elements: Elements

    def buffer(self, stage: Stage, forms: Forms) -> str:
        """One element of what is kept."""

    def ends_of(self, span: Span) -> tuple[str, str]:
        """Where it begins and ends."""

    def loop(self, var: Var, low: str, high: str, by: int = 1) -> None:
        """Open one."""

    def close(self, count: int) -> None:
        """So many loops."""


class SumLoops:
    """The loops of one sum: over blocks of its longest dimension, over its elements, over the other
    terms, over the rows that are taken together, and the innermost one."""

    def __init__(self, function: Surroundings, stage: Stage) -> None:
        self.f, self.stage = function, stage
        self.lines, self.elements = function.lines, function.elements
        self.value = function.plan.values.values[stage.value]
        self.type = C_TYPES[self.value.dtype]
        self.free = [stage.vars[d] for d in stage.order if stage.vars[d].extent > 1]
        self.over = [v for v in self.value.over if v.extent > 1]
        self.ends = {
            var: function.ends_of(span) for var, span in zip(stage.vars, stage.spans, strict=True)
        }
        self.ends |= {v: ("0", str(v.extent)) for v in self.over}
        self.sizes = dict(zip(stage.vars, stage.sizes(function.sizes), strict=True))
        self.inner = stage.inner if stage.inner in (*self.free, *self.over) else None

    def write(self) -> None:
        self._start()
        blocked, size = self.stage.blocked, self.f.tile.reduced
        blocks = blocked is not None and 0 < size < blocked.extent
        if blocks and blocked is not None:
            name, end = f"c_{blocked.name}", blocked.extent
            self.lines.open(f"for (int64_t {name} = 0; {name} < {end}; {name} += {size})")
            last = f"{name} + {size}"
            if end % size:
                last = f"({last} < {end} ? {last} : {end})"
            self.ends[blocked] = name, last
        self._terms()
        if blocks:
            self.lines.close()

    def _start(self) -> None:
        for var in self.free:
            self.f.loop(var, *self.ends[var])
        self.elements.begin(self.lines)
        start = "0"
        if self.value.start is not None:
            start = self.elements.at(self.value.start, ())
        self.lines.add(f"{self._place({})} = {start};")
        self.f.close(len(self.free))

    def _place(self, moved: dict[Var, Form]) -> str:
        return self.f.buffer(self.stage, tuple(form.put(moved) for form in self.stage.forms))

    def _terms(self) -> None:
        free = [v for v in self.free if v != self.inner]
        over = [v for v in self.over if v != self.inner]
        over.sort(key=lambda v: v == self.stage.blocked)  # the longest one inside
        rows: Var | None = None
        if self.inner in self.over:
            rows = free.pop() if free and self.sizes[free[-1]] >= _JAMMED else None
        elif self.inner is not None and over and over[-1].extent >= _JAMMED:
            rows = over.pop()
        outside = [*free, *over]
        for var in outside:
            self.f.loop(var, *self.ends[var])
        if rows is None:
            self._inside({}, 1, None)
        else:
            self._jammed(rows)
        self.f.close(len(outside))

    def _jammed(self, rows: Var) -> None:
        low, high = self.ends[rows]
        name = rows.name
        self.lines.block()
        self.lines.add(f"int64_t {name} = {low};")
        self.lines.open(f"for (; {name} + {_JAMMED - 1} < {high}; {name} += {_JAMMED})")
        self._inside({}, _JAMMED, rows)
        self.lines.close()
        self.lines.open(f"for (; {name} < {high}; {name}++)")
        self._inside({}, 1, None)
        self.lines.close()
        self.lines.close()

    def _inside(self, moved: dict[Var, Form], count: int, rows: Var | None) -> None:
        """The innermost loop, for so many rows."""
        turns = [_row(rows, n) if rows is not None else moved for n in range(count)]
        kept = self.inner is None or self.inner in self.over  # in registers
        if kept:
            self.lines.block()
            own = turns if rows is not None else turns[:1]
            for n, turn in enumerate(own):
                self.lines.add(f"{self.type} t{n} = {self._place(turn)};")
        if self.inner is not None:
            self.f.loop(self.inner, *self.ends[self.inner])
        self.elements.begin(self.lines)
        for n, turn in enumerate(turns):
            term = self._term(turn)
            if kept:
                self.lines.add(f"t{n} = {combined(self.value.opcode, f't{n}', term)};")
            elif n == 0:
                found = self._place({})
                self.lines.add(f"{self.type} sum = {combined(self.value.opcode, found, term)};")
            else:
                self.lines.add(f"sum = {combined(self.value.opcode, 'sum', term)};")
        if not kept:
            self.lines.add(f"{self._place({})} = sum;")
        if self.inner is not None:
            self.lines.close()
        if kept:
            for n, turn in enumerate(turns):
                self.lines.add(f"{self._place(turn)} = t{n};")
            self.lines.close()

    def _term(self, moved: dict[Var, Form]) -> str:
        terms = tuple(of_var(v) if v.extent > 1 else whole(0) for v in self.value.over)
        told = self.value.access(self.stage.forms, terms)
        found = []
        for operand, forms in zip(self.value.operands, told, strict=True):
            name = self.elements.at(operand, tuple(form.put(moved) for form in forms))
            same = self.f.plan.values.values[operand].dtype == self.value.dtype
            found.append(name if same else f"({self.type}){name}")
        if len(found) == 1:
            return self._named(found[0])
        return self._named(f"({found[0]} * {found[1]})")

    def _named(self, text: str) -> str:
        """A term that is read twice has a name."""
        if self.value.opcode not in ("minimum", "maximum"):
            return text
        return self.elements.named(self.type, text)


def _row(rows: Var, n: int) -> dict[Var, Form]:
    """The n-th row that is taken together with the first: known to be one of `rows`, so that
    indices under a reshape need no division to stay within it."""
    return {rows: of_var(Var(rows.name, rows.extent - n)) + n}
