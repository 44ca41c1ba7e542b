"""C functions of a tensor kernel with a tile.

Loops over tiles are outermost, from the dimension with the largest stride to that with the
smallest. Buffers are computed as far outside as their dependences allow; then the part of each
result in the tile is written. Sums run over their longest dimension block by block, four rows at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddb.kernels import build as cpu_build
from embeddb.kernels.emitter import Lines, signature, step
from embeddb.kernels.tiles.expressions import C_TYPES, Elements, combined, form_text
from embeddb.tensors.tensor_graph import Shape, TensorGraph
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import (
    ZERO,
    Form,
    Forms,
    Span,
    Var,
    indices_of,
    of_var,
    position,
    strides_of,
    whole,
)
from embeddb.tensors.tiling.plan import Looped, Plan, Stage, Write, plan_of

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
                self.ends |= {Var(f"b{d}", dim): ZERO, Var(f"e{d}", dim + 1): whole(dim)}
        self.elements = Elements(plan, self.buffer)

    def text(self) -> str:
        self._at_depth(0)
        for at, d in enumerate(self.plan.order):
            if self.tile.sizes[d]:
                self._tiles(d)
                self._at_depth(at + 1)
        self.lines.close(sum(size > 0 for size in self.tile.sizes))
        head = signature(f"static void {self.name}", self._parameters())
        return "\n".join([*head, "{", *self.lines.text, "}\n"])

    def _parameters(self) -> list[str]:
        kernel, values = self.plan.kernel, self.plan.values
        types = [C_TYPES[operation.shape.dtype] for operation in kernel.operations]
        return [
            *(f"const {types[at]} *restrict p{n}" for n, at in enumerate(kernel.parameters)),
            *(f"{types[at]} *restrict o{n}" for n, at in enumerate(kernel.outputs)),
            *(
                f"{C_TYPES[values[stage.value].dtype]} *restrict k{stage.value}"
                for stage in self.plan.stages
            ),
        ]

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
        strides = strides_of(Shape("", stage.sizes(self.sizes), stage.order[::-1]))
        lows = [
            f" - {strides[d]} * l{stage.value}_{d}"
            for d in stage.order
            if self.bounds(stage.spans[d])[0] != "0"
        ]
        return f"k{stage.value}[{form_text(position(forms, strides))}{''.join(lows)}]"

    def _stage(self, stage: Stage) -> None:
        for d, span in enumerate(stage.spans):
            low, _ = self.bounds(span)
            if low != "0":
                self.lines.add(f"const int64_t l{stage.value}_{d} = {low};")
        value = self.plan.values[stage.value]
        self.lines.add(f"/* {value.opcode or 'a copy'} */")
        if value.what == "sum":
            _SumLoops(self, stage).write()
            return
        self._stored(stage, self.buffer(stage, stage.forms), self.elements.computed)

    # -- results -----------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        place = position(write.forms, strides_of(write.shape))
        self.lines.add("/* the result */")
        self._stored(write, f"o{write.output}[{form_text(place)}]", self.elements.at)

    def _stored(self, of: Looped, to: str, element: Callable[[int, Forms], str]) -> None:
        """Loops around the assignment of each element."""
        for var in of.loops:
            self.loop(var, *self.bounds(of.by_var[var]))
        self.elements.begin(self.lines)
        self.lines.add(f"{to} = {element(of.value, of.forms)};")
        self.lines.close(len(of.loops))

    def loop(self, var: Var, low: str, high: str, by: int = 1) -> None:
        name = var.name
        self.lines.open(f"for (int64_t {name} = {low}; {name} < {high}; {step(name, by)})")


class _SumLoops:
    """Loops of one sum: over blocks of its longest dimension, over its elements, over the other
    terms, over the jammed rows, and the innermost one."""

    def __init__(self, function: _Function, stage: Stage) -> None:
        self.f, self.stage = function, stage
        self.lines, self.elements = function.lines, function.elements
        self.value = function.plan.values[stage.value]
        self.type = C_TYPES[self.value.dtype]
        self.free = stage.loops
        self.over = [v for v in self.value.over if v.extent > 1]
        self.ends = {var: function.bounds(span) for var, span in stage.by_var.items()}
        self.ends |= {v: ("0", str(v.extent)) for v in self.over}
        self.sizes = dict(zip(stage.vars, stage.sizes(function.sizes), strict=True))
        self.inner = stage.inner

    def write(self) -> None:
        self._start()
        blocked, size = self.stage.blocked, self.f.tile.reduced
        if blocked is None or not 0 < size < blocked.extent:
            self._terms()
        else:
            name, end = f"c_{blocked.name}", blocked.extent
            self.lines.open(f"for (int64_t {name} = 0; {name} < {end}; {name} += {size})")
            last = f"{name} + {size}"
            if end % size:
                last = f"({last} < {end} ? {last} : {end})"
            self.ends[blocked] = name, last
            self._terms()
            self.lines.close()

    def _start(self) -> None:
        for var in self.free:
            self.f.loop(var, *self.ends[var])
        self.elements.begin(self.lines)
        start = "0"
        if self.value.start is not None:
            start = self.elements.at(self.value.start, ())
        self.lines.add(f"{self._place({})} = {start};")
        self.lines.close(len(self.free))

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
            self._inside([{}])
        else:
            self._jammed(rows)
        self.lines.close(len(outside))

    def _jammed(self, rows: Var) -> None:
        low, high = self.ends[rows]
        name = rows.name
        self.lines.block()
        self.lines.add(f"int64_t {name} = {low};")
        self.lines.open(f"for (; {name} + {_JAMMED - 1} < {high}; {name} += {_JAMMED})")
        # Each row is bounded by the extent, so that indices under a reshape need no division.
        self._inside([{rows: of_var(Var(name, rows.extent - n)) + n} for n in range(_JAMMED)])
        self.lines.close()
        self.lines.open(f"for (; {name} < {high}; {name}++)")
        self._inside([{}])
        self.lines.close(2)

    def _inside(self, turns: Sequence[dict[Var, Form]]) -> None:
        """Write the innermost loop for each of some rows: substitutions for the variable."""
        in_registers = self.inner is None or self.inner in self.over
        if in_registers:
            self.lines.block()
            for n, turn in enumerate(turns):
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
        accessed = self.value.access(self.stage.forms, indices_of(self.value.over))
        factors = []
        for operand, forms in zip(self.value.operands, accessed, strict=True):
            name = self.elements.at(operand, tuple(form.put(moved) for form in forms))
            same = self.f.plan.values[operand].dtype == self.value.dtype
            factors.append(name if same else f"({self.type}){name}")
        term = factors[0] if len(factors) == 1 else f"({factors[0]} * {factors[1]})"
        # It is read twice.
        twice = self.value.opcode in ("minimum", "maximum")
        return self.elements.named(self.type, term) if twice else term
