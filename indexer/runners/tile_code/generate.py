"""From a kernel and a tile to a function of C.

Loops over tiles stand outside, from the dimension with the largest stride to that with the
smallest. What is kept in a buffer is computed as far outside as what it depends on allows; then
the part of each result that belongs to the tile is written. Sums run over their longest dimension
block by block, four rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.kernels.emitter import Lines, signature, step
from embeddb.tensors.computation import Computation
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import Form, Forms, Var, whole
from embeddb.tensors.tiling.plan import Plan, Stage, Write, plan_of
from embeddb.tensors.tiling.spans import Span
from embeddb.tensors.tiling.values import strides_of
from indexer.runners.tile_code.elements import Elements
from indexer.runners.tile_code.expressions import C_TYPES, form_text
from indexer.runners.tile_code.sum_loops import SumLoops

__all__ = ["GENERATION", "PRELUDE", "arguments", "c_function"]

#: Raised when the same tile becomes other code: times of different generations are not mixed.
GENERATION = 3
#: What stands once above all functions of a file.
PRELUDE = "#include <math.h>\n#include <stdint.h>\n"


def c_function(kernel: Computation, tile: Tile, name: str) -> str:
    """`void NAME(...)`, which takes pointers to the parameters in their order, to the outputs, and
    to the buffers (`arguments`), and needs `PRELUDE` above it.

    Raises: TensorError for a kernel of which there is no code.
    """
    return _Function(plan_of(kernel), tile, name).text()


def arguments(kernel: Computation, tile: Tile) -> str:
    """What a call of it is given, out of `a`: parameters, outputs, scratch memory."""
    plan = plan_of(kernel)
    count = len(kernel.parameters) + len(plan.kernel.outputs)
    told, offset = [f"a[{at}]" for at in range(count)], 0
    for stage in plan.stages:
        told.append(f"(void *)((char *)a[{count}] + {offset})")
        offset += plan.bytes(stage, plan.whole(tile.sizes))
    return ", ".join(told)


class _Function:
    """One function, as it is written."""

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
        return "\n".join([*head, "{", *self.lines.told, "}\n"])

    def _parameters(self) -> list[str]:
        values = self.plan.values
        given = sorted((v.number, v.dtype) for v in values.values if v.what == "given")
        found = [f"const {C_TYPES[dtype]} *restrict p{number}" for number, dtype in given]
        for output, place in enumerate(values.outputs):
            found.append(f"{C_TYPES[values.values[place].dtype]} *restrict o{output}")
        for stage in self.plan.stages:
            dtype = values.values[stage.value].dtype
            found.append(f"{C_TYPES[dtype]} *restrict k{stage.value}")
        return found

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

    def _ends(self, span: Span) -> tuple[str, str]:
        """Where it begins and ends, within what there is."""
        low, high = span.low.put(self.ends), span.high.put(self.ends)
        first, last = form_text(low), form_text(high)
        if low.range()[0] < 0:
            first = f"({first} > 0 ? {first} : 0)" if low.terms else "0"
        if high.range()[1] > span.dim:
            last = f"({last} < {span.dim} ? {last} : {span.dim})" if high.terms else str(span.dim)
        return first, last

    def buffer(self, stage: Stage, forms: Forms) -> str:
        """One of its elements."""
        place: list[str] = []
        moved = whole(0)
        for d, stride in zip(stage.order, self._strides(stage), strict=True):
            moved = moved + forms[d] * stride
            low = self._ends(stage.spans[d])[0]
            if low != "0":
                place.append(f" - {stride} * l{stage.value}_{d}")
        return f"k{stage.value}[{form_text(moved)}{''.join(place)}]"

    def _strides(self, stage: Stage) -> list[int]:
        """By dimension in the order that they lie in."""
        sizes = stage.sizes(self.sizes)
        inside = [sizes[d] for d in stage.order]
        return [math.prod(inside[at + 1 :]) for at in range(len(inside))]

    def _stage(self, stage: Stage) -> None:
        for d, span in enumerate(stage.spans):
            low, _ = self._ends(span)
            if low != "0":
                self.lines.add(f"const int64_t l{stage.value}_{d} = {low};")
        value = self.plan.values.values[stage.value]
        self.lines.add(f"/* {value.opcode or 'a copy'} */")
        if value.what == "sum":
            SumLoops(self, stage).write()
            return
        loops = [stage.vars[d] for d in stage.order if stage.vars[d].extent > 1]
        self.loops(loops, dict(zip(stage.vars, stage.spans, strict=True)))
        self.elements.begin(self.lines)
        found = self.elements.computed(stage.value, stage.forms)
        self.lines.add(f"{self.buffer(stage, stage.forms)} = {found};")
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
        found = self.elements.at(write.value, write.forms)
        self.lines.add(f"o{write.output}[{form_text(place)}] = {found};")
        self.close(len(loops))

    # -- loops -------------------------------------------------------------------------------------

    def loops(self, variables: Sequence[Var], spans: dict[Var, Span]) -> None:
        for var in variables:
            self.loop(var, *self._ends(spans[var]))

    def ends_of(self, span: Span) -> tuple[str, str]:
        return self._ends(span)

    def loop(self, var: Var, low: str, high: str, by: int = 1) -> None:
        name = var.name
        self.lines.open(f"for (int64_t {name} = {low}; {name} < {high}; {step(name, by)})")

    def close(self, count: int) -> None:
        for _ in range(count):
            self.lines.close()
