"""Loop nests of a kernel that is computed tile by tile: a model of the C code that
`embeddb.kernels.tiles` generates from a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.roofline.loops import (
    BRANCH,
    CHOICE,
    INDEX,
    Access,
    Extents,
    Floats,
    Ints,
    Nest,
    Step,
    blocked,
)
from embeddb.tensors.roofline.machine import Cache
from embeddb.tensors.tensor_graph import DTYPES
from embeddb.tensors.tiling.forms import (
    Form,
    Forms,
    Part,
    Value,
    Var,
    indices_of,
    strides_of,
    whole_span,
)
from embeddb.tensors.tiling.plan import Looped, Plan, Stage, Write


def nests_of(plan: Plan) -> tuple[Nest, ...]:
    """Loop nests in the order of execution."""
    nests: list[Nest] = []
    for stage in plan.stages:
        summed, own = plan.values[stage.value].what == "sum", _Turn(plan)
        if not summed:
            own.computed(stage.value, stage.forms)
        own.keep(stage)  # of a sum, its initial value
        nests.append(own.nest(stage))
        if summed:
            nests.append(_summed(plan, stage))
    return (*nests, *(_written(plan, write) for write in plan.writes))


def _summed(plan: Plan, stage: Stage) -> Nest:
    value, own = plan.values[stage.value], _Turn(plan)
    own.read(own.buffer(stage, stage.forms))
    own.keep(stage)
    accessed = value.access(stage.forms, indices_of(value.over))
    needed = frozenset[Var]()
    for operand, forms in zip(value.operands, accessed, strict=True):
        needed |= own.at(operand, forms)
    over = tuple(v for v in value.over if v.extent > 1)
    turn = needed | own.of(stage.forms) | frozenset(over)
    own.steps.append(Step(value.opcode, DTYPES[value.dtype], turn, 1.0))
    return replace(
        own.nest(stage),
        loops=_sum_order(stage.loops, over, stage),
        spans=stage.by_var | {v: whole_span(v.extent) for v in over},
        summed=frozenset(over),
        inner=stage.inner,
        blocked=stage.blocked,
    )


def _sum_order(free: tuple[Var, ...], over: tuple[Var, ...], stage: Stage) -> tuple[Var, ...]:
    """Loop order of a sum, innermost last, after the jammed rows."""
    inner = [v for v in (*free, *over) if v == stage.inner]
    rest = [v for v in free if v not in inner]
    terms = sorted((v for v in over if v not in inner), key=lambda v: v == stage.blocked)
    if inner and inner[0] in over and rest:
        return (*rest[:-1], *terms, rest[-1], *inner)
    return (*rest, *terms, *inner)


def _written(plan: Plan, write: Write) -> Nest:
    shape, own = write.shape, _Turn(plan)
    own.at(write.value, write.forms)
    strides, each = strides_of(shape), DTYPES[shape.dtype]
    terms = tuple(map(_terms, write.forms))
    own.accesses.append(
        Access(f"o{write.output}", terms, each, True, 1.0, dims=shape.dims, strides=strides)
    )
    return own.nest(write)


class _Turn:
    """Accesses and steps of one iteration of a nest, without duplicates."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._values = plan, plan.values
        self.accesses: list[Access] = []
        self.steps: list[Step] = []
        self._known: dict[tuple[int, Forms], frozenset[Var]] = {}
        self._share = 1.0

    def nest(self, of: Looped) -> Nest:
        return Nest(of.loops, of.by_var, of.depends, tuple(self.accesses), tuple(self.steps))

    def read(self, access: Access) -> frozenset[Var]:
        self.accesses.append(access)
        return access.variables

    def keep(self, stage: Stage) -> None:
        self.accesses.append(replace(self.buffer(stage, stage.forms), written=True, share=1.0))

    def buffer(self, stage: Stage, forms: Forms) -> Access:
        each, terms = DTYPES[self._values[stage.value].dtype], tuple(map(_terms, forms))
        return Access(f"k{stage.value}", terms, each, False, self._share, stage=stage)

    def of(self, forms: Iterable[Form]) -> frozenset[Var]:
        """Variables of indices."""
        return frozenset(var for form in forms for var in form.variables)

    def at(self, place: int, forms: Forms) -> frozenset[Var]:
        """Read an element; returns the variables that it depends on."""
        stage = self.plan.staged.get(place)
        if stage is None:
            return self.computed(place, forms)
        key = place, forms
        if key not in self._known:
            self._indexed(forms)
            self._known[key] = self.read(self.buffer(stage, forms))
        return self._known[key]

    def computed(self, place: int, forms: Forms) -> frozenset[Var]:
        """Compute an element that is not buffered, or is to be buffered; returns its variables."""
        key = -1 - place, forms
        if key not in self._known:
            self._known[key] = self._computed(self._values[place], forms)
        return self._known[key]

    def _computed(self, value: Value, forms: Forms) -> frozenset[Var]:
        each = DTYPES[value.dtype]
        match value.what:
            case "given":
                self._indexed(forms)
                terms = tuple(map(_terms, forms))
                name, dims, strides = f"p{value.number}", value.dims, value.strides
                return self.read(
                    Access(name, terms, each, False, self._share, dims=dims, strides=strides)
                )
            case "number":
                return frozenset()
            case "iota":
                return self._step("convert", each, self.of((forms[value.number],)))
        indices = value.access(forms, ())
        pairs = list(zip(value.operands, indices, strict=True))
        match value.what:
            case "map":
                needed = [self.at(operand, at) for operand, at in pairs]
                return self._step(value.opcode, each, frozenset[Var]().union(*needed))
            case "pad":
                filled = self._padding(value, forms)
                needed = [self.at(operand, at) for operand, at in pairs]
                if not filled:
                    return needed[0]
                turn = frozenset[Var]().union(*needed, filled)
                return self._step(CHOICE, each, turn)
            case "join":
                opcode = BRANCH if len(pairs) > 2 else CHOICE
                return self._step(opcode, each, self._joined(value, pairs) | self.of(forms))
        return self.at(*pairs[0])

    def _padding(self, value: Value, forms: Forms) -> frozenset[Var]:
        """Variables that decide if an element is inside the operand."""
        dims = self._values[value.operands[0]].dims
        turn = frozenset[Var]()
        for d, form in enumerate(forms):
            low, high = (form + -value.low[d]).range()
            if low < 0 or high // (value.gap[d] + 1) >= dims[d] or value.gap[d]:
                turn |= form.variables
        return turn

    def _joined(self, value: Value, pairs: list[tuple[int, Forms]]) -> frozenset[Var]:
        """Read each part as often as its length."""
        before, needed = self._share, frozenset[Var]()
        for operand, at in pairs:
            part = self._values[operand].dims[value.number]
            self._share = before * part / value.dims[value.number]
            needed |= self.at(operand, at)
        self._share = before
        return needed

    def _step(self, opcode: str, each: int, turn: frozenset[Var]) -> frozenset[Var]:
        self.steps.append(Step(opcode, each, turn, self._share))
        return turn

    def _indexed(self, forms: Forms) -> None:
        for form in forms:
            for var, _ in form.terms:
                if isinstance(var, Part):
                    self.steps.append(Step(INDEX, 4, var.form.variables, self._share))


