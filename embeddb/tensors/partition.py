"""Partition of a program into kernels, given by a cut.

The fusion configurations of "A Learned Performance Model for Tensor Processing Units" (Section
2.2), for a compiler that receives one kernel at a time: operations connected by edges that are not
cut are compiled together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from embeddb.core.config import Value
from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, Edges, edges_of
from embeddb.tensors.tensor_graph import Operation, TensorGraph


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel of a partition. `takes` are the positions in the program of the values of its
    parameters, `gives` those of its outputs, both in the kernel's order."""

    kernel: TensorGraph
    takes: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """The kernels of a program. `kernel_of` is the kernel number of each operation, -1 for
    operations in none: parameters, and constants, which every kernel copies. Kernels are numbered
    in topological order."""

    program: TensorGraph
    kernel_of: tuple[int, ...]

    @classmethod
    def of(cls, program: TensorGraph, cut: Cut | str) -> Partition:
        """Partition by a cut, or its text. Raises: TensorError for a cut of another program, and
        for kernels that would depend on each other (`Edges.mended` repairs such a cut)."""
        edges = edges_of(program)
        cut = Cut.read(cut, len(edges.pairs)) if isinstance(cut, str) else cut
        labels = edges.labels(cut)
        if reason := why_not(program, labels):
            raise TensorError(reason)
        number = {label: at for at, label in enumerate(_in_order(edges, labels))}
        return cls(program, tuple(number.get(label, -1) for label in labels))

    @cached_property
    def cut(self) -> Cut:
        """The edges between its kernels."""
        return edges_of(self.program).between(self.kernel_of)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the operations of each kernel."""
        groups: list[list[int]] = [[] for _ in range(max(self.kernel_of, default=-1) + 1)]
        for place, number in enumerate(self.kernel_of):
            if number >= 0:
                groups[number].append(place)
        return tuple(map(tuple, groups))

    @cached_property
    def kernels(self) -> tuple[PlacedKernel, ...]:
        """Kernels in topological order. A value that others use is an output of its kernel."""
        return tuple(placed_kernel(self.program, members) for members in self.members)


def placed_kernel(program: TensorGraph, members: Sequence[int]) -> PlacedKernel:
    """The kernel of these operations, by their positions in order, whatever the others are."""
    inside, given_out = frozenset(members), frozenset(program.outputs)
    # Several results are output by the operations that extract one of them.
    outputs = [
        place
        for place in members
        if len(program.operations[place].results) == 1
        and (place in given_out or not inside.issuperset(program.users[place]))
    ]
    operations, places = _operations(program, members)
    graph = computation(
        operations,
        [places.index(place) for place in outputs],
        group=program.group,
        names=[str(place) for place in places],
    )
    places = [int(name) for name in graph.names]
    names = tuple(_name(program, place) for place in places) if program.names else ()
    head = program.name or program.id[:12]
    named = replace(graph, name=f"{head}.{_name(program, outputs[-1])}.{graph.id[:8]}", names=names)
    return PlacedKernel(
        named,
        tuple(places[at] for at in named.parameters),
        tuple(places[at] for at in named.outputs),
    )


def _name(program: TensorGraph, place: int) -> str:
    return program.names[place] if program.names else str(place)


def _operations(program: TensorGraph, members: Sequence[int]) -> tuple[list[Operation], list[int]]:
    """Operations of one kernel, with their positions in the program."""
    copied = edges_of(program).copied
    needed, open_ = set(members), list(members)
    while open_:
        below = program.operations[open_.pop()].operands
        fresh = copied.intersection(below) - needed
        needed |= fresh
        open_ += fresh
    operations: list[Operation] = []
    index: dict[int, int] = {}

    def add(place: int, operation: Operation) -> None:
        index[place] = len(operations)
        operations.append(operation)

    for place in sorted(needed):
        original = program.operations[place]
        for other in original.operands:
            if other not in index:  # another kernel's, or given
                shape = program.operations[other].shape
                add(other, Operation("parameter", (shape,), (), {"number": 0}))
        add(place, replace(original, operands=tuple(index[other] for other in original.operands)))
    return operations, list(index)


def why_not(program: TensorGraph, labels: Sequence[int]) -> str:
    """Names operations of one kernel that have another kernel's operation between them; empty if
    there are none. `labels` as returned by `Edges.labels`."""
    edges = edges_of(program)
    strong = edges.strong(labels)
    ahead: dict[int, list[tuple[int, int]]] = {}
    for maker, user in edges.pairs:
        if labels[maker] != labels[user] and strong[labels[maker]] == strong[labels[user]]:
            ahead.setdefault(labels[maker], []).append((maker, user))
    if not ahead:
        return ""
    goal = min(ahead)
    maker, between = ahead[goal][0]
    back, seen, waiting = between, {labels[between]}, [labels[between]]
    while goal not in seen:
        for _, back in ahead[waiting.pop(0)]:
            if labels[back] not in seen:
                seen.add(labels[back])
                waiting.append(labels[back])
            if labels[back] == goal:
                break
    return (
        f"{_name(program, maker)} and {_name(program, back)} are in one kernel, but "
        f"{_name(program, between)}, which is in another, lies between them"
    )


def _in_order(edges: Edges, labels: Sequence[int]) -> Iterator[int]:
    """Labels of kernels in topological order; among several, the one that begins first."""
    kernels: TopologicalSorter[int] = TopologicalSorter()
    for label in labels:
        if label >= 0:
            kernels.add(label)
    for maker, user in edges.pairs:
        if labels[maker] != labels[user]:
            kernels.add(labels[user], labels[maker])
    kernels.prepare()
    # A label is the place of the kernel's first operation.
    ready: list[int] = []
    while kernels.is_active():
        for label in kernels.get_ready():
            heapq.heappush(ready, label)
        first = heapq.heappop(ready)
        yield first
        kernels.done(first)


#: Largest mean number of operations per kernel of a random cut: larger ones compile for seconds.
MOST_AVERAGE = 20


class CutJudge:
    """The rules of a program as one more constraint (`embeddb.platforms.space.rules`): kernels must
    not depend on each other, and each partition has one canonical text."""

    names = frozenset({CUT})

    def __init__(self, program: TensorGraph) -> None:
        self.program = program
        self.text = f"the cuts of {program.name or program.id[:12]}"

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Return true if the cut is legal; None while there is none."""
        return None if CUT not in env else not self.reason(env)

    def seen(self, name: str, value: Value) -> Value:
        """The whole value: legality depends on all of it."""
        return value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Reason why the cut is illegal, in one line; empty where it is legal."""
        text = str(values[CUT])
        try:
            edges = edges_of(self.program)
            if len(edges.pairs) > MOST_EDGES:
                return f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut"
            cut = Cut.read(text, len(edges.pairs))
        except TensorError as error:
            return error.reason
        labels = edges.labels(cut)
        if reason := why_not(self.program, labels):
            return reason
        settled = edges.between(labels)
        if settled != cut:
            return f"an edge is cut inside a kernel; its canonical text is {settled.text}"
        return "" if text == cut.text else f"its canonical text is {cut.text}"


def random_cut(program: TensorGraph, rng: np.random.Generator) -> Cut:
    """A random legal cut, drawn in one of two ways: a random fraction of edges is cut, which gives
    many small kernels; or the program is split repeatedly into a random number of kernels, which
    gives large kernels too."""
    return _torn(program, rng) if rng.random() < 0.5 else _parted(program, rng)


def _torn(program: TensorGraph, rng: np.random.Generator) -> Cut:
    """Cut half of the edges inside kernels that depend on each other, until none do."""
    edges = edges_of(program)
    makers = np.array([maker for maker, _ in edges.pairs], np.int64)
    bits = rng.random(len(edges.pairs)) < rng.random()
    while True:
        labels = edges.labels(Cut(tuple(bits.tolist())))
        strong = np.array(edges.strong(labels))
        kernels = np.unique(np.array(labels)[makers]) if makers.size else makers
        needing = np.bincount(strong[kernels], minlength=len(strong)) > 1
        torn = needing[strong[np.array(labels)[makers]]] & ~bits if makers.size else bits
        if not torn.any():
            return edges.between(labels)
        half = torn & (rng.random(len(bits)) < 0.5)
        bits |= half if half.any() else torn


def _parted(program: TensorGraph, rng: np.random.Generator) -> Cut:
    edges = edges_of(program)
    most = max(len(edges.computing), 1)
    least = max(most / MOST_AVERAGE, 1)
    wanted = np.exp(rng.uniform(np.log(least), np.log(most)))
    cut = edges.whole
    while len(set(edges.labels(cut))) <= wanted and not all(cut.bits):
        inside = np.flatnonzero(~np.array(cut.bits, bool))
        cut = flipped(program, cut, int(rng.choice(inside)))
    return cut


def flipped(program: TensorGraph, cut: Cut, edge: int) -> Cut:
    """The legal cut with one edge (a number) flipped, from a legal one. Flipping a cut edge merges
    two kernels, and those between them; flipping another one moves its consumer and the operations
    of the kernel that depend on it to a kernel of their own.

    Raises: TensorError for an edge or a cut of another program.
    """
    edges = edges_of(program)
    if not 0 <= edge < len(edges.pairs):
        raise TensorError(f"there is no edge {edge} among {len(edges.pairs)}")
    if cut.bits[edge : edge + 1] == (True,):
        bits = list(cut.bits)
        bits[edge] = False
        return edges.mended(Cut(tuple(bits)))
    labels = edges.labels(cut)
    kernel, gone = labels[edges.pairs[edge][1]], {edges.pairs[edge][1]}
    # Consumers follow their producers, so one pass is enough. Tied operations move along.
    for place in edges.computing:
        operands = program.operations[place].operands
        if labels[place] == kernel and not gone.isdisjoint(operands):
            gone.add(place)
    apart = [-2 - label if place in gone else label for place, label in enumerate(labels)]
    return edges.between(edges.labels(edges.between(apart)))


def near_cut(program: TensorGraph, cut: Cut, rng: np.random.Generator) -> Cut:
    """Flip one edge, with equal probability one that is cut or one that is not, where both are
    possible. The same cut for a program without edges."""
    kinds = [np.flatnonzero(np.array(cut.bits, bool) == bit) for bit in (True, False)]
    able = [edges for edges in kinds if edges.size]
    if not able:
        return cut
    chosen = able[int(rng.integers(len(able)))]
    return flipped(program, cut, int(rng.choice(chosen)))
