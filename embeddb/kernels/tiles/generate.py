"""C functions of a tensor kernel with a tile.

Loops over tiles are outermost, from the dimension with the largest stride to that with the
smallest. Buffers are computed as far outside as their dependences allow; then the part of each
result in the tile is written. Sums run over their longest dimension block by block, four rows at a
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.kernels import build as cpu_build
from embeddb.kernels.emitter import Lines, signature, step
from embeddb.kernels.tiles.expressions import C_TYPES, Elements, combined, form_text
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import Form, Forms, Span, Var, of_var, strides_of, whole
from embeddb.tensors.tiling.plan import Plan, Stage, Write, plan_of

#: Raised if the same tile gets other code: times of different generations are not mixed.
GENERATION = 3
#: Start of a file, before all functions.
PRELUDE = "#include <math.h>\n#include <stdint.h>\n"
FLAGS = ("-O3", "-ffast-math", "-fwrapv")
#: Rows of one iteration of the loop around the innermost one.
_JAMMED = 4


def flags() -> tuple[str, ...]:
    """Compiler flags."""
    return (*FLAGS, cpu_build.flags()[1])


def c_function(kernel: TensorGraph, tile: Tile, name: str) -> str:
    """`void NAME(...)` with pointers to the parameters in their order, to the outputs, and to the
    buffers (`arguments`); it needs `PRELUDE` before it.

    Raises: TensorError for a kernel without code.
    """
    return _Function(plan_of(kernel), tile, name).text()


def arguments(kernel: TensorGraph, tile: Tile) -> str:
    """Arguments of a call, from the array `a`: parameters, outputs, scratch memory."""
    plan = plan_of(kernel)
    count = len(kernel.parameters) + len(plan.kernel.outputs)
    parts, offset = [f"a[{at}]" for at in range(count)], 0
    for stage in plan.stages:
        parts.append(f"(void *)((char *)a[{count}] + {offset})")
        offset += plan.bytes(stage, plan.whole(tile.sizes))
    return ", ".join(parts)


class _Function:
    """Writer of one function."""

    def __init__(self, plan: Plan, tile: Tile, name: str) -> None:
        self.plan, self.tile, self.name = plan, tile, name
        self.sizes = plan.whole(tile.sizes)
        self.lines = Lines([])
        self.ends: dict[Var, Form] = {}
        for d, dim in enumerate(plan.dims):
            if not tile.sizes[d]:
                self.ends |= {Var(f"b{d}", dim): whole(0), Var(f"e{d}", dim + 1): whole(dim)}
        self.elements = Elements(plan, self.buffer)

    def text(self) -> str:
        self._at_depth(0)
        opened = 0
        for at, d in enumerate(self.plan.order):
            if not self.tile.sizes[d]:
                continue
            self._tiles(d)
            opened += 1
            self._at_depth(at + 1)
        for _ in range(opened):
            self.lines.close()
        head = signature(f"static void {self.name}", self._parameters())
        return "\n".join([*head, "{", *self.lines.text, "}\n"])

    def _parameters(self) -> list[str]:
        values = self.plan.values
        numbered = sorted((v.number, v.dtype) for v in values.values if v.what == "given")
        parameters = [f"const {C_TYPES[dtype]} *restrict p{number}" for number, dtype in numbered]
        for output, place in enumerate(values.outputs):
            parameters.append(f"{C_TYPES[values.values[place].dtype]} *restrict o{output}")
        for stage in self.plan.stages:
            dtype = values.values[stage.value].dtype
            parameters.append(f"{C_TYPES[dtype]} *restrict k{stage.value}")
        return parameters

    def _tiles(self, d: int) -> None:
        dim, size = self.plan.dims[d], self.tile.sizes[d]
        self.lines.open(f"for (int64_t b{d} = 0; b{d} < {dim}; b{d} += {size})")
        end = f"b{d} + {size}"
        if dim % size:
            end = f"{end} < {dim} ? {end} : {dim}"
        self.lines.add(f"const int64_t e{d} = {end};")

    def _at_depth(self, depth: int) -> None:
        for stage in self.plan.stages:
            if self.plan.depth(stage.depends, self.tile.sizes) == depth:
                self._stage(stage)
        for write in self.plan.writes:
            if self.plan.depth(write.depends, self.tile.sizes) == depth:
                self._write(write)

    # -- buffers -----------------------------------------------------------------------------------

    def bounds(self, span: Span) -> tuple[str, str]:
        """First index and end index as C, within the dimension."""
        low, high = span.low.put(self.ends), span.high.put(self.ends)
        first, last = form_text(low), form_text(high)
        if low.range()[0] < 0:
            first = f"({first} > 0 ? {first} : 0)" if low.terms else "0"
        if high.range()[1] > span.dim:
            last = f"({last} < {span.dim} ? {last} : {span.dim})" if high.terms else str(span.dim)
        return first, last

    def buffer(self, stage: Stage, forms: Forms) -> str:
        """C of an element of a buffer."""
        place: list[str] = []
        moved = whole(0)
        for d, stride in zip(stage.order, self._strides(stage), strict=True):
            moved = moved + forms[d] * stride
            low = self.bounds(stage.spans[d])[0]
            if low != "0":
                place.append(f" - {stride} * l{stage.value}_{d}")
        return f"k{stage.value}[{form_text(moved)}{''.join(place)}]"

    def _strides(self, stage: Stage) -> list[int]:
        """Strides of a buffer, by dimension in its memory order."""
        sizes = stage.sizes(self.sizes)
        inside = [sizes[d] for d in stage.order]
        return [math.prod(inside[at + 1 :]) for at in range(len(inside))]

    def _stage(self, stage: Stage) -> None:
        for d, span in enumerate(stage.spans):
            low, _ = self.bounds(span)
            if low != "0":
                self.lines.add(f"const int64_t l{stage.value}_{d} = {low};")
        value = self.plan.values.values[stage.value]
        self.lines.add(f"/* {value.opcode or 'a copy'} */")
        if value.what == "sum":
            _SumLoops(self, stage).write()
            return
        loops = [stage.vars[d] for d in stage.order if stage.vars[d].extent > 1]
        self.loops(loops, dict(zip(stage.vars, stage.spans, strict=True)))
        self.elements.begin(self.lines)
        element = self.elements.computed(stage.value, stage.forms)
        self.lines.add(f"{self.buffer(stage, stage.forms)} = {element};")
        self.close(len(loops))

    # -- results -----------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        shape = self.plan.kernel.operations[self.plan.kernel.outputs[write.output]].shape
        strides = strides_of(shape)
        place = whole(0)
        for form, stride in zip(write.forms, strides, strict=True):
            place = place + form * stride
        spans = dict(zip(write.vars, write.spans, strict=True))
        loops = sorted(write.vars, key=lambda v: -(place.coef(v) or 0))
        self.lines.add("/* the result */")
        self.loops(loops, spans)
        self.elements.begin(self.lines)
        element = self.elements.at(write.value, write.forms)
        self.lines.add(f"o{write.output}[{form_text(place)}] = {element};")
        self.close(len(loops))

    # -- loops -------------------------------------------------------------------------------------

    def loops(self, variables: Sequence[Var], spans: dict[Var, Span]) -> None:
        for var in variables:
            self.loop(var, *self.bounds(spans[var]))

    def loop(self, var: Var, low: str, high: str, by: int = 1) -> None:
        name = var.name
        self.lines.open(f"for (int64_t {name} = {low}; {name} < {high}; {step(name, by)})")

    def close(self, count: int) -> None:
        for _ in range(count):
            self.lines.close()


class _SumLoops:
    """Loops of one sum: over blocks of its longest dimension, over its elements, over the other
    terms, over the jammed rows, and the innermost one."""

    def __init__(self, function: _Function, stage: Stage) -> None:
        self.f, self.stage = function, stage
        self.lines, self.elements = function.lines, function.elements
        self.value = function.plan.values.values[stage.value]
        self.type = C_TYPES[self.value.dtype]
        self.free = [stage.vars[d] for d in stage.order if stage.vars[d].extent > 1]
        self.over = [v for v in self.value.over if v.extent > 1]
        self.ends = {
            var: function.bounds(span) for var, span in zip(stage.vars, stage.spans, strict=True)
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
        """Write the innermost loop for `count` rows."""
        turns = [_row(rows, n) if rows is not None else moved for n in range(count)]
        in_registers = self.inner is None or self.inner in self.over
        if in_registers:
            self.lines.block()
            own = turns if rows is not None else turns[:1]
            for n, turn in enumerate(own):
                self.lines.add(f"{self.type} t{n} = {self._place(turn)};")
        if self.inner is not None:
            self.f.loop(self.inner, *self.ends[self.inner])
        self.elements.begin(self.lines)
        for n, turn in enumerate(turns):
            term = self._term(turn)
            if in_registers:
                self.lines.add(f"t{n} = {self._combined(f't{n}', term)};")
            elif n == 0:
                partial = self._place({})
                self.lines.add(f"{self.type} sum = {self._combined(partial, term)};")
            else:
                self.lines.add(f"sum = {self._combined('sum', term)};")
        if not in_registers:
            self.lines.add(f"{self._place({})} = sum;")
        if self.inner is not None:
            self.lines.close()
        if in_registers:
            for n, turn in enumerate(turns):
                self.lines.add(f"{self._place(turn)} = t{n};")
            self.lines.close()

    def _combined(self, partial: str, term: str) -> str:
        return combined(self.value.opcode, self.value.dtype, partial, term)

    def _term(self, moved: dict[Var, Form]) -> str:
        terms = tuple(of_var(v) if v.extent > 1 else whole(0) for v in self.value.over)
        accessed = self.value.access(self.stage.forms, terms)
        factors = []
        for operand, forms in zip(self.value.operands, accessed, strict=True):
            name = self.elements.at(operand, tuple(form.put(moved) for form in forms))
            same = self.f.plan.values.values[operand].dtype == self.value.dtype
            factors.append(name if same else f"({self.type}){name}")
        if len(factors) == 1:
            return self._named(factors[0])
        return self._named(f"({factors[0]} * {factors[1]})")

    def _named(self, text: str) -> str:
        """A term; one that is read twice gets a variable."""
        if self.value.opcode not in ("minimum", "maximum"):
            return text
        return self.elements.named(self.type, text)


def _row(rows: Var, n: int) -> dict[Var, Form]:
    """The n-th jammed row after the first, bounded by the extent of `rows`, so that indices under a
    reshape need no division."""
    return {rows: of_var(Var(rows.name, rows.extent - n)) + n}
