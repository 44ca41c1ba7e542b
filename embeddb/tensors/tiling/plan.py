"""Buffers in scratch memory for tile-by-tile computation of a kernel, and their extents.

Buffered are sums, operands that a sum reads often and would compute or gather each time, and
expensive functions that are needed at several indices. Everything else is computed where it is
read. A buffer covers the part that one tile of the root needs: along some dimensions a part that
moves with the tile, along others the whole dimension (the row under a softmax).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import DTYPES, Shape, TensorGraph
from embeddb.tensors.tiling.forms import (
    ZERO,
    Form,
    Forms,
    Span,
    Value,
    Var,
    identity,
    indices_of,
    of_var,
    position,
    span_of,
    strides_of,
    tile_span,
    whole_span,
)
from embeddb.tensors.tiling.kernel_values import values_of

#: Smallest number of reads per element for which an operand is copied.
_WORTH = 4
#: Relative cost of strided reads, of copies, and of a loop too short for vectors.
_STRIDED, _COPIED, _SHORT = 8.0, 2.0, 6.0
_VECTOR = 8


def _cost(forms: Sequence[Form], strides: Sequence[int], var: Var) -> float:
    step = 0
    for form, stride in zip(forms, strides, strict=True):
        coef = form.coef(var)
        if coef is None:
            return _STRIDED
        step += coef * stride
    return 0.0 if step == 0 else 1.0 if step == 1 else _STRIDED


#: Alignment of buffers in bytes.
_ALIGNED = 64
#: Functions that are buffered when they are needed twice.
_COSTLY = frozenset(
    """
    atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power sine
    tan tanh
    """.split()  # noqa: SIM905 - a table of words
)


@dataclass(frozen=True, eq=False)
class Looped:
    """A value computed at the indices `forms`, for all `vars`, over `spans`, one for each."""

    value: int
    vars: tuple[Var, ...]
    forms: Forms
    spans: tuple[Span, ...]

    @property
    def depends(self) -> frozenset[int]:
        return frozenset(d for span in self.spans for d in span.depends)

    @property
    def by_var(self) -> dict[Var, Span]:
        return dict(zip(self.vars, self.spans, strict=True))

    @property
    def loops(self) -> tuple[Var, ...]:
        """Variables of more than one value, outermost first."""
        return self.vars


@dataclass(frozen=True, eq=False)
class Stage(Looped):
    """A buffered value, with a variable for each of its dimensions; `order` are its dimensions in
    memory, outermost first. Of a sum, `inner` is the variable of the innermost loop, and `blocked`
    that of the longest loop over terms; None without a loop."""

    inner: Var | None
    order: tuple[int, ...]
    blocked: Var | None = None

    @property
    def loops(self) -> tuple[Var, ...]:
        return tuple(self.vars[d] for d in self.order if self.vars[d].extent > 1)

    def sizes(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Number of elements by dimension, in the order of its value."""
        return tuple(span.size(tile) for span in self.spans)


@dataclass(frozen=True, eq=False)
class Write(Looped):
    """An output, of the given shape: `vars` are those of its loops, outermost first."""

    output: int
    shape: Shape


