"""Loops of a nest under a tile, and which of them a compiler jams or unrolls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import Span, Var
from embeddb.tensors.tiling.plan import Plan, Stage

#: Step of an index computation (`//`, `%`).
INDEX = "index"
#: A condition around a read beside padding or of one of two joined arrays; and one among more
#: arrays, which gcc 12 does not vectorise.
CHOICE, BRANCH = "choice", "branch"


@dataclass(frozen=True, eq=False)
class Access:
    """An element that each iteration reads or writes. `array` identifies the array; `terms` are, by
    dimension, the variables and their strides along it, None where a stride varies. `stage` is set
    for a buffer, whose sizes follow from the tile; else `dims` and `strides`, in elements. `share`
    is the fraction of iterations that access it."""

    array: str
    terms: tuple[tuple[tuple[Var, int | None], ...], ...]
    each: int
    written: bool
    share: float
    stage: Stage | None = None
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @cached_property
    def variables(self) -> frozenset[Var]:
        return frozenset(var for terms in self.terms for var, _ in terms)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on elements of `each` bytes, executed whenever one of `variables` changes."""

    opcode: str
    each: int
    variables: frozenset[Var]
    share: float


@dataclass(frozen=True, eq=False)
class Nest:
    """Loops over `loops`, outermost first; `summed` are those over the terms of a sum, `inner` the
    innermost of a sum, `blocked` the one that is run block by block. `depends` are the dimensions
    of the root in whose tile loops it lies."""

    loops: tuple[Var, ...]
    spans: dict[Var, Span]
    depends: frozenset[int]
    accesses: tuple[Access, ...]
    steps: tuple[Step, ...]
    summed: frozenset[Var] = frozenset()
    inner: Var | None = None
    blocked: Var | None = None

    @property
    def each(self) -> int:
        """Size in bytes of the widest elements."""
        return max((access.each for access in self.accesses), default=4)


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Trip counts of a loop, int64[c] each, with the fraction float64[c] of its runs; it may be 0.
Lengths = list[tuple[Ints, Floats]]


