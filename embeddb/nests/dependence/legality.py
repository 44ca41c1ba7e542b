"""Legality of schedules: a legal one computes the same as the nest as written, except for the order
of summation in reductions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from embeddb.nests.dependence.distances import ZERO, Distances, Vector
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access
from embeddb.nests.schedule import PLACES, Schedule


@dataclass(frozen=True, slots=True)
class Dependence:
    """Iterations of statement `sink` that must run after those of statement `source` which are
    `vector` before them. Vectors of several loops are positive in the order of the nest; a zero
    vector is between statements of one iteration. `reduction`: both combine one element with the
    same operator, so their order is free, but they must not run concurrently."""

    array: int
    source: int
    sink: int
    vector: Vector
    reduction: bool = False

    @property
    def distance(self) -> tuple[int, ...] | None:
        """The distance vector, where it is exact."""
        exact = all(low == high for low, high in self.vector)
        return tuple(low for low, _ in self.vector) if exact else None

    @property
    def vector_text(self) -> str:
        """`(1, -1)`; a component that varies is `+`, `-`, `0+`, `0-` or `*`."""
        return f"({', '.join(map(_component, self.vector))})"


@lru_cache(maxsize=256)
def dependences(nest: Nest) -> tuple[Dependence, ...]:
    """All dependences of a nest, without duplicates."""
    return _dependences(nest, Distances(nest))


def needs_ascending(nest: Nest) -> tuple[int, ...]:
    """The loops over rows of which some dependences are excluded only because the offsets of the
    rows, which the nest's fill describes, ascend."""
    rows = tuple(Distances(nest).rows)
    any_order = _dependences(nest, Distances(nest, ascending=False)) if rows else ()
    return rows if rows and any_order != dependences(nest) else ()


def _dependences(nest: Nest, distances: Distances) -> tuple[Dependence, ...]:
    unique: dict[Dependence, None] = {}
    for first, second in _conflicts(nest):
        reduction = _reduction(nest, first, second)
        for source, sink, vector in _ordered(distances, first, second):
            unique[Dependence(first.access.array, source, sink, vector, reduction)] = None
    return tuple(unique)


def _conflicts(nest: Nest) -> Iterator[tuple[_Touch, _Touch]]:
    """Pairs of accesses to one array, one of which writes."""
    touched: dict[int, dict[_Touch, None]] = {}
    for statement, access, writes in nest.accesses():
        touched.setdefault(access.array, {})[_Touch(statement, access, writes)] = None
    for array in nest.written:
        for first, second in itertools.combinations_with_replacement(touched[array], 2):
            if first.writes or second.writes:
                yield first, second


@lru_cache(maxsize=256)
def _meeting(nest: Nest) -> tuple[int, ...]:
    """Arrays of which two statements may access one element in one iteration, at indices that are
    not the same: GCC 12 may exchange these accesses in a loop that is declared as simd."""
    distances, arrays = Distances(nest), dict[int, None]()
    for first, second in _conflicts(nest):
        if first.access != second.access and first.statement != second.statement:
            for vector in distances.between(first.access, second.access):
                if all(low <= 0 <= high for low, high in vector):
                    arrays[first.access.array] = None
    return tuple(arrays)


def parallel_loops(nest: Nest) -> tuple[int, ...]:
    """Loops whose iterations are independent for fixed outer loops."""
    every = dependences(nest)
    return tuple(at for at in range(nest.depth) if not any(_carried(every, at, range(at))))


def reduction_loops(nest: Nest) -> tuple[int, ...]:
    """Loops whose iterations are independent except for reductions."""
    carried = [list(_carried(dependences(nest), at, range(at))) for at in range(nest.depth)]
    return tuple(at for at, d in enumerate(carried) if d and all(one.reduction for one in d))


class _Touch(NamedTuple):
    statement: int
    access: Access
    writes: bool


def _reduction(nest: Nest, first: _Touch, second: _Touch) -> bool:
    if not (first.writes and second.writes):
        return False
    combines = {nest.body[touch.statement].combine for touch in (first, second)}
    return len(combines) == 1 and "=" not in combines


def _ordered(
    distances: Distances, first: _Touch, second: _Touch
) -> Iterator[tuple[int, int, Vector]]:
    """(source, sink, vector) of each way in which two accesses conflict."""
    one, two = first.statement, second.statement
    for vector in distances.between(first.access, second.access):
        for ahead in _positive(vector):
            yield one, two, ahead
        if first == second:
            continue
        for behind in _positive(tuple((-high, -low) for low, high in vector)):
            yield two, one, behind
        if one != two and all(low <= 0 <= high for low, high in vector):
            yield min(one, two), max(one, two), tuple(ZERO for _ in vector)


def _positive(vector: Vector) -> Iterator[Vector]:
    """The part of a vector whose first non-zero component is positive."""
    for at, (low, high) in enumerate(vector):
        if high > 0:
            yield (*(ZERO for _ in range(at)), (max(low, 1), high), *vector[at + 1 :])
        if not low <= 0 <= high:
            return


