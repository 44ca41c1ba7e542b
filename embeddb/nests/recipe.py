"""A schedule as a recipe: a sequence of steps, each of which names nodes of a nest.

Steps are transferred one by one from one nest to another ("Performance Embeddings", Section 5.1),
not the values of slots. A step that does not fit is refused; the legality of
the result is checked elsewhere (`embeddb.nests.check`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embeddb.core.errors import NestError
from embeddb.nests.dependence.legality import packable
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import INNER, PLACES, POLICIES, Schedule


@dataclass(frozen=True, slots=True)
class Order:
    """Run these loops in this order, from the outermost; others stay in place."""

    loops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """Split a loop into blocks of `size` iterations."""

    loop: int
    size: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run a loop, or the loop over its blocks, in parallel."""

    loop: int
    block: bool = False
    policy: str = "static"
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class Inner:
    """Generate the innermost loop as `simd`, `unroll4` or `jam4`."""

    loop: int
    how: str


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy an array that is read block by block."""

    array: int


Step = Order | Tile | Parallel | Inner | Pack


def identity_schedule(nest: Nest) -> Schedule:
    """The initial schedule of every recipe: nothing moved, split or parallel."""
    return Schedule.of({}, nest.depth)


def named(step: Step) -> tuple[int, ...]:
    """Loops that a step names, or the array."""
    match step:
        case Order(loops):
            return loops
        case Pack(array):
            return (array,)
        case Tile(loop) | Parallel(loop) | Inner(loop):
            return (loop,)


def recipe_of(nest: Nest, schedule: Schedule, *, whole: bool = False) -> tuple[Step, ...]:
    """Steps from the identity schedule to `schedule`, without redundant ones.

    With `whole` the order is a step even where it is the identity: for a nest whose counterpart may
    be written in another order. Raises: NestError for an array to pack that does not exist.
    """
    plain = identity_schedule(nest)
    steps: list[Step] = []
    if whole or schedule.order != plain.order:
        steps.append(Order(schedule.order))
    steps += [Tile(at, schedule.tiles[at]) for at in schedule.order if schedule.tiles[at]]
    piece = schedule.parallel_piece(nest)
    if piece is not None:
        chunk = schedule.chunk if schedule.policy == "dynamic" else 1
        steps.append(Parallel(piece.loop, piece.block, schedule.policy, chunk))
    if schedule.inner != plain.inner:
        steps.append(Inner(schedule.innermost, schedule.inner))
    if schedule.pack != plain.pack:
        offered, at = packable(nest), int(schedule.pack.removeprefix("read")) - 1
        if at >= len(offered):
            raise NestError(f"`{schedule.pack}` names no array that can be packed")
        steps.append(Pack(offered[at]))
    return tuple(steps)


def apply(nest: Nest, schedule: Schedule, step: Step) -> Schedule:
    """Apply one more step to a schedule. Raises: NestError for one that does not fit."""
    _check_loops(nest, step)
    match step:
        case Order(loops):
            following = iter(loops)
            order = tuple(next(following) if at in loops else at for at in schedule.order)
            return replace(schedule, order=order)
        case Tile(loop, size):
            if size < 1:
                raise NestError(f"block size {size} is out of range")
            tiles = (*schedule.tiles[:loop], size, *schedule.tiles[loop + 1 :])
            return replace(schedule, tiles=tiles)
        case Parallel(loop, block, policy, chunk):
            if policy not in POLICIES or chunk < 1:
                raise NestError(f"no policy {policy[:20]!r} by {chunk}")
            place = _place(nest, schedule, loop, block)
            return replace(schedule, parallel=place, policy=policy, chunk=chunk)
        case Inner(loop, how):
            if how not in INNER:
                raise NestError(f"no innermost loop {how[:20]!r}; there are {', '.join(INNER)}")
            if loop != schedule.innermost:
                name, inmost = nest.loop_name(loop), nest.loop_name(schedule.innermost)
                raise NestError(f"loop {name} is not the innermost, {inmost} is")
            return replace(schedule, inner=how)
        case Pack(array):
            offered = packable(nest)[:2]  # read1 and read2
            if array not in offered:
                raise NestError(f"array {nest.array_name(array)} is not one that can be packed")
            return replace(schedule, pack=f"read{offered.index(array) + 1}")


def step_text(nest: Nest, step: Step) -> str:
    """One line with the nest's names, such as `tile k by 32`."""
    match step:
        case Order(loops):
            return "order " + ", ".join(nest.loop_name(at) for at in loops)
        case Tile(loop, size):
            return f"tile {nest.loop_name(loop)} by {size}"
        case Parallel(loop, block, policy, chunk):
            how = f"{policy} by {chunk}" if policy == "dynamic" else policy
            return f"parallel {'blocks of ' * block}{nest.loop_name(loop)}, {how}"
        case Inner(loop, how):
            return f"{how} {nest.loop_name(loop)}"
        case Pack(array):
            return f"pack {nest.array_name(array)}"


def _check_loops(nest: Nest, step: Step) -> None:
    """Check that a step names existing loops or arrays, each once. Raises: NestError."""
    if isinstance(step, Pack):
        if not 0 <= step.array < len(nest.arrays):
            raise NestError(f"there is no array {step.array}, the nest has {len(nest.arrays)}")
        return
    loops = named(step)
    for at in loops:
        if not 0 <= at < nest.depth:
            raise NestError(f"there is no loop {at + 1}, the nest has {nest.depth}")
    if len(set(loops)) != len(loops):
        raise NestError("a loop occurs twice in the order")


def _place(nest: Nest, schedule: Schedule, loop: int, block: bool) -> str:
    for place, piece in zip(PLACES, schedule.pieces(nest), strict=False):
        if (piece.loop, piece.block) == (loop, block):
            return place
    what = f"{'the loop over blocks of ' * block}{nest.loop_name(loop)}"
    raise NestError(f"{what} is not one of the two outermost generated loops")
