"""Matchers and vectors of nodes that `benchmarks/nests.py` compares with those of the package
(`embeddb.nests.matching.transfer`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.nests.check import packable
from embeddb.nests.encoding.forward import NestNetwork
from embeddb.nests.encoding.graph import Node, graph_of, rows_of
from embeddb.nests.matching.transfer import (
    Legal,
    Matcher,
    Matching,
    NodeVectors,
    Transfer,
    match_array,
    match_loops,
    transfer,
)
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access
from embeddb.nests.recipe import Pack, Parallel, Step, Tile, named, recipe_of
from embeddb.nests.schedule import Schedule

#: Doublings of a size that weigh as much as a binary property.
_DOUBLINGS = 8.0


def learned_vectors(network: NestNetwork) -> NodeVectors:
    """The network's vectors of nodes, of the static encoding alone."""

    def vectors(nest: Nest, schedule: Schedule) -> tuple[tuple[Node, ...], NDArray[np.float32]]:
        graph = graph_of(nest, schedule)
        return graph.nodes, network.node_embeddings(graph)

    return vectors


def loop_vectors(nest: Nest, schedule: Schedule) -> tuple[tuple[Node, ...], NDArray[np.float32]]:
    """Four handcrafted features of each generated loop and of each array that is read.

    A loop: fraction of targets whose element it changes (none: a reduction), of accesses that it
    moves to the next element, of accesses that it does not move, and its trip count. An array:
    fraction of loops that move through it and that move to its next element, of reductions among
    the latter, and its size.
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
    """The part of `loop_vectors` that is the same for all schedules: by loop, and by array."""
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
    """Elements from one iteration of the loop to the next, without the sign; infinite for an index
    that is read from an array."""
    if loop not in access.loops:
        return 0
    if any(index.of is not None and loop in index.of.loops for index in access.at):
        return math.inf
    strides = zip(access.at, nest.arrays[access.array].strides, strict=True)
    return abs(nest.loops[loop].step * sum(i.affine.coef(loop) * by for i, by in strides))


def _share(of: Iterable[bool]) -> float:
    values = list(of)
    return sum(values) / len(values) if values else 0.0


def step_by_step(source: Nest, target: Nest, vectors: NodeVectors) -> Matcher:
    """Matcher of the paper: for each step the nodes that it names, with vectors of both nests under
    the schedules so far. A loop that is split already is not split again."""

    def matching(step: Step, source_schedule: Schedule, target_schedule: Schedule) -> Matching:
        here, there = vectors(source, source_schedule), vectors(target, target_schedule)
        if isinstance(step, Pack):
            return match_array(step.array, here, there, packable(target))
        block = isinstance(step, Parallel) and step.block
        wanted = rows_of(here[0], kind="entry", block=block)
        wanted = [row for row in wanted if here[0][row].loop in named(step)]
        offered = rows_of(there[0], kind="entry", block=block)
        if isinstance(step, Tile):
            offered = [row for row in offered if not target_schedule.tiles[there[0][row].loop]]
        return match_loops(here, wanted, there, offered)

    return matching


def by_slot(source: Nest, target: Nest) -> Matcher:
    """Baseline without vectors: the k-th loop matches the k-th, the first packable array the
    first."""
    arrays = dict(zip(packable(source), packable(target), strict=False))
    loops = {at: at for at in range(min(source.depth, target.depth))}

    def matching(step: Step, source_schedule: Schedule, target_schedule: Schedule) -> Matching:
        same = arrays if isinstance(step, Pack) else loops
        return {at: (same[at], 0.0) for at in named(step) if at in same}

    return matching


def slot_copy(schedule: Schedule, source: Nest, *, target: Nest, legal: Legal) -> Transfer:
    """Baseline for transfers: the same values in the same slots, as far as they are legal. Raises:
    NestError for nests of different depth."""
    if source.depth != target.depth:
        raise NestError(f"a schedule of {source.depth} loops does not fit {target.depth} loops")
    steps = recipe_of(source, schedule)
    return transfer(steps, source, target=target, legal=legal, matcher=by_slot(source, target))
