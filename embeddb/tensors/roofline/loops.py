"""Which loops of a nest turn under a tile, and which of them a compiler takes together or writes
out."""

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

#: A part of a form (`//`, `%`) as a step.
INDEX = "index"
#: A condition, around what is read beside a padding or of one of two joined arrays; and one of more
#: arrays, of which gcc 12 makes no vectors.
CHOICE, BRANCH = "choice", "branch"


@dataclass(frozen=True, eq=False)
class Access:
    """An element that each turn reads or writes. `array` tells arrays apart; `terms` are, by
    dimension of the array, the variables and by what they move along it, or None where that is not
    the same everywhere. `stage` is given where the array is a buffer, whose sizes follow from the
    tile; else `dims` and `strides`, in elements. `share` of the turns make it."""

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
    """An operation on elements of so many bytes, made anew whenever one of `variables` moves."""

    opcode: str
    each: int
    variables: frozenset[Var]
    share: float


@dataclass(frozen=True, eq=False)
class Nest:
    """Loops over `loops`, from outside; `summed` are those over the terms of a sum, `inner` the
    innermost of a sum, `blocked` the one that is run block by block. `depends` are the dimensions
    of the root whose tiles it stands in."""

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
        """Bytes of the widest elements."""
        return max((access.each for access in self.accesses), default=4)


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: How long a loop is, int64[c] each, and in which share float64[c] of its runs; shares may be 0.
Lengths = list[tuple[Ints, Floats]]


def longest(told: Lengths) -> Ints:
    """int64[c]: of the lengths that there are."""
    return np.asarray(np.max([np.where(share > 0, n, 0) for n, share in told], axis=0))


