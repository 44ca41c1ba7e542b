"""Vectors of the nodes of a nest's graph, by which the loops and arrays of two nests are matched.

Learned ones come from the network (`embeddb.nests.encoding.forward`); here are those without
learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.encoding.features import FEATURES
from embeddb.nests.encoding.graph import NestGraph, Node, graph_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access
from embeddb.nests.schedule import Schedule

__all__ = ["NodeVectors", "loop_vectors", "raw_vectors", "remembered", "spreads"]

#: The nodes of a nest under a schedule, and float32[n,d], a vector for each.
NodeVectors = Callable[[Nest, Schedule], tuple[Sequence[Node], NDArray[np.float32]]]

#: Doublings of a size that count as much as a property which is there or not.
_DOUBLINGS = 8.0


def remembered(vectors: NodeVectors, most: int = 512) -> NodeVectors:
    """The same, computed once for each nest and schedule: every transfer to a target begins with
    the same schedules of it."""
    return lru_cache(maxsize=most)(vectors)


def raw_vectors(spread: NDArray[np.float32] | None = None) -> NodeVectors:
    """Vectors of the graph's features as they are, divided by `spread` float32[f] (`spreads`)."""

    def vectors(nest: Nest, schedule: Schedule) -> tuple[Sequence[Node], NDArray[np.float32]]:
        graph = graph_of(nest, schedule)
        return graph.nodes, graph.features if spread is None else graph.features / spread

    return vectors


def spreads(graphs: Iterable[NestGraph]) -> NDArray[np.float32]:
    """float32[f]: how far each feature deviates over the nodes of the kind that has it; 1 for one
    that does not vary."""
    rows = np.concatenate([graph.features for graph in graphs]).astype(np.float64)
    found = np.ones(len(FEATURES), dtype=np.float32)
    kinds = [name.removeprefix("is.") for name in FEATURES if name.startswith("is.")]
    for kind in kinds:
        own = [n for n, name in enumerate(FEATURES) if name.startswith(f"{kind}.")]
        those = rows[rows[:, FEATURES.index(f"is.{kind}")] == 1.0]
        if len(those):
            deviation = those[:, own].std(axis=0)
            found[own] = np.where(deviation > 1e-6, deviation, 1.0)
    return found


def loop_vectors(nest: Nest, schedule: Schedule) -> tuple[tuple[Node, ...], NDArray[np.float32]]:
    """Four features made by hand of each generated loop and of each array that is read.

    A loop: the shares of targets that it moves through (none: a reduction), of accesses that it
    moves to the next element, of accesses that stay where they are, and its turns. An array: the
    shares of loops that move through it and that move to its next element, of reductions among the
    latter, and its size.
    """
    nodes: list[Node] = []
    rows: list[tuple[float, ...]] = []
    by_loop, by_array = _by_hand(nest)
    for piece in schedule.pieces(nest):
        nodes.append(Node("entry", piece.loop, piece.block))
        rows.append((*by_loop[piece.loop], math.log2(1 + piece.trip) / _DOUBLINGS))
    for array, row in by_array.items():
        nodes.append(Node("array", array=array))
        rows.append((*row, math.log2(1 + nest.arrays[array].bytes) / _DOUBLINGS))
    return tuple(nodes), np.array(rows, dtype=np.float32)


@lru_cache(maxsize=256)
def _by_hand(nest: Nest) -> tuple[list[tuple[float, ...]], dict[int, tuple[float, ...]]]:
    """What of `loop_vectors` no schedule changes: by loop, and by array."""
    accesses = [(access, writes) for at, access, writes in nest.accesses() if at >= 0]
    by_loop: list[tuple[float, ...]] = []
    for loop in range(nest.depth):
        written = _share(loop in access.loops for access, writes in accesses if writes)
        moves = [_move(nest, access, loop) for access, _ in accesses]
        by_loop.append((written, _share(m == 1 for m in moves), _share(m == 0 for m in moves)))
    by_array: dict[int, tuple[float, ...]] = {}
    for array in dict.fromkeys(access.array for access, writes in accesses if not writes):
        reads = [access for access, writes in accesses if access.array == array and not writes]
        moved = [(at, _move(nest, access, at)) for access in reads for at in range(nest.depth)]
        by_array[array] = (
            _share(m != 0 for _, m in moved),
            _share(m == 1 for _, m in moved),
            _share(by_loop[at][0] == 0 for at, m in moved if m == 1),
        )
    return by_loop, by_array


def _move(nest: Nest, access: Access, loop: int) -> float:
    """Elements from one turn of the loop to the next, without the sign; infinite where the index
    comes out of an array."""
    if loop not in access.loops:
        return 0
    if any(index.of is not None and loop in index.of.loops for index in access.at):
        return math.inf
    strides = zip(access.at, nest.arrays[access.array].strides, strict=True)
    return abs(nest.loops[loop].step * sum(i.affine.coef(loop) * by for i, by in strides))


def _share(of: Iterable[bool]) -> float:
    told = list(of)
    return sum(told) / len(told) if told else 0.0
