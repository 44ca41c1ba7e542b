"""Safety checks of untrusted nests: every access stays inside its array, every loop ends, and no
statement writes to an array that indices or bounds come from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from embeddb.core.config import Value
from embeddb.core.errors import NestError
from embeddb.nests.dependence.legality import Legality as Legality
from embeddb.nests.dependence.legality import packable as packable
from embeddb.nests.dependence.legality import parallel_loops as parallel_loops
from embeddb.nests.dependence.legality import reduction_loops as reduction_loops
from embeddb.nests.nest import (
    Nest,
    ending_at_last,
    index_range,
    iterations,
    loop_range,
    most_turns,
    trips,
    values_of,
)
from embeddb.nests.parts import (
    COMPARISONS,
    DTYPES,
    MOST_LOOPS,
    Access,
    Call,
    Expr,
    Loop,
    Read,
    Statement,
)
from embeddb.nests.schedule import Schedule, parameters

#: Largest number in a nest: products of two stay far below 2**63.
LARGEST = 1 << 40
MOST_DIMENSIONS = 8
#: Largest number of iterations of the innermost loop, and of bytes of all arrays.
MOST_POINTS = 1 << 48
MOST_BYTES = 1 << 40
_FILL = re.compile(
    r"uniform|zero|range|permutation|below:[1-9]\d{0,11}(:[0-9a-f]{32})?"
    r"|offsets:\d{1,12}(:\d{1,3}(\.\d{1,3})?(:[0-9a-f]{32})?)?"
)


def check(nest: Nest) -> Nest:
    """Check a nest; return it with its arrays in the order of their first access and without unused
    ones. Raises: NestError for an invalid nest, or one that could access memory outside its
    arrays."""
    if not nest.loops or not nest.body:
        raise NestError("a nest needs a loop and a statement")
    if len(nest.loops) > MOST_LOOPS:
        raise NestError(f"{len(nest.loops)} loops, at most {MOST_LOOPS} are allowed")
    if len(set(nest.array_names)) != len(nest.array_names):
        twice = next(n for n in nest.array_names if nest.array_names.count(n) > 1)
        raise NestError(f"two arrays are called {twice!r}: overlapping arrays are not supported")
    _check_arrays(nest)
    _check_loops(nest)
    for statement, access, _ in nest.accesses():
        _check_known(nest, access)
        if statement < 0 and access.array in nest.written:
            raise NestError(
                f"{nest.array_name(access.array)}: is written and bounds a loop in one nest"
            )
    for one in nest.body:
        for value in (one.value, one.where):
            _check_comparisons(nest, value)
    nest = in_order(nest)
    for statement, access, _ in nest.accesses():
        _check_inside(nest, access, conditional=statement >= 0 and _tests(nest.body[statement]))
    return nest


def _check_arrays(nest: Nest) -> None:
    for at, array in enumerate(nest.arrays):
        name = nest.array_name(at)
        if array.dtype not in DTYPES:
            raise NestError(f"{name}: no type {array.dtype!r}; types: {', '.join(DTYPES)}")
        if not array.shape or len(array.shape) > MOST_DIMENSIONS or min(array.shape) < 1:
            raise NestError(f"{name}: a shape is 1 to {MOST_DIMENSIONS} sizes of at least 1")
        if not _FILL.fullmatch(array.fill):
            raise NestError(f"{name}: no fill {array.fill[:40]!r}")
        whole = array.fill not in ("uniform", "zero")
        if whole and array.dtype not in ("i32", "i64"):
            raise NestError(f"{name}: fill {array.fill} needs whole numbers, not {array.dtype}")
        if whole and array.dtype == "i32" and values_of(array)[1] >= 1 << 31:
            raise NestError(f"{name}: fill {array.fill} does not fit into i32")
    if sum(array.bytes for array in nest.arrays) > MOST_BYTES:
        raise NestError(f"the arrays have more than {MOST_BYTES} bytes")


def _check_loops(nest: Nest) -> None:
    for at, loop in enumerate(nest.loops):
        for bound in loop.bounds:
            if any(outer >= at for outer in bound.loops):
                raise NestError(f"loop {nest.loop_name(at)}: a bound depends on an inner loop")
        if loop.step < 1:
            raise NestError(f"loop {nest.loop_name(at)}: step {loop.step} is not positive")
    for bound in (bound for loop in nest.loops for bound in loop.bounds):
        if bound.of is not None:
            _check_known(nest, bound.of)
    for at in range(nest.depth):
        low, high = loop_range(nest.loops, nest.arrays, at)
        if max(abs(low), abs(high)) > LARGEST:
            raise NestError(f"loop {nest.loop_name(at)}: runs from {low} to {high}")
        if most_turns(nest.loops, nest.arrays, at) < 1:
            raise NestError(f"loop {nest.loop_name(at)}: never runs")
    # Counted only where the middle of the outer loops does not show that all run.
    exact = iterations(nest.loops) if min(trips(nest.loops, nest.arrays), default=1) < 1 else None
    if exact and 0 in exact:
        raise NestError(f"loop {nest.loop_name(exact.index(0))}: never runs")
    if nest.points > MOST_POINTS:
        raise NestError(f"the body runs {nest.points} times, at most {MOST_POINTS} are allowed")


def _check_known(nest: Nest, access: Access) -> None:
    for one in (*access.inner(), access):
        if not 0 <= one.array < len(nest.arrays):
            raise NestError(f"there is no array {one.array}")
        array, name = nest.arrays[one.array], nest.array_name(one.array)
        if len(one.at) != len(array.shape):
            raise NestError(f"{name}: {len(one.at)} indices for {len(array.shape)} dimensions")
        if any(at >= nest.depth for at in one.loops):
            raise NestError(f"{name}: an index uses a loop that does not exist")
        for index in one.at:
            index_range(nest.loops, nest.arrays, index)
    for inner in access.inner():
        if inner.array in nest.written:
            raise NestError(
                f"{nest.array_name(inner.array)}: is written and used as an index in one nest"
            )


def _check_comparisons(nest: Nest, value: Expr | None) -> None:
    """Raises: NestError for a test for NaN, which generated code would drop."""
    if not isinstance(value, Call):
        return
    one, other = value.args[0], value.args[-1]
    if value.op in COMPARISONS and one == other and _reads_real(nest, one):
        raise NestError(
            "compares a value with itself: NaN is not supported in a nest",
            hint="test for NaN outside of the loops",
        )
    for argument in value.args:
        _check_comparisons(nest, argument)


def _reads_real(nest: Nest, value: Expr) -> bool:
    if isinstance(value, Read):
        return nest.arrays[value.access.array].dtype.startswith("f")
    return isinstance(value, Call) and any(_reads_real(nest, one) for one in value.args)


def _tests(part: Statement | Expr) -> bool:
    """True for a statement with a condition, or a value that chooses between others."""
    if isinstance(part, Statement):
        return part.where is not None or _tests(part.value)
    return isinstance(part, Call) and (part.op == "select" or any(map(_tests, part.args)))


#: Neither dependences nor copies into a buffer know where a condition holds.
_SPLIT = "a condition does not narrow an index: split the loop, as into i == 0 and i >= 1"


def _check_inside(nest: Nest, access: Access, *, conditional: bool) -> None:
    array, name = nest.arrays[access.array], nest.array_name(access.array)
    loops = tuple(map(ending_at_last, nest.loops))
    for dimension, (index, extent) in enumerate(zip(access.at, array.shape, strict=True)):
        low, high = index_range(loops, nest.arrays, index)
        if low < 0 or high >= extent:
            raise NestError(
                f"{name}: index {dimension + 1} runs from {low} to {high}, outside 0 to "
                f"{extent - 1}",
                hint=_SPLIT if conditional else "",
            )


def in_order(nest: Nest) -> Nest:
    """The nest without unused arrays, others by first access: target, operands, then bounds."""
    accesses = [a for statement in nest.body for a in (statement.target, *statement.reads())]
    accesses += [a for loop in nest.loops for bound in loop.bounds for a in bound.reads()]
    order = list(dict.fromkeys(access.array for access in accesses))
    place = {old: new for new, old in enumerate(order)}
    if order == list(range(len(nest.arrays))):
        return nest

    def moved(access: Access) -> Access:
        return Access(place[access.array], access.at)

    return replace(
        nest,
        loops=tuple(
            Loop(loop.lower.mapped(moved), loop.upper.mapped(moved), loop.step)
            for loop in nest.loops
        ),
        arrays=tuple(nest.arrays[old] for old in order),
        body=tuple(statement.mapped(moved) for statement in nest.body),
        array_names=tuple(nest.array_name(old) for old in order),
    )


class NestJudge:
    """The rules of a nest as one more constraint (`embeddb.platforms.space.rules`) of a space with
    the parameters `available`; missing parameters are as in the identity schedule."""

    def __init__(self, nest: Nest, available: Collection[str] | None = None) -> None:
        self.legality = legality_of(nest)
        decisive = parameters(nest.depth)
        self.names = decisive if available is None else decisive & frozenset(available)
        self.text = f"the dependences of {nest.name or nest.id[:12]}"
        self._tiles = [f"tile_{at + 1}" for at in range(nest.depth)]
        self._others = sorted(decisive - set(self._tiles))
        self._harmless = {("inner", "plain"), ("inner", "unroll4"), ("pack", "none")}
        self._harmless |= {("pack", f"read{at + 1}") for at in range(len(packable(nest)))}
        self._known: dict[tuple[Any, ...], str] = {}

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Return true if the schedule is legal; None while a parameter that decides it is open."""
        return not self.reason(env) if self.names <= env.keys() else None

    def seen(self, name: str, value: Value) -> Value:
        """The part of a value that legality depends on: presence for blocks, nothing for values
        that are always legal."""
        if name in self._tiles:
            return value != 0
        return "" if (name, value) in self._harmless else value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Reason why the schedule is illegal, in one line; empty where it is legal."""
        split = [values.get(name, 0) != 0 for name in self._tiles]
        key = (*split, *[values.get(name) for name in self._others])
        cached = self._known.get(key)
        if cached is None:
            schedule = Schedule.of(values, self.legality.nest.depth)
            cached = self._known[key] = self.legality.reason(schedule) or ""
        return cached


def canonical_schedule(nest: Nest) -> Schedule:
    """The identity schedule, with its outermost loop in parallel where that is legal."""
    still = Schedule.of({}, nest.depth)
    parallel = replace(still, parallel="outer")
    return still if legality_of(nest).reason(parallel) else parallel


def legality_of(nest: Nest) -> Legality:
    """The rules of a nest with cached answers, since a query asks from several places."""
    return _legality(nest, nest.loop_names, nest.array_names)


@lru_cache(maxsize=64)
def _legality(nest: Nest, *_: tuple[str, ...]) -> Legality:
    # Keyed by names too: nests that differ only in names are equal, but a reason names loops.
    return Legality(nest)