@dataclass(frozen=True, eq=False)
class Extents:
    """Of a kernel under c tiles: `told` int64[c,r] are their sizes along the dimensions of the
    root, `reduced` int64[c] the blocks of sums, 0 being the whole."""

    plan: Plan
    told: Ints
    reduced: Ints

    @classmethod
    def of(cls, plan: Plan, tiles: Sequence[Tile]) -> Extents:
        told = np.array([tile.sizes for tile in tiles], dtype=np.int64)
        reduced = np.array([tile.reduced for tile in tiles], dtype=np.int64)
        return cls(plan, told.reshape(len(tiles), len(plan.dims)), reduced)

    def __len__(self) -> int:
        return len(self.told)

    def take(self, places: NDArray[np.intp]) -> Extents:
        """Some of the tiles."""
        return Extents(self.plan, self.told[places], self.reduced[places])

    @cached_property
    def sizes(self) -> Ints:
        """int64[c,r] of a whole tile."""
        return np.where(self.told > 0, self.told, np.array(self.plan.dims))

    @cached_property
    def counts(self) -> Ints:
        """int64[c,r]: how many tiles there are along each dimension."""
        return np.asarray(-(-np.array(self.plan.dims) // self.sizes))

    @cached_property
    def ends(self) -> Ints:
        """int64[c,r] of the last tile along each dimension."""
        return np.asarray(np.array(self.plan.dims) - (self.counts - 1) * self.sizes)

    def depth(self, depends: Iterable[int]) -> Ints:
        """int64[c]: within how many loops over dimensions, of the plan's order, it stands."""
        found = np.zeros(len(self), dtype=np.int64)
        for d in depends:
            at = self.plan.order.index(d) + 1
            found = np.maximum(found, np.where(self.told[:, d] > 0, at, 0))
        return found

    def turns(self, depth: Ints) -> Floats:
        """float64[c]: how often what stands there is run."""
        found = np.ones(len(self))
        for at, d in enumerate(self.plan.order):
            found *= np.where(at < depth, self.counts[:, d], 1)
        return found

    def size(self, span: Span, covered: Collection[int] = ()) -> Ints:
        """int64[c] indices, all tiles taken together along the dimensions that are `covered`."""
        dims = self.plan.dims
        sides = {d: dims[d] if d in covered else self.sizes[:, d] for d in span.depends}
        return self._size(span, sides)

    def lengths(self, span: Span) -> Lengths:
        """Of a loop over it, in a whole tile and in the last."""
        whole = {d: self.sizes[:, d] for d in span.depends}
        found = [(self._size(span, whole), np.ones(len(self)))]
        for d in sorted(span.depends):
            uneven = self.ends[:, d] != self.sizes[:, d]
            if uneven.any():
                last = np.where(uneven, 1 / self.counts[:, d], 0.0)
                end = self._size(span, {**whole, d: self.ends[:, d]})
                found = [(n, share * (1 - last)) for n, share in found] + [(end, last)]
        return found

    def mean(self, span: Span) -> Floats:
        """float64[c]"""
        return np.asarray(np.sum([n * share for n, share in self.lengths(span)], axis=0))

    def _size(self, span: Span, sides: Mapping[int, int | Ints]) -> Ints:
        constant, by_side = span.length
        found = np.full(len(self), constant, dtype=np.int64)
        for d, by in by_side:
            found += by * sides[d]
        return np.minimum(np.maximum(found, 0), span.dim)


#: Rows that one turn of the loop around the innermost one takes.
ROWS = 4
#: Turns in all of loops in each other that are written out.
_MOST_WRITTEN = 16
#: What is known of a loop: that it has one turn; so many that it can be written out, always the
#: same; `ROWS` or more; fewer, but not always as many.
_ONE, _LONG, _UNEVEN = 1, ROWS + 1, ROWS + 2

#: By loop, what is known of it.
Known = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Loops:
    """The innermost loop, the one around it of which `ROWS` turns are taken together, those inside
    that are written out, with how often they turn, and the others, from outside."""

    outside: tuple[Var, ...]
    rows: Var | None
    inner: Var | None
    written: tuple[tuple[Var, int], ...]

    def copies(self, variables: frozenset[Var], rows: int) -> float:
        """How often what moves with these is there in one turn of the innermost loop."""
        times = math.prod(n for var, n in self.written if var in variables)
        return times * (rows if self.rows in variables else 1)

    @property
    def innermost(self) -> tuple[object, ...]:
        """What is the same where nothing but the loops outside differs."""
        return self.rows, self.inner, self.written

    def inside(self, at: int) -> frozenset[Var]:
        """The variables of all loops within the first so many of `outside`."""
        found = {*self.outside[at:], *(var for var, _ in self.written)}
        return frozenset(found | {var for var in (self.rows, self.inner) if var is not None})


def by_loops(nest: Nest, extents: Extents) -> Iterator[tuple[Loops, NDArray[np.intp]]]:
    """The loops of a nest, with the places intp[p] of the tiles under which they are these."""
    known = [_known(lengths(nest, var, extents)) for var in nest.loops]
    # What differs as one number, for rows of a table are compared one by one. It fits: only loops
    # that are tiled or run in blocks differ, whatever the rank.
    kind = np.zeros(len(extents), dtype=np.int64)
    for own in known:
        if (own != own[:1]).any():
            kind = kind * (_UNEVEN + 1) + own
    _, first, of = np.unique(kind, return_index=True, return_inverse=True)
    same: dict[Loops, int] = {}
    numbers = []
    for at in first.tolist():
        told = {var: int(own[at]) for var, own in zip(nest.loops, known, strict=True)}
        numbers.append(same.setdefault(_loops_of(nest, told), len(same)))
    loops_of = np.array(numbers)[of]
    for loops, number in same.items():
        yield loops, np.flatnonzero(loops_of == number)


def lengths(nest: Nest, var: Var, extents: Extents) -> Lengths:
    """How long a loop is, and in which share of its runs."""
    if var == nest.blocked:
        block, in_blocks = extents.reduced, blocked(nest, extents)
        if in_blocks.any():
            size = np.where(in_blocks, block, var.extent)
            blocks = -(-var.extent // size)
            last = np.where(in_blocks, 1 / blocks, 0.0)
            return [(size, 1 - last), (var.extent - (blocks - 1) * size, last)]
    return extents.lengths(nest.spans[var])


def blocked(nest: Nest, extents: Extents) -> NDArray[np.bool_]:
    """bool[c]: whether its longest sum is run block by block."""
    block, most = extents.reduced, 0 if nest.blocked is None else nest.blocked.extent
    return (block > 0) & (block < most)


def runs_of(nest: Nest, extents: Extents) -> Floats:
    """float64[c]: how often a nest is run in the kernel."""
    around = extents.turns(extents.depth(nest.depends))
    if nest.blocked is None:
        return around
    blocks = -(-nest.blocked.extent // np.maximum(extents.reduced, 1))
    return np.asarray(around * np.where(blocked(nest, extents), blocks, 1))


def _known(told: Lengths) -> NDArray[np.int64]:
    most = longest(told)
    same = told[0][1] == 1
    found = np.where(most >= ROWS, _LONG, _UNEVEN)
    found = np.where(same & (most <= ROWS), most, found)
    return np.where(most <= 1, _ONE, found)


def _loops_of(nest: Nest, known: Known) -> Loops:
    """Of the loops that turn more than once."""
    order = [var for var in nest.loops if known[var] != _ONE]
    left, written = _written_out(nest, order, known)
    inner = left.pop() if left else None
    rows = _rows(nest, left, inner, known)
    return Loops(tuple(var for var in left if var != rows), rows, inner, tuple(written.items()))


def _written_out(
    nest: Nest, order: Sequence[Var], known: Known
) -> tuple[list[Var], dict[Var, int]]:
    """The loops that are left, and short ones inside of all that a compiler writes out: where it is
    not told to take rows together."""
    left, written = list(order), dict[Var, int]()
    if order and (_rows(nest, left[:-1], left[-1], known) or _fourfold(nest, left[-1], known)):
        return left, written
    while len(left) > 1:
        turns = known[left[-1]]
        if turns > ROWS or turns * math.prod(written.values()) > _MOST_WRITTEN:
            break
        written[left.pop()] = turns
    return left, written


def _fourfold(nest: Nest, last: Var, known: Known) -> bool:
    """Whether the loop, although it is innermost, is one of rows: the loop inside has one turn."""
    return last != nest.inner and last in nest.summed and known[last] in (ROWS, _LONG)


def _rows(nest: Nest, around: Sequence[Var], inner: Var | None, known: Known) -> Var | None:
    """The loop of which several turns are taken together: of a sum alone."""
    if not nest.summed or inner is None or inner != nest.inner or not around:
        return None
    last = around[-1]
    if (last in nest.summed) == (inner in nest.summed):
        return None
    return last if known[last] in (ROWS, _LONG) else None