def _component(between: tuple[int, int]) -> str:
    low, high = between
    if low == high:
        return str(low)
    if low >= 0:
        return "+" if low else "0+"
    return "*" if high > 0 else ("0-" if not high else "-")


def _carried(
    dependences: Sequence[Dependence], loop: int, fixed: Collection[int]
) -> Iterator[Dependence]:
    """Dependences between iterations of a loop that are at the same ones of the `fixed` loops."""
    for dependence in dependences:
        apart = any(low > 0 or high < 0 for low, high in map(dependence.vector.__getitem__, fixed))
        if dependence.vector[loop] != ZERO and not apart:
            yield dependence


#: Largest array, in elements, of which every thread may have a private copy for a reduction.
MOST_PRIVATE = 4096

#: Values of `pack`: position among the packable arrays, and its word.
_PACKED = {"read1": (0, "first"), "read2": (1, "second")}


class Legality:
    """Rules of one nest, whose dependences are computed once; answers are cached.

    A schedule is legal where
    - every dependence but those of reductions stays positive in the order, and no loop is moved
      outside of one that its bounds depend on;
    - no dependence is negative along a loop that is split into blocks;
    - no dependence is carried by the parallel loop; reductions only into arrays that every thread
      can have a copy of (`privatised`);
    - `simd` carries no dependence, reduces only into elements that do not vary with the loop, and
      has no element that two statements access at different indices in one iteration;
    - `jam4` could exchange the two innermost loops.
    """

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.dependences = dependences(nest)
        moving = [d for d in self.dependences if any(part != ZERO for part in d.vector)]
        self._plain = [d for d in moving if not d.reduction]
        self._moving = [*self._plain, *(d for d in moving if d.reduction)]
        self._packable = len(packable(nest))
        self._ruled: dict[tuple[Any, ...], str | None] = {}

    def reason(self, schedule: Schedule) -> str | None:
        """Reason why the schedule is illegal, in one line; None where it is legal."""
        depth = self.nest.depth
        if sorted(schedule.order) != list(range(depth)) or len(schedule.tiles) != depth:
            return f"the schedule is for {len(schedule.order)} loops, the nest has {depth}"
        return next(filter(None, self._reasons(schedule)), None)

    def privatised(self, schedule: Schedule) -> tuple[int, ...]:
        """Arrays that the parallel loop reduces into, ascending: each thread needs a private copy
        of the whole array, combined at the end. For a legal schedule."""
        loop, in_turn = _parallel(schedule)
        carried = _carried(self._moving, loop, in_turn) if loop >= 0 else ()
        return tuple(sorted({d.array for d in carried if d.reduction}))

    # -- rules ---------------------------------------------------------------------------------

    def _reasons(self, schedule: Schedule) -> Iterator[str | None]:
        """Objection of each rule; None for no objection."""
        yield self._once(self._of_order, schedule.order)
        for loop in schedule.order:
            if schedule.tiles[loop]:
                yield self._once(self._of_tile, loop)
        loop, in_turn = _parallel(schedule)
        if loop >= 0:
            yield self._once(self._of_parallel, loop, in_turn)
        elif schedule.parallel != "none":
            yield "there is no second loop that could run in parallel"
        if schedule.inner == "simd":
            yield self._once(self._of_simd, schedule.order[-1])
        if schedule.inner == "jam4":
            yield self._once(self._of_jam, *schedule.order[-2:])
        place, word = _PACKED.get(schedule.pack, (-1, ""))
        if place >= self._packable:
            pack = schedule.pack
            yield f"pack {pack}: there is no {word} array that is only read, at plain indices"

    def _once(self, rule: Callable[..., Iterator[str]], *arguments: Any) -> str | None:
        """First line of a rule, cached by its arguments, which are few of a schedule's parts."""
        key = (rule, *arguments)
        if key not in self._ruled:
            self._ruled[key] = next(rule(*arguments), None)
        return self._ruled[key]

    def _of_order(self, order: tuple[int, ...]) -> Iterator[str]:
        named = f"order {' '.join(map(self.nest.loop_name, order))}"
        for at, loop in enumerate(order):
            for outer in order[at + 1 :]:
                if outer in self._bounds(loop):
                    one, other = self.nest.loop_name(loop), self.nest.loop_name(outer)
                    yield f"{named}: the bounds of {one} depend on {other}, which is inside it"
        for dependence in self._plain:
            if _turned(dependence.vector, order):
                yield f"{named}: {self._told(dependence)}"

    def _of_tile(self, loop: int) -> Iterator[str]:
        own = self.nest.loops[loop]
        named = f"loop {self.nest.loop_name(loop)} cannot be split into blocks"
        for bound in own.bounds:
            if bound.of is not None:
                yield f"{named}: its bounds come out of {self.nest.array_name(bound.of.array)}"
        if own.step > 1 and own.lower.loops:
            yield f"{named}: it takes steps of {own.step} from a bound that varies"
        for dependence in self._plain:
            if dependence.vector[loop][0] < 0:
                yield f"{named}: {self._told(dependence)}"

    def _of_parallel(self, loop: int, in_turn: tuple[int, ...]) -> Iterator[str]:
        named = f"loop {self.nest.loop_name(loop)} cannot run in parallel"
        for dependence in _carried(self._moving, loop, in_turn):
            name = self.nest.array_name(dependence.array)
            elements = self.nest.arrays[dependence.array].elements
            if not dependence.reduction:
                yield f"{named}: {self._told(dependence)}"
            elif elements > MOST_PRIVATE:
                yield (
                    f"{named}: {name} carries a reduction, and {elements} elements are too many "
                    f"for a copy by thread ({MOST_PRIVATE})"
                )
            elif not self._combined_only(dependence.array):
                yield f"{named}: {name} carries a reduction and is used in another way too"

    def _of_simd(self, inner: int) -> Iterator[str]:
        named = f"loop {self.nest.loop_name(inner)} cannot run as simd"
        for dependence in _carried(self._moving, inner, self._but(inner)):
            if not self._scalar(dependence, inner):
                what = "carries a reduction that no variable can hold"
                array = self.nest.array_name(dependence.array)
                cause = f"{array} {what}" if dependence.reduction else self._told(dependence)
                yield f"{named}: {cause}"
        for name in map(self.nest.array_name, _meeting(self.nest)):
            yield f"{named}: two statements may access one element of {name} at different indices"

    def _of_jam(self, around: int, inner: int = -1) -> Iterator[str]:
        if inner < 0:
            yield "inner jam4: the nest has one loop only"
            return
        name = self.nest.loop_name(inner)
        named = f"loop {self.nest.loop_name(around)} cannot be jammed into loop {name}"
        if around in self._bounds(inner):
            yield f"{named}: the bounds of {name} depend on it"
        for dependence in _carried(self._plain, inner, self._but(around, inner)):
            if dependence.vector[inner][0] < 0:
                yield f"{named}: {self._told(dependence)}"

    # -- parts ---------------------------------------------------------------------------------

    def _bounds(self, loop: int) -> frozenset[int]:
        return self.nest.loops[loop].lower.loops | self.nest.loops[loop].upper.loops

    def _but(self, *inner: int) -> list[int]:
        """All loops but the inner ones."""
        return [at for at in range(self.nest.depth) if at not in inner]

    def _scalar(self, dependence: Dependence, inner: int) -> bool:
        """Return true if it is a reduction into one element during the innermost loop, which no
        other access touches: a scalar variable can hold it."""
        target = self.nest.body[dependence.sink].target
        alone = sum(a.array == target.array for _, a, _ in self.nest.accesses()) == 1
        return dependence.reduction and alone and inner not in target.loops

    def _combined_only(self, array: int) -> bool:
        """Return true if the nest only combines an array, with one operator."""
        combines = {s.combine for s in self.nest.body if s.target.array == array}
        read = any(a.array == array for _, a, writes in self.nest.accesses() if not writes)
        return len(combines) == 1 and not read

    def _told(self, dependence: Dependence) -> str:
        name = self.nest.array_name(dependence.array)
        exact = "at distance" if dependence.distance is not None else "in direction"
        return f"{name} depends on its own element {exact} {dependence.vector_text}"