@dataclass(frozen=True, eq=False)
class Extents:
    """Extents of a kernel under c tiles: `tile_sizes` int64[c,r] along the dimensions of the root,
    `reduced` int64[c] the block lengths of sums, 0 for the whole."""

    plan: Plan
    tile_sizes: Ints
    reduced: Ints

    @classmethod
    def of(cls, plan: Plan, tiles: Sequence[Tile]) -> Extents:
        sizes = np.array([tile.sizes for tile in tiles], dtype=np.int64)
        reduced = np.array([tile.reduced for tile in tiles], dtype=np.int64)
        return cls(plan, sizes.reshape(len(tiles), len(plan.dims)), reduced)

    def __len__(self) -> int:
        return len(self.tile_sizes)

    def take(self, places: NDArray[np.intp]) -> Extents:
        """Extents of some of the tiles."""
        return Extents(self.plan, self.tile_sizes[places], self.reduced[places])

    @cached_property
    def sizes(self) -> Ints:
        """int64[c,r] of a whole tile."""
        return np.where(self.tile_sizes > 0, self.tile_sizes, np.array(self.plan.dims))

    @cached_property
    def counts(self) -> Ints:
        """int64[c,r]: number of tiles along each dimension."""
        return np.asarray(-(-np.array(self.plan.dims) // self.sizes))

    @cached_property
    def ends(self) -> Ints:
        """int64[c,r] of the last tile along each dimension."""
        return np.asarray(np.array(self.plan.dims) - (self.counts - 1) * self.sizes)

    def depth(self, depends: Iterable[int]) -> Ints:
        """int64[c]: number of tile loops, in the plan's order, around a nest with these
        dimensions."""
        depths = np.zeros(len(self), dtype=np.int64)
        for d in depends:
            at = self.plan.order.index(d) + 1
            depths = np.maximum(depths, np.where(self.tile_sizes[:, d] > 0, at, 0))
        return depths

    def turns(self, depth: Ints) -> Floats:
        """float64[c]: number of runs at that depth."""
        runs = np.ones(len(self))
        for at, d in enumerate(self.plan.order):
            runs *= np.where(at < depth, self.counts[:, d], 1)
        return runs

    def size(self, span: Span, covered: Collection[int] = ()) -> Ints:
        """int64[c] indices of a span, over all tiles along the `covered` dimensions."""
        dims = self.plan.dims
        sides = {d: dims[d] if d in covered else self.sizes[:, d] for d in span.depends}
        return self._size(span, sides)

    def lengths(self, span: Span) -> Lengths:
        """Trip counts of a loop over a span, in a whole tile and in the last."""
        whole = {d: self.sizes[:, d] for d in span.depends}
        trip_counts = [(self._size(span, whole), np.ones(len(self)))]
        for d in sorted(span.depends):
            uneven = self.ends[:, d] != self.sizes[:, d]
            if uneven.any():
                last = np.where(uneven, 1 / self.counts[:, d], 0.0)
                end = self._size(span, {**whole, d: self.ends[:, d]})
                trip_counts = [(n, share * (1 - last)) for n, share in trip_counts] + [(end, last)]
        return trip_counts

    def mean(self, span: Span) -> Floats:
        """float64[c]"""
        return np.asarray(np.sum([n * share for n, share in self.lengths(span)], axis=0))

    def _size(self, span: Span, sides: Mapping[int, int | Ints]) -> Ints:
        constant, by_side = span.length
        length = np.full(len(self), constant, dtype=np.int64)
        for d, by in by_side:
            length += by * sides[d]
        return np.minimum(np.maximum(length, 0), span.dim)


#: Number of rows jammed into one iteration of the loop around the innermost one.
ROWS = 4
#: Largest total trip count of nested loops that are unrolled completely.
_MOST_WRITTEN = 16
#: Class of a loop: one iteration; a constant small trip count; `ROWS` or more; fewer, but varying.
_ONE, _LONG, _UNEVEN = 1, ROWS + 1, ROWS + 2

#: Class of each loop.
Classes = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Loops:
    """The innermost loop, the one around it whose iterations are jammed by `ROWS`, unrolled loops
    inside with their trip counts, and the others, outermost first."""

    outside: tuple[Var, ...]
    rows: Var | None
    inner: Var | None
    written: tuple[tuple[Var, int], ...]

    def copies(self, variables: frozenset[Var], rows: int) -> float:
        """Copies of an operation on these variables in one iteration of the innermost loop."""
        times = math.prod(n for var, n in self.written if var in variables)
        return times * (rows if self.rows in variables else 1)

    @property
    def innermost(self) -> tuple[object, ...]:
        """Key that is equal where only outer loops differ."""
        return self.rows, self.inner, self.written

    def inside(self, at: int) -> frozenset[Var]:
        """Variables of all loops inside the first `at` of `outside`."""
        variables = {*self.outside[at:], *(var for var, _ in self.written)}
        return frozenset(variables | {var for var in (self.rows, self.inner) if var is not None})


def by_loops(nest: Nest, extents: Extents) -> Iterator[tuple[Loops, NDArray[np.intp]]]:
    """Loops of a nest, with the positions intp[p] of the tiles that have them."""
    classes = [_class_of(lengths(nest, var, extents)) for var in nest.loops]
    # Varying classes are packed into one number, which is faster than comparing rows. It fits,
    # since only tiled and blocked loops vary, for any rank.
    kind = np.zeros(len(extents), dtype=np.int64)
    for own in classes:
        if (own != own[:1]).any():
            kind = kind * (_UNEVEN + 1) + own
    _, first, of = np.unique(kind, return_index=True, return_inverse=True)
    same: dict[Loops, int] = {}
    numbers = []
    for at in first.tolist():
        by_var = {var: int(own[at]) for var, own in zip(nest.loops, classes, strict=True)}
        numbers.append(same.setdefault(_loops_of(nest, by_var), len(same)))
    loops_of = np.array(numbers)[of]
    for loops, number in same.items():
        yield loops, np.flatnonzero(loops_of == number)


def lengths(nest: Nest, var: Var, extents: Extents) -> Lengths:
    """Trip counts of a loop, with the fraction of its runs."""
    if var == nest.blocked:
        block, in_blocks = extents.reduced, blocked(nest, extents)
        if in_blocks.any():
            size = np.where(in_blocks, block, var.extent)
            blocks = -(-var.extent // size)
            last = np.where(in_blocks, 1 / blocks, 0.0)
            return [(size, 1 - last), (var.extent - (blocks - 1) * size, last)]
    return extents.lengths(nest.spans[var])


def blocked(nest: Nest, extents: Extents) -> NDArray[np.bool_]:
    """bool[c]: true if its longest sum is run block by block."""
    block, most = extents.reduced, 0 if nest.blocked is None else nest.blocked.extent
    return (block > 0) & (block < most)


def runs_of(nest: Nest, extents: Extents) -> Floats:
    """float64[c]: number of runs of a nest in the kernel."""
    around = extents.turns(extents.depth(nest.depends))
    if nest.blocked is None:
        return around
    blocks = -(-nest.blocked.extent // np.maximum(extents.reduced, 1))
    return np.asarray(around * np.where(blocked(nest, extents), blocks, 1))


def _class_of(trip_counts: Lengths) -> NDArray[np.int64]:
    # The largest trip count that occurs.
    most = np.max([np.where(share > 0, n, 0) for n, share in trip_counts], axis=0)
    same = trip_counts[0][1] == 1
    classes = np.where(most >= ROWS, _LONG, _UNEVEN)
    classes = np.where(same & (most <= ROWS), most, classes)
    return np.where(most <= 1, _ONE, classes)


def _loops_of(nest: Nest, classes: Classes) -> Loops:
    """Loops with more than one iteration."""
    order = [var for var in nest.loops if classes[var] != _ONE]
    left, written = _written_out(nest, order, classes)
    inner = left.pop() if left else None
    rows = _rows(nest, left, inner, classes)
    return Loops(tuple(var for var in left if var != rows), rows, inner, tuple(written.items()))


def _written_out(
    nest: Nest, order: Sequence[Var], classes: Classes
) -> tuple[list[Var], dict[Var, int]]:
    """Remaining loops, and short innermost ones that are unrolled, unless rows are jammed."""
    left, written = list(order), dict[Var, int]()
    if order and (_rows(nest, left[:-1], left[-1], classes) or _fourfold(nest, left[-1], classes)):
        return left, written
    while len(left) > 1:
        turns = classes[left[-1]]
        if turns > ROWS or turns * math.prod(written.values()) > _MOST_WRITTEN:
            break
        written[left.pop()] = turns
    return left, written


def _fourfold(nest: Nest, last: Var, classes: Classes) -> bool:
    """Return true if the innermost loop is jammed as rows: the one inside has one iteration."""
    return last != nest.inner and last in nest.summed and classes[last] in (ROWS, _LONG)


def _rows(nest: Nest, around: Sequence[Var], inner: Var | None, classes: Classes) -> Var | None:
    """The loop whose iterations are jammed; only in sums."""
    if not nest.summed or inner is None or inner != nest.inner or not around:
        return None
    last = around[-1]
    if (last in nest.summed) == (inner in nest.summed):
        return None
    return last if classes[last] in (ROWS, _LONG) else None