@dataclass(frozen=True, eq=False)
class Plan:
    """`values` and `stages` are in topological order. `dims` are those of the root, the largest
    output, `order` its dimensions by descending stride: the order of the loops over tiles."""

    kernel: TensorGraph
    values: tuple[Value, ...]
    dims: tuple[int, ...]
    order: tuple[int, ...]
    stages: tuple[Stage, ...]
    writes: tuple[Write, ...]

    @cached_property
    def staged(self) -> dict[int, Stage]:
        return {stage.value: stage for stage in self.stages}

    @cached_property
    def reduced(self) -> int:
        """Length of the longest dimension of a sum, which `tr` blocks."""
        blocked = [stage.blocked.extent for stage in self.stages if stage.blocked is not None]
        return max(blocked, default=1)

    def whole(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a tile with the whole dimension in place of 0."""
        return tuple(t or dim for t, dim in zip(tile, self.dims, strict=True))

    @cached_property
    def scratch(self) -> int:
        """Bytes of all buffers of the untiled kernel: no tile needs more."""
        return sum(self.bytes(stage, self.dims) for stage in self.stages)

    def bytes(self, stage: Stage, sizes: Sequence[int]) -> int:
        """Size of one buffer in bytes, rounded up."""
        size = math.prod(stage.sizes(sizes)) * DTYPES[self.values[stage.value].dtype]
        return -(-size // _ALIGNED) * _ALIGNED

    def blocks(self, tile: Sequence[int]) -> int:
        return math.prod(-(-d // t) for d, t in zip(self.dims, self.whole(tile), strict=True))

    def depth(self, depends: Iterable[int], tile: Sequence[int]) -> int:
        """Number of loops over dimensions around it, in the order of `order`."""
        open_ = [self.order.index(d) + 1 for d in depends if tile[d]]
        return max(open_, default=0)


def plan_of(kernel: TensorGraph) -> Plan:
    """Plan of a kernel. Raises: TensorError, one line that names an unsupported operation."""
    if kernel.kind != "kernel":
        raise TensorError("a program has no tiles: it is cut into kernels first")
    return _Planning(kernel).plan()


class _Planning:
    """Values from the results to the parameters, each with the indices at which it is needed."""

    def __init__(self, kernel: TensorGraph) -> None:
        self.kernel = kernel
        self.values, self.outputs = values_of(kernel)
        self.needed: list[dict[Forms, None]] = [{} for _ in self.values]
        self.copied: set[int] = set()
        self.last: dict[int, Var] = {}
        self.spans: dict[Var, Span] = {}
        self.stages: list[Stage] = []
        self.writes: list[Write] = []

    def plan(self) -> Plan:
        shape = self.kernel.root
        dims = shape.dims or (1,)
        order = tuple(reversed(shape.layout)) or (0,)
        vars_, forms = identity(dims, "i")
        self.spans = {v: tile_span(d, n) for d, (v, n) in enumerate(zip(vars_, dims, strict=True))}
        self.root = (shape.dims, vars_, forms if shape.dims else (), order)
        for output, value in enumerate(self.outputs):
            if self.values[value].dims == shape.dims:
                self._write(output, value, vars_ if shape.dims else (), self.root[2])
        for place in reversed(range(len(self.values))):
            for output, value in enumerate(self.outputs):
                if value == place and self.values[value].dims != shape.dims:
                    self._write_beside(output, value)
            if self.needed[place]:
                self._place(place)
        stages = tuple(reversed(self.stages))
        return Plan(self.kernel, self.values, dims, order, stages, tuple(self.writes))

    def _write(self, output: int, value: int, vars_: tuple[Var, ...], forms: Forms) -> None:
        shape = self.kernel.operations[self.kernel.outputs[output]].shape
        place = position(forms, strides_of(shape))
        looped = sorted((v for v in vars_ if v.extent > 1), key=lambda v: -(place.coef(v) or 0))
        spans = tuple(self.spans[v] for v in looped)
        self.writes.append(Write(value, tuple(looped), forms, spans, output, shape))
        self.needed[value][forms] = None

    def _write_beside(self, output: int, value: int) -> None:
        """Write an output of another shape than the root: along the tile where its dimensions are
        the first of the root's, else whole."""
        dims = self.values[value].dims
        _, vars_, _, order = self.root
        first = [d for d in order if vars_[d].extent > 1]
        long = [n for n in dims if n > 1]
        if long == [vars_[d].extent for d in first[: len(long)]] and list(order) == sorted(order):
            own = iter(vars_[d] for d in first)
            forms = tuple(of_var(next(own)) if n > 1 else ZERO for n in dims)
            used = tuple(vars_[d] for d in first[: len(long)])
        else:
            used, forms = identity(dims, f"o{output}_")
            self.spans |= {v: whole_span(v.extent) for v in used}
        self._write(output, value, used, forms)

    # -- one value ---------------------------------------------------------------------------------

    def _place(self, place: int) -> None:
        value = self.values[place]
        needed = list(self.needed[place])
        costly = value.what == "map" and value.opcode in _COSTLY and bool(value.dims)
        if value.what == "sum" or place in self.copied or (costly and len(needed) > 1):
            self._stage(place, value, needed)
        else:
            for forms in needed:
                self._need(value, forms, ())

    def _need(self, value: Value, forms: Forms, terms: Forms) -> list[Forms]:
        operand_forms = value.access(forms, terms)
        for operand, at in zip(value.operands, operand_forms, strict=True):
            self.needed[operand][at] = None
        if value.start is not None:
            self.needed[value.start][()] = None
        return operand_forms

    def _stage(self, place: int, value: Value, needed: list[Forms]) -> None:
        spans = []
        for d, dim in enumerate(value.dims):
            candidates = {span_of(forms[d], self.spans, dim) for forms in needed}
            spans.append(candidates.pop() if len(candidates) == 1 else whole_span(dim))
        vars_, forms = identity(value.dims, f"s{place}_")
        self.spans |= dict(zip(vars_, spans, strict=True))
        self.spans |= {v: whole_span(v.extent) for v in value.over}
        operand_forms = self._need(value, forms, indices_of(value.over))
        inner, blocked = self.last.get(place), None
        if value.what == "sum":
            inner = self._innermost(value, vars_, operand_forms)
            self._keep(value, operand_forms, vars_, inner)
            long = [v for v in value.over if v.extent > 1]
            blocked = max(long, key=lambda v: v.extent, default=None)
        at = vars_.index(inner) if inner in vars_ else len(vars_) - 1
        order = (*(d for d in range(len(vars_)) if d != at), at) if vars_ else ()
        self.stages.append(Stage(place, vars_, forms, tuple(spans), inner, order, blocked))

    # -- copies for a sum --------------------------------------------------------------------------

    def _keep(
        self, value: Value, operand_forms: list[Forms], vars_: tuple[Var, ...], inner: Var | None
    ) -> None:
        """Decide which operands are worth a copy that the inner loop reads contiguously."""
        for operand, forms in zip(value.operands, operand_forms, strict=True):
            if self._worth(value, vars_, operand, forms, inner):
                self.copied.add(operand)
                along = [d for d, f in enumerate(forms) if inner is not None and f.coef(inner) != 0]
                if along:  # the dimension of the inner loop is the last one of the copy
                    dims = self.values[operand].dims
                    self.last[operand] = identity(dims, f"s{operand}_")[0][along[-1]]

    # -- loop orders of sums -----------------------------------------------------------------------

    def _innermost(
        self, value: Value, vars_: tuple[Var, ...], operand_forms: list[Forms]
    ) -> Var | None:
        """The best loop for vectorisation."""
        candidates = [v for v in (*value.over, *vars_) if v.extent > 1]

        def cost(var: Var) -> float:
            total = 1.0 if var in vars_ else 0.5
            for operand, forms in zip(value.operands, operand_forms, strict=True):
                total += self._read_cost(operand, forms, var, self._reuse(value, vars_, operand))
            return total + (_SHORT if var.extent < _VECTOR else 0.0)

        return min(reversed(candidates), key=cost, default=None)

    def _read_cost(self, place: int, forms: Forms, var: Var, reuse: float) -> float:
        """Cost of reading one operand along a loop: 0 where it is invariant."""
        if not any(var in form.variables for form in forms):
            return 0.0
        value = self.values[place]
        match value.what:
            case "given":
                return _cost(forms, value.strides, var)
            case "sum":
                return _cost(forms, strides_of(Shape(value.dtype, value.dims)), var)
            case "hold":
                cost = self._read_cost(value.operands[0], forms, var, reuse)
                if reuse < _WORTH:
                    return cost
                return 1.0 if self._computed(value.operands[0]) else min(cost, _COPIED)
            case "number" | "iota":
                return 0.0
        operand_forms = value.access(forms, ())
        return max(
            self._read_cost(o, f, var, reuse)
            for o, f in zip(value.operands, operand_forms, strict=True)
        )

    def _reuse(self, value: Value, vars_: tuple[Var, ...], operand: int) -> float:
        """Number of reads of each element of an operand."""
        turns = math.prod(v.extent for v in (*vars_, *value.over))
        return turns / max(self.values[operand].elements, 1)

    def _computed(self, place: int) -> bool:
        """Return true if reading it takes more than one access to a parameter or a buffer."""
        value = self.values[place]
        if value.what in ("given", "number", "iota", "sum"):
            return False
        if value.what in ("view", "hold"):
            return self._computed(value.operands[0])
        return True

    def _worth(
        self, value: Value, vars_: tuple[Var, ...], operand: int, forms: Forms, inner: Var | None
    ) -> bool:
        """Return true if an operand of a sum is worth a copy: read often, and not contiguously."""
        source = self.values[operand]
        if source.what != "hold" or self._reuse(value, vars_, operand) < _WORTH:
            return False
        below = source.operands[0]
        if self._computed(below):
            return True
        return inner is not None and self._read_cost(below, forms, inner, 1) >= _STRIDED
