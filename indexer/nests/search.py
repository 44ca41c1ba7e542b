"""A beam search through the schedules of one nest: the best that measuring finds.

It stands where "Performance Embeddings" (Section 6) has a tree search of thousands of runs: what
transfer is judged against, and what fills the database with good recipes. Schedules differ in one
parameter from one round to the next; only legal ones are measured, and none twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from embeddb.nests.check import canonical_schedule
from embeddb.nests.matching.transfer import TILES, Legal
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule

__all__ = ["Measure", "Tried", "beam_search", "moves"]

#: Seconds of each schedule, infinite for one that failed.
Measure = Callable[[list[Schedule]], Sequence[float]]

#: The share of the budget that goes to schedules by chance, and the most of these.
_BY_CHANCE, _MOST_BY_CHANCE = 0.25, 100
#: Schedules that are measured in one round for each member of the beam.
_MOVES = 6
#: Rounds without a gain, and what a gain is: timings differ by about so much.
_PATIENCE, _GAIN = 6, 0.99

_PARALLEL = ("outer", "second", "none")
_POLICIES = ("static", "dynamic", "guided")
_CHUNKS = (1, 4, 8, 32)
_INNER = ("plain", "simd", "unroll4", "jam4")
_PACKS = ("none", "read1", "read2")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tried:
    """`seconds` is infinite for a schedule that failed."""

    schedule: Schedule
    seconds: float


def beam_search(
    nest: Nest,
    measure: Measure,
    *,
    legal: Legal,
    budget: int,
    rng: np.random.Generator,
    width: int = 8,
) -> list[Tried]:
    """At most `budget` schedules in the order measured, the nest's own first, then some by chance.

    In each round some moves from the best `width` so far are measured, until the budget is spent,
    nothing is left to try, or six rounds brought nothing. The same `rng` state and timings give
    the same schedules.
    """
    own = canonical_schedule(nest)
    tried: dict[Schedule, float] = {}

    def run(schedules: list[Schedule]) -> float:
        """The least time so far, after these."""
        tried.update(zip(schedules, measure(schedules), strict=True))
        return min(tried.values())

    count = min(int(budget * _BY_CHANCE), _MOST_BY_CHANCE)
    drawn = [_by_chance(nest, own, legal, rng) for _ in range(count)]
    best = run(list(dict.fromkeys([own, *drawn]))[: max(budget, 1)])
    without_gain = 0
    while len(tried) < budget and without_gain < _PATIENCE:
        beam = sorted(tried, key=tried.__getitem__)[:width]
        batch = _next(nest, beam, tried, legal, rng)[: budget - len(tried)]
        if not batch:
            break
        before, best = best, run(batch)
        without_gain = 0 if best < before * _GAIN else without_gain + 1
    return [Tried(schedule, seconds) for schedule, seconds in tried.items()]


def moves(nest: Nest, schedule: Schedule) -> Iterator[Schedule]:
    """Every schedule that differs in one parameter, legal or not: two loops exchanged, the blocks
    of a loop, or one value."""
    for one, other in itertools.combinations(range(nest.depth), 2):
        order = list(schedule.order)
        order[one], order[other] = order[other], order[one]
        yield replace(schedule, order=tuple(order))
    for loop in range(nest.depth):
        for tile in _tiles(nest, loop):
            yield replace(schedule, tiles=_with(schedule.tiles, loop, tile))
    for field, values in _VALUES.items():
        for value in values:
            yield replace(schedule, **{field: value})


_VALUES: dict[str, tuple[Any, ...]] = {
    "parallel": _PARALLEL,
    "policy": _POLICIES,
    "chunk": _CHUNKS,
    "inner": _INNER,
    "pack": _PACKS,
}


def _next(
    nest: Nest,
    beam: list[Schedule],
    tried: dict[Schedule, float],
    legal: Legal,
    rng: np.random.Generator,
) -> list[Schedule]:
    """The moves to be measured in one round, those of the best first."""
    batch: dict[Schedule, None] = {}
    for member in beam:
        untried = _untried(nest, member, legal, rng)
        fresh = (s for s in untried if s not in tried and s not in batch)
        batch |= dict.fromkeys(itertools.islice(fresh, _MOVES))
    return list(batch)


def _untried(
    nest: Nest, member: Schedule, legal: Legal, rng: np.random.Generator
) -> Iterator[Schedule]:
    """The legal moves from a schedule, in an order by chance."""
    for move in _shuffled(list(moves(nest, member)), rng):
        found = _mended(move, legal)
        if found is not None:
            yield _plain(found)


def _mended(schedule: Schedule, legal: Legal) -> Schedule | None:
    """The schedule, else with another parallel loop, else with a plain innermost one too: a new
    order alone often is not legal."""
    ways = [schedule, *(replace(schedule, parallel=p) for p in _PARALLEL if p != schedule.parallel)]
    ways += [replace(way, inner="plain") for way in ways if way.inner != "plain"]
    return next((way for way in ways if not legal(way)), None)


def _by_chance(nest: Nest, own: Schedule, legal: Legal, rng: np.random.Generator) -> Schedule:
    """A legal schedule: one parameter after the other is drawn, and kept where that is legal."""
    order = tuple(int(at) for at in rng.permutation(nest.depth))
    made = _mended(replace(own, order=order), legal) or own
    for loop in _shuffled(list(range(nest.depth)), rng):
        if rng.random() < 0.5:
            tile = _one(_tiles(nest, loop), rng)
            made = _if_legal(replace(made, tiles=_with(made.tiles, loop, tile)), made, legal)
    for field, values in _VALUES.items():
        made = _if_legal(replace(made, **{field: _one(values, rng)}), made, legal)
    return _plain(made)


def _if_legal(wanted: Schedule, otherwise: Schedule, legal: Legal) -> Schedule:
    return otherwise if legal(wanted) else wanted


def _tiles(nest: Nest, loop: int) -> tuple[int, ...]:
    return (0, *(tile for tile in TILES if 2 * tile <= nest.trips[loop]))


def _with(tiles: tuple[int, ...], loop: int, tile: int) -> tuple[int, ...]:
    return (*tiles[:loop], tile, *tiles[loop + 1 :])


def _plain(schedule: Schedule) -> Schedule:
    """Without what does not apply, so that no two mean the same."""
    return Schedule.of(schedule.config, len(schedule.order))


def _one(values: Sequence[T], rng: np.random.Generator) -> T:
    return values[int(rng.integers(len(values)))]


def _shuffled(values: list[T], rng: np.random.Generator) -> list[T]:
    return [values[int(at)] for at in rng.permutation(len(values))]
