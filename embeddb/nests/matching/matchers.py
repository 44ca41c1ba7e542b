"""Which loops and arrays of one nest are those of another.

"Performance Embeddings" (Section 5.1): the assignment of the least sum of l2 distances between
vectors of nodes, in which only like meets like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.encoding.graph import Node
from embeddb.nests.matching.assignment import assign
from embeddb.nests.matching.vectors import NodeVectors
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import Pack, Parallel, Step, Tile, as_it_stands, named
from embeddb.nests.rules import packable
from embeddb.nests.schedule import Schedule

__all__ = ["Matcher", "Matching", "at_once", "by_slot", "step_by_step"]

#: By number of a loop (or of an array, for a step that packs) of the source that of the target, and
#: their distance.
Matching = Mapping[int, tuple[int, float]]
#: From a step and the schedules so far, the source's and the target's, to the matches of what the
#: step names.
Matcher = Callable[[Step, Schedule, Schedule], Matching]

_Seen = tuple[Sequence[Node], NDArray[np.float32]]


def step_by_step(source: Nest, target: Nest, vectors: NodeVectors) -> Matcher:
    """As in the paper: for each step the nodes that it names, with vectors of both nests as the
    steps before have made them. A loop that is split already is not split again."""

    def matching(step: Step, known: Schedule, made: Schedule) -> Matching:
        here, there = vectors(source, known), vectors(target, made)
        if isinstance(step, Pack):
            return _match_array(step.array, here, there, packable(target))
        block = isinstance(step, Parallel) and step.block
        wanted = [row for row in _entries(here, block) if here[0][row].loop in named(step)]
        offered = _entries(there, block)
        if isinstance(step, Tile):
            offered = [row for row in offered if not made.tiles[there[0][row].loop]]
        return _match_loops(here, wanted, there, offered)

    return matching


def at_once(source: Nest, target: Nest, vectors: NodeVectors) -> Matcher:
    """Every loop of the source at once, with vectors of both nests as they stand: one vector for
    each node of a nest, whatever the recipe, and no loop stands for two."""
    here, there = vectors(source, as_it_stands(source)), vectors(target, as_it_stands(target))
    loops = _match_loops(here, _entries(here, False), there, _entries(there, False))

    def matching(step: Step, known: Schedule, made: Schedule) -> Matching:
        if isinstance(step, Pack):
            return _match_array(step.array, here, there, packable(target))
        return {at: loops[at] for at in named(step) if at in loops}

    return matching


def by_slot(source: Nest, target: Nest) -> Matcher:
    """Without vectors: the k-th loop is the k-th, the first array that can be packed the first."""
    arrays = dict(zip(packable(source), packable(target), strict=False))
    loops = {at: at for at in range(min(source.depth, target.depth))}

    def matching(step: Step, known: Schedule, made: Schedule) -> Matching:
        same = arrays if isinstance(step, Pack) else loops
        return {at: (same[at], 0.0) for at in named(step) if at in same}

    return matching


def _match_loops(here: _Seen, wanted: list[int], there: _Seen, offered: list[int]) -> Matching:
    cost = _distances(here, wanted, there, offered)
    return {
        here[0][wanted[row]].loop: (there[0][offered[column]].loop, float(cost[row, column]))
        for row, column in assign(cost)
    }


def _match_array(array: int, here: _Seen, there: _Seen, offered: Sequence[int]) -> Matching:
    """An array is matched with its memlets, which tell two arrays of one shape apart: its own
    distance and the mean of theirs."""
    cost = [(_array_distance(here, array, there, other), other) for other in offered]
    finite = [(distance, other) for distance, other in cost if math.isfinite(distance)]
    if not finite:
        return {}
    distance, nearest = min(finite)
    return {array: (nearest, distance)}


def _array_distance(here: _Seen, array: int, there: _Seen, other: int) -> float:
    own, memlets = (
        _distances(here, _reads(here, kind, array), there, _reads(there, kind, other))
        for kind in ("array", "memlet")
    )
    return _mean_distance(own) + (_mean_distance(memlets) if memlets.size else 0.0)


def _mean_distance(cost: NDArray[np.float64]) -> float:
    """Over the pairs of the assignment; infinite without any."""
    pairs = assign(cost)
    return sum(float(cost[pair]) for pair in pairs) / len(pairs) if pairs else math.inf


def _entries(seen: _Seen, block: bool) -> list[int]:
    """The rows of loops, or of those from block to block."""
    return [at for at, node in enumerate(seen[0]) if node.kind == "entry" and node.block == block]


def _reads(seen: _Seen, kind: str, array: int) -> list[int]:
    """The rows of an array that is read, or of its memlets."""
    nodes = enumerate(seen[0])
    return [at for at, n in nodes if n.kind == kind and n.array == array and not n.written]


def _distances(
    here: _Seen, rows: list[int], there: _Seen, columns: list[int]
) -> NDArray[np.float64]:
    """float64[r,c] of l2 distances."""
    apart = here[1][rows][:, None, :].astype(np.float64) - there[1][columns][None, :, :]
    distances: NDArray[np.float64] = np.sqrt(np.square(apart).sum(axis=2))
    return distances
