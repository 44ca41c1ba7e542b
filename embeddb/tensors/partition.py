"""A program and a cut, and the kernels that they make.

The fusion configurations of "A Learned Performance Model for Tensor Processing Units" (Section
2.2), for a compiler that is given one kernel at a time: operations that no cut edge parts are
compiled together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut, Edges, edges_of
from embeddb.tensors.operation import Operation

__all__ = ["Partition", "PlacedKernel", "placed_kernel"]


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel of a partition. `takes` are the places in the program of what its parameters are
    given, `gives` those of what its outputs are, both in its own order."""

    kernel: Computation
    takes: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """The kernels of a program. `kernel_of` is by place the number of the kernel that an operation
    is in, -1 for what is in none: parameters, and constants, which every kernel has for itself.
    Numbered are kernels in an order in which each needs only what those before it give."""

    program: Computation
    kernel_of: tuple[int, ...]

    @classmethod
    def of(cls, program: Computation, cut: Cut | str) -> Partition:
        """By a cut, or its text. Raises: TensorError for a cut of another program, and where
        kernels would need each other (`embeddb.tensors.cuts` mends such a cut)."""
        edges = edges_of(program)
        cut = Cut.read(cut, len(edges.pairs)) if isinstance(cut, str) else cut
        labels = edges.labels(cut)
        if reason := why_not(program, labels):
            raise TensorError(reason)
        order = _in_order(program, edges, labels)
        number = {label: at for at, label in enumerate(order)}
        return cls(program, tuple(number.get(label, -1) for label in labels))

    @cached_property
    def cut(self) -> Cut:
        """The edges between its kernels."""
        pairs = edges_of(self.program).pairs
        return Cut(tuple(self.kernel_of[p] != self.kernel_of[c] for p, c in pairs))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """By kernel the places of its operations."""
        found: list[list[int]] = [[] for _ in range(max(self.kernel_of, default=-1) + 1)]
        for place, number in enumerate(self.kernel_of):
            if number >= 0:
                found[number].append(place)
        return tuple(map(tuple, found))

    @cached_property
    def kernels(self) -> tuple[PlacedKernel, ...]:
        """In an order in which they can run. A value that other kernels use is an output of the
        one that makes it."""
        return tuple(placed_kernel(self.program, members) for members in self.members)


def placed_kernel(program: Computation, members: Sequence[int]) -> PlacedKernel:
    """The kernel of these operations, by their places in order; what else is in a partition does
    not change it."""
    inside, given_out = frozenset(members), frozenset(program.outputs)
    # What has several results is given out by the operations that take one of them.
    outputs = [
        place
        for place in members
        if len(program.operations[place].results) == 1
        and (place in given_out or not inside.issuperset(program.users[place]))
    ]
    operations, places = _operations(program, members)
    made = computation(
        operations,
        [places.index(place) for place in outputs],
        group=program.group,
        names=[str(place) for place in places],
    )
    places = [int(name) for name in made.names]
    names = tuple(_name(program, place) for place in places) if program.names else ()
    head = program.name or program.id[:12]
    named = replace(made, name=f"{head}.{_name(program, outputs[-1])}.{made.id[:8]}", names=names)
    return PlacedKernel(
        named,
        tuple(places[at] for at in named.parameters),
        tuple(places[at] for at in named.outputs),
    )


def _name(program: Computation, place: int) -> str:
    return program.names[place] if program.names else str(place)


def _operations(program: Computation, members: Sequence[int]) -> tuple[list[Operation], list[int]]:
    """Of one kernel, with the places in the program that they stand for."""
    copied = edges_of(program).copied
    needed, open_ = set(members), list(members)
    while open_:
        below = program.operations[open_.pop()].operands
        fresh = copied.intersection(below) - needed
        needed |= fresh
        open_ += fresh
    operations: list[Operation] = []
    known: dict[int, int] = {}

    def add(place: int, operation: Operation) -> None:
        known[place] = len(operations)
        operations.append(operation)

    for place in sorted(needed):
        made = program.operations[place]
        for other in made.operands:
            if other not in known:  # another kernel's, or given
                shape = program.operations[other].shape
                add(other, Operation("parameter", (shape,), (), {"number": 0}))
        add(place, replace(made, operands=tuple(known[other] for other in made.operands)))
    return operations, list(known)


def why_not(program: Computation, labels: Sequence[int]) -> str:
    """Which operations of one kernel have one of another between them; empty if none have.
    `labels` as `Edges.labels` gives them."""
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


def _in_order(program: Computation, edges: Edges, labels: Sequence[int]) -> list[int]:
    """The labels of kernels, each behind those that it needs; of several that could come next, the
    one whose first operation is first."""
    needs: dict[int, set[int]] = {}
    for label in labels:
        if label >= 0:
            needs.setdefault(label, set())
    users: dict[int, list[int]] = {label: [] for label in needs}
    for maker, user in edges.pairs:
        below, above = labels[maker], labels[user]
        if below != above and below not in needs[above]:
            needs[above].add(below)
            users[below].append(above)
    # A label is the place of the kernel's first operation.
    ready = [label for label, below in needs.items() if not below]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        label = heapq.heappop(ready)
        order.append(label)
        for user in users[label]:
            needs[user].discard(label)
            if not needs[user]:
                heapq.heappush(ready, user)
    return order