def _terms(form: Form) -> tuple[tuple[Var, int | None], ...]:
    return tuple((var, form.coef(var)) for var in sorted(form.variables, key=lambda v: v.name))


# Cache traffic of a nest of loops, from the reuse of its data.
#
# The working set of a loop level is all data that the loops inside it access. Where it fits a
# cache, the next iteration of the surrounding loop finds that data again; further out it does not.
# So an array costs its lines under the first loop whose iterations do not fit, once for each
# iteration of the loops around that. A kernel that fits as a whole finds its data from the previous
# call.
#
# Everything is for c tiles at once. Levels, from inside to outside, are those of the nest, then one
# for each loop over tiles of the plan; a loop that a tile does not have has one iteration.

_LINE = 64


@dataclass(frozen=True, slots=True)
class Touched:
    """Data of an array accessed under some loops, float64[l,c] by level: number of contiguous
    pieces, bytes of each, and distance in bytes between them."""

    pieces: Floats
    bytes: Floats
    apart: Floats

    def lines(self, cache: Cache) -> Floats:
        """Number of lines, for pieces of arbitrary alignment."""
        return self.pieces * np.maximum((self.bytes + cache.line) / cache.line - 0.25, 1.0)

    def held(self, cache: Cache) -> Floats:
        """Bytes of the cache that it occupies: more where its pieces map to the same sets."""
        needed = self.lines(cache) * cache.line
        if not cache.period:
            return needed
        apart = np.maximum(self.apart.astype(np.int64), 1)
        places = cache.period // np.gcd(apart, cache.period)
        covered = np.minimum(places * np.maximum(self.bytes, cache.line) / cache.period, 1.0)
        return np.where(self.pieces < 2, needed, needed / covered)