@lru_cache(maxsize=64)
def packable(nest: Nest) -> tuple[int, ...]:
    """Arrays that a schedule may pack, `read1` first: those that statements only read, only at
    affine indices, and that are not indices or bounds themselves; in the order of their first
    access."""
    refused = set(nest.written)
    for statement, access, _ in nest.accesses():
        refused |= {inner.array for inner in access.inner()}
        if statement < 0 or not access.affine:
            refused.add(access.array)
    read = {access.array for _, access, writes in nest.accesses() if not writes}
    return tuple(sorted(read - refused))


def _parallel(schedule: Schedule) -> tuple[int, tuple[int, ...]]:
    """The loop that runs in parallel, -1 without one, and the sequential loops around it. Adjacent
    blocks may hold nearby iterations, and so may jammed iterations."""
    order, tiled = schedule.order, [at for at in schedule.order if schedule.tiles[at]]
    loop = dict(zip(PLACES, (*tiled, *order), strict=False)).get(schedule.parallel, -1)
    jammed = schedule.inner == "jam4" and len(order) == 2
    parted = schedule.parallel == "second" and not tiled and not jammed
    return loop, order[:1] if parted else ()


def _turned(vector: Vector, order: tuple[int, ...]) -> bool:
    """Return true if this order may reverse a dependence."""
    for at in order:
        least = vector[at][0]
        if least:
            return least < 0
    return False
