"""Transfer of a recipe from one nest to another ("Performance Embeddings", Section 5.1).

Step by step: the nodes that the step names are matched with nodes of the target, the step is
instantiated on those, and applied if it fits and is legal; else it is skipped with a reason. Unlike
the paper, queries match all loops at once, before the first step (`at_once`), by features of the
nodes (`raw_vectors`): `benchmarks/nest_matchers.py` has the paper's matcher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.nests.dependence.legality import packable
from embeddb.nests.encoding.graph import Node, graph_of, rows_of
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import (
    Inner,
    Order,
    Pack,
    Parallel,
    Step,
    Tile,
    apply,
    identity_schedule,
    named,
    step_text,
)
from embeddb.nests.schedule import Schedule

#: The nodes of a nest under a schedule, and float32[n,d], a vector for each.
Seen = tuple[Sequence[Node], NDArray[np.float32]]
NodeVectors = Callable[[Nest, Schedule], Seen]


@lru_cache(maxsize=512)
def raw_vectors(nest: Nest, schedule: Schedule) -> Seen:
    """Vectors of the graph's features, cached: all transfers to a target begin with the same."""
    graph = graph_of(nest, schedule)
    return graph.nodes, graph.features


def assign(cost: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Optimal assignment: pairs (row, column) of finite cost, as many as possible, of the smallest
    sum; by row.

    Shapes: `cost` float64[r,c], not negative; an infinite entry is never paired.
    """
    rows, columns = cost.shape
    if rows > columns:
        return sorted((row, column) for column, row in assign(cost.T))
    allowed = np.isfinite(cost)
    # An additional pair outweighs any cost of the others.
    forbidden = 1.0 + 2.0 * float(cost[allowed].sum())
    taken_by = _augmented(np.where(allowed, cost, forbidden).tolist(), columns)
    pairs = sorted((row, column) for column, row in enumerate(taken_by) if row >= 0)
    return [(row, column) for row, column in pairs if allowed[row, column]]


def _augmented(cost: list[list[float]], columns: int) -> list[int]:
    """Row of each column, -1 for none, added one by one along the cheapest augmenting path."""
    row_price = [0.0] * len(cost)
    column_price = [0.0] * columns
    taken_by = [-1] * columns
    for row in range(len(cost)):
        least, before = [math.inf] * columns, [-1] * columns
        path: list[int] = []
        last, on = -1, row
        while True:
            open_columns = [c for c in range(columns) if c not in path]
            for column in open_columns:
                over = cost[on][column] - row_price[on] - column_price[column]
                if over < least[column]:
                    least[column], before[column] = over, last
            last = min(open_columns, key=least.__getitem__)
            step = least[last]
            row_price[row] += step
            for column in path:
                row_price[taken_by[column]] += step
                column_price[column] -= step
            for column in open_columns:
                least[column] -= step
            on = taken_by[last]
            if on < 0:
                break
            path.append(last)
        while last >= 0:
            previous = before[last]
            taken_by[last] = row if previous < 0 else taken_by[previous]
            last = previous
    return taken_by


#: Loop of the target (array, for a step that packs) by loop of the source, and their distance.
Matching = Mapping[int, tuple[int, float]]
#: Function of a step and the schedules so far, of source and target, that matches the loops or
#: arrays which the step names.
Matcher = Callable[[Step, Schedule, Schedule], Matching]


def at_once(source: Nest, target: Nest, vectors: NodeVectors) -> Matcher:
    """Matcher of all loops of the source at once, with vectors of both nests under the identity
    schedule: one vector for each node of a nest, for all recipes, and no loop is matched twice."""
    here, there = (vectors(nest, identity_schedule(nest)) for nest in (source, target))
    wanted, offered = (rows_of(nodes, kind="entry", block=False) for nodes, _ in (here, there))
    loops = match_loops(here, wanted, there, offered)

    def matching(step: Step, source_schedule: Schedule, target_schedule: Schedule) -> Matching:
        if isinstance(step, Pack):
            return match_array(step.array, here, there, packable(target))
        return {at: loops[at] for at in named(step) if at in loops}

    return matching


def match_loops(here: Seen, wanted: list[int], there: Seen, offered: list[int]) -> Matching:
    """Match the loops of the entries at positions `wanted` with those at `offered`, each at most
    once, by the smallest sum of distances."""
    cost = _distances(here, wanted, there, offered)
    return {
        here[0][wanted[row]].loop: (there[0][offered[column]].loop, float(cost[row, column]))
        for row, column in assign(cost)
    }


def match_array(array: int, here: Seen, there: Seen, offered: Sequence[int]) -> Matching:
    """Match an array together with its memlets, which distinguish two arrays of one shape: its own
    distance plus the mean of theirs."""
    cost = [(_array_distance(here, array, there, other), other) for other in offered]
    finite = [(distance, other) for distance, other in cost if math.isfinite(distance)]
    if not finite:
        return {}
    distance, nearest = min(finite)
    return {array: (nearest, distance)}


def _array_distance(here: Seen, array: int, there: Seen, other: int) -> float:
    own, memlets = (
        _distances(
            here,
            rows_of(here[0], kind=kind, array=array, written=False),
            there,
            rows_of(there[0], kind=kind, array=other, written=False),
        )
        for kind in ("array", "memlet")
    )
    return _mean_distance(own) + (_mean_distance(memlets) if memlets.size else 0.0)


def _mean_distance(cost: NDArray[np.float64]) -> float:
    """Mean over the pairs of the assignment; infinite without any."""
    pairs = assign(cost)
    return sum(float(cost[pair]) for pair in pairs) / len(pairs) if pairs else math.inf


def _distances(here: Seen, rows: list[int], there: Seen, columns: list[int]) -> NDArray[np.float64]:
    """float64[r,c] of l2 distances."""
    apart = here[1][rows][:, None, :].astype(np.float64) - there[1][columns][None, :, :]
    distances: NDArray[np.float64] = np.sqrt(np.square(apart).sum(axis=2))
    return distances


#: Reason why a schedule of one nest is illegal; None or "" for a legal one.
Legal = Callable[[Schedule], str | None]

#: Block sizes of `nest-cpu`.
TILES = (4, 8, 16, 32, 64, 128, 256)


class Pair(NamedTuple):
    """Names of a loop or an array of the source and of its match, and their distance."""

    source: str
    target: str
    distance: float


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of one step: `text` in terms of the source, `target_text` in terms of the target,
    empty where it was skipped; `reason` for skipping or changing it."""

    text: str
    pairs: tuple[Pair, ...]
    target_text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A legal schedule of the target, and the outcome of each step of the recipe."""

    schedule: Schedule
    steps: tuple[StepOutcome, ...]


def transfer(
    steps: Sequence[Step], source: Nest, *, target: Nest, legal: Legal, matcher: Matcher
) -> Transfer:
    """Transfer the recipe of `source` to `target`, whose legality `legal` decides; `matcher`
    matches these two (`embeddb.nests.matching.transfer`). Raises: NestError for a step that does
    not fit the source."""
    source_schedule, schedule = identity_schedule(source), identity_schedule(target)
    outcomes: list[StepOutcome] = []
    for step in steps:
        after = apply(source, source_schedule, step)
        matched = matcher(step, source_schedule, schedule)
        schedule, done, reason = _attempt(step, matched, target, schedule, legal)
        pairs = _pairs(step, matched, source, target)
        outcomes.append(StepOutcome(step_text(source, step), pairs, done, reason))
        source_schedule = after
    return Transfer(schedule, tuple(outcomes))


def _attempt(
    step: Step, matched: Matching, target: Nest, schedule: Schedule, legal: Legal
) -> tuple[Schedule, str, str]:
    """Schedule after the step, the step in terms of the target, and a remark."""
    candidates, note = _instances(step, matched, target, schedule)
    refused = ""
    for candidate in candidates:
        try:
            tried = apply(target, schedule, candidate)
            against = legal(tried)
        except NestError as error:
            against = str(error)
        if not against:
            return tried, step_text(target, candidate), refused or note
        refused = refused or against
    return schedule, "", refused or note


def _instances(
    step: Step, matched: Matching, target: Nest, schedule: Schedule
) -> tuple[list[Step], str]:
    """Candidate steps on the target's nodes, and a remark. Running some loop in parallel matters
    more than which: where the match cannot, the two outermost generated loops are tried."""
    at = [matched[n][0] for n in named(step) if n in matched]
    if not at and not isinstance(step, Parallel):
        return [], "nothing in the target matches"
    match step:
        case Order():
            return ([Order(tuple(at))], "") if len(at) > 1 else ([], "only one loop matches")
        case Tile(_, size):
            return _fitted(Tile(at[0], size), target)
        case Parallel():
            exact = [replace(step, loop=loop) for loop in at]
            outer = schedule.pieces(target)[:2]
            others = [replace(step, loop=piece.loop, block=piece.block) for piece in outer]
            return list(
                dict.fromkeys([*exact, *others])
            ), "" if at else "nothing in the target matches"
        case Inner():
            return [replace(step, loop=at[0])], ""
        case Pack():
            return [Pack(at[0])], ""


def _fitted(step: Tile, target: Nest) -> tuple[list[Step], str]:
    """Blocks of at most half the trip count of the loop."""
    turns = target.trips[step.loop]
    if 2 * step.size <= turns:
        return [step], ""
    fits = [size for size in TILES if 2 * size <= turns and size < step.size]
    note = f"{step.size} is more than half of the {turns} turns of {target.loop_name(step.loop)}"
    return ([replace(step, size=fits[-1])], note) if fits else ([], note)


def _pairs(step: Step, matched: Matching, source: Nest, target: Nest) -> tuple[Pair, ...]:
    def name(nest: Nest, at: int) -> str:
        return nest.array_name(at) if isinstance(step, Pack) else nest.loop_name(at)

    matches = [(at, *matched[at]) for at in named(step) if at in matched]
    return tuple(Pair(name(source, at), name(target, to), d) for at, to, d in matches)