@dataclass(frozen=True, slots=True)
class Levels:
    """Data that each access of a nest touches per level; `turns` float64[l,c] iterations of a level
    form one of the next. The first `own` levels are the nest's."""

    touched: tuple[Touched, ...]
    turns: Floats
    own: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths and strides int64[c] of an array by dimension, in elements; `order`: by stride."""

    dims: tuple[Ints, ...]
    strides: tuple[Ints, ...]
    order: tuple[int, ...]

    def take(self, places: NDArray[np.intp]) -> Layout:
        """Layout under some of the tiles."""
        dims, strides = (tuple(n[places] for n in columns) for columns in (self.dims, self.strides))
        return Layout(dims, strides, self.order)


def layout_of(access: Access, extents: Extents) -> Layout:
    one = np.ones(len(extents), dtype=np.int64)
    if access.stage is None:
        order = sorted(range(len(access.dims)), key=lambda d: access.strides[d])
        dims, strides = ([n * one for n in values] for values in (access.dims, access.strides))
        return Layout(tuple(dims), tuple(strides), tuple(order))
    stage, step = access.stage, one
    sizes = [extents.size(span) for span in stage.spans]
    by_dimension = list(sizes)
    for d in reversed(stage.order):
        by_dimension[d] = step
        step = step * sizes[d]
    return Layout(tuple(sizes), tuple(by_dimension), tuple(reversed(stage.order)))


def touched(access: Access, layout: Layout, length: Mapping[Var, Ints]) -> Touched:
    """Data accessed while each variable takes so many consecutive values, int64[l,c]; one for a
    missing variable."""
    run, pieces, apart = (np.array([[n]]) for n in (1, 1.0, 0))
    whole = np.array([[access.each]])
    for d in layout.order:
        dim, stride = layout.dims[d], layout.strides[d]
        reach, count = np.ones((1, 1), np.int64), np.ones((1, 1), np.int64)
        for var, by in access.terms[d]:
            n = length.get(var, 1)
            count = count * n
            reach = reach + (n - 1) * (abs(by) if by is not None else dim)
        reach, count = np.minimum(reach, dim), np.minimum(count, dim)
        long, fewer = np.where(stride == 1, reach, count), np.minimum(count, reach)
        there = (fewer > 1) | (long > 1)
        joins = there & (stride == run) & (pieces == 1.0)
        lies_apart = there & ~joins
        run = np.where(joins, run * long, run)
        apart = np.where(lies_apart & (apart == 0), stride, apart)
        pieces = np.where(lies_apart, pieces * np.minimum(fewer, long), pieces)
        whole = whole * dim
    size = np.minimum(run * access.each, np.maximum(whole, access.each))
    away = (apart * access.each).astype(float)
    near = (away > 0) & (away < _LINE) & (pieces > 1)  # neighbours in one line
    joined = np.maximum(pieces * away / _LINE, 1.0)
    return Touched(
        np.where(near, joined, pieces), np.where(near, _LINE, size), np.where(near, _LINE, away)
    )


def levels_of(nest: Nest, extents: Extents, layouts: tuple[Layout, ...]) -> Levels:
    """Levels from an iteration of the innermost loop to the whole kernel: loops of the nest, its
    blocks of terms, the nest, then the tile loops around it."""
    turns, length = _turns(nest, extents), _lengths(nest, extents)
    each = zip(nest.accesses, layouts, strict=True)
    parts = tuple(_filled(touched(a, layout, length), turns.shape) for a, layout in each)
    return Levels(parts, turns, len(nest.loops) + 2)


def _turns(nest: Nest, extents: Extents) -> Floats:
    """float64[l,c]"""
    in_blocks, one = blocked(nest, extents), np.ones(len(extents))
    counts: list[Floats | Ints] = []
    for var in reversed(nest.loops):
        mean = extents.mean(nest.spans[var])
        if var == nest.blocked:
            mean = np.where(in_blocks, extents.reduced, mean)
        counts.append(np.maximum(mean, 1.0))
    terms = 1 if nest.blocked is None else nest.blocked.extent
    counts += [np.where(in_blocks, -(-terms // np.maximum(extents.reduced, 1)), 1), one]
    depth, order = extents.depth(nest.depends), extents.plan.order
    for at in reversed(range(len(order))):
        counts.append(np.where(at < depth, extents.counts[:, order[at]], 1))
    return np.stack([*counts, one]).astype(np.float64)


def _lengths(nest: Nest, extents: Extents) -> dict[Var, Ints]:
    """Number of consecutive values of each variable in one iteration of a level, int64[l,c]: one
    inside its own loop, then those of a block, of a tile, and of more and more tiles."""
    inside, one = list(reversed(nest.loops)), np.ones(len(extents), dtype=np.int64)
    order = list(reversed(extents.plan.order))
    by_var = {}
    for at, var in enumerate(inside):
        span = nest.spans[var]
        tile = extents.size(span)
        block = tile
        if var == nest.blocked:
            block = np.where(blocked(nest, extents), np.minimum(tile, extents.reduced), tile)
        tiles = [extents.size(span, order[:covered]) for covered in range(len(order) + 1)]
        rows = [*[one] * (at + 1), *[block] * (len(inside) - at), tile, *tiles]
        by_var[var] = np.maximum(np.stack(rows), 1)
    return by_var


def _filled(part: Touched, shape: tuple[int, int]) -> Touched:
    parts = (part.pieces, part.bytes, part.apart)
    return Touched(*(np.broadcast_to(np.asarray(one, np.float64), shape) for one in parts))


def held_by(nest: Nest, levels: Levels, cache: Cache) -> dict[str, Floats]:
    """Bytes of the cache that each array occupies, float64[l,c]."""
    by_array: dict[str, Floats] = {}
    for access, part in zip(nest.accesses, levels.touched, strict=True):
        occupied = part.held(cache)
        by_array[access.array] = np.maximum(by_array.get(access.array, 0.0), occupied)
    return by_array


def cycles_of(
    nest: Nest, levels: Levels, occupied: Floats, cache: Cache
) -> tuple[dict[str, Floats], Ints]:
    """Cycles float64[c] by array for data from beyond the cache, where `occupied` float64[l,c]
    bytes are needed; and int64[c] the first level that does not fit."""
    count = len(occupied)
    over = occupied > cache.bytes
    beyond = np.where(over.any(axis=0), over.argmax(axis=0), count)
    at = np.minimum(beyond, count - 1)[None]
    times = np.cumprod(levels.turns[::-1], axis=0)[::-1]
    turns = np.where(beyond < count, np.take_along_axis(times, at, axis=0)[0], 0.0)
    by_array: dict[str, Floats] = {}
    for access, part in zip(nest.accesses, levels.touched, strict=True):
        lines = np.take_along_axis(part.lines(cache), at, axis=0)[0]
        first = np.minimum(np.take_along_axis(part.pieces, at, axis=0)[0], lines)
        cycles = first * cache.other + (lines - first) * cache.next
        cycles = cycles * turns * access.share * (2 if access.written else 1)
        by_array[access.array] = np.maximum(by_array.get(access.array, 0.0), cycles)
    return by_array, beyond
