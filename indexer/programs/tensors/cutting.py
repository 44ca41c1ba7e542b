"""Default fusion of a program into kernels, as by a compiler: one heavy operation in each, with its
element-wise consumers and with producers that are used by it alone.

Every kernel has one output. An operation is in one kernel; operations that only move or repeat
numbers (`VIEWS`), and constants, are copied into every kernel that reads them. Operations with
several results are in none, nor are extractions of one of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, TensorGraph

#: Most operations of one kernel, including parameters and copies.
MOST_OPERATIONS = 64
VIEWS = frozenset("bitcast broadcast iota reshape reverse slice transpose".split())  # noqa: SIM905
#: Every kernel gets its own copy of them, but for views that are outputs.
_COPIED = VIEWS | {"parameter", "constant"}
_HEAVY = frozenset(("dot", "convolution", "reduce", "reduce-window"))
#: Kernels of their own: they read at computed indices, or are no single loop.
_ALONE = frozenset(
    """
    gather scatter select-and-scatter sort dynamic-slice dynamic-update-slice while conditional
    custom-call rng fft cholesky triangular-solve
    """.split()  # noqa: SIM905 - a table of words
)
#: Of another shape than their operands: never fused after a heavy operation.
_RESHAPING = frozenset(("concatenate", "pad"))


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel and its place in the program: `takes` are the places of its inputs, in order,
    `gives` that of its output, `members` those of its operations that no other kernel has."""

    kernel: TensorGraph
    takes: tuple[int, ...]
    gives: int
    members: tuple[int, ...]


def pieces_of(program: TensorGraph) -> list[Piece]:
    """The kernels in an order of execution, numbered so after the name of the program."""
    cutting = _Cutting(program)
    return [cutting.piece(at, members) for at, members in enumerate(cutting.groups())]


def distinct_kernels(programs: Iterable[TensorGraph]) -> list[TensorGraph]:
    """Distinct kernels of programs, called PROGRAM/NUMBER and of the group of the first program
    that has it. Kernels that differ only in the start of slices, as in the steps of a recurrent
    network, count as one."""
    kernels: dict[str, TensorGraph] = {}
    for program in programs:
        for piece in pieces_of(program):
            alike = tuple(map(_from_zero, piece.kernel.operations))
            kernels.setdefault(replace(piece.kernel, operations=alike).id, piece.kernel)
    return list(kernels.values())


def uncut(tensors: Iterable[TensorGraph]) -> list[str]:
    """A note for each program with operations that compute and are in no kernel."""
    notes = []
    for program in tensors:
        several = [
            f"{op.opcode} {program.names[at]}" if program.names else op.opcode
            for at, op in enumerate(program.operations)
            if len(op.results) != 1 and op.opcode != "tuple"
        ]
        if several and program.kind == "program":
            more = f" (and {len(several) - 5:,} more)" if len(several) > 5 else ""
            named = ", ".join(several[:5])
            notes.append(f"{program.name}: no kernel has {named}{more}: several results")
    return notes


def _from_zero(op: Operation) -> Operation:
    """The operation, if it is a slice as one that starts at 0."""
    if op.opcode != "slice":
        return op
    start, limit = op.dims("start"), op.dims("limit")
    moved = tuple(last - first for first, last in zip(start, limit, strict=True))
    return replace(op, attributes={**op.attributes, "start": (0,) * len(start), "limit": moved})


class _Cutting:
    """Groups of operations, by the first of each; only the last operation of a group is read by
    others. No join changes that, so that groups never depend on each other mutually."""

    def __init__(self, program: TensorGraph) -> None:
        self.program = program
        self.outputs = frozenset(program.outputs)
        self.own = [
            op.opcode not in _COPIED or (at in self.outputs and op.opcode in VIEWS)
            for at, op in enumerate(program.operations)
        ]
        self.readers = _readers(program, self.own)
        self.group: dict[int, int] = {}
        self.members: dict[int, list[int]] = {}

    def groups(self) -> list[tuple[int, ...]]:
        operations = self.program.operations
        for at, op in enumerate(operations):
            if len(op.results) != 1 or op.opcode == "get-tuple-element":
                self.group[at] = at
        for at, op in enumerate(operations):
            if self.own[at] and at not in self.group and op.opcode in _HEAVY | _ALONE:
                self._start(at)
                if op.opcode in _HEAVY:
                    self._follow(at)
        for at in reversed(range(len(operations))):
            if self.own[at] and at not in self.group and not self._joins(at):
                self._start(at)
        for at in sorted(self.members, reverse=True):
            self._normalise(at)
        order = sorted(self.members.values(), key=max)
        return [tuple(sorted(members)) for members in order]

    def _start(self, at: int) -> None:
        self.group[at] = at
        self.members[at] = [at]

    def _follow(self, head: int) -> None:
        """Join the sole, element-wise reader of a heavy operation, and so on from there."""
        last, first = head, self.program.operations[head]
        # After a reduce as many elements as it reads, for a normalisation.
        widest = self.program.operand_shapes(head)[0] if first.opcode == "reduce" else first.shape
        while last not in self.outputs and len(self.readers[last]) == 1:
            (reader,) = self.readers[last]
            op = self.program.operations[reader]
            if reader in self.group or op.opcode in _HEAVY | _ALONE | _RESHAPING:
                return
            if op.shape.elements > widest.elements or not self._fits([head], reader):
                return
            self.group[reader] = head
            self.members[head].append(reader)
            last = reader

    def _joins(self, at: int) -> bool:
        """Join an operation to the group of all its readers, if that is one."""
        groups = {self.group[reader] for reader in self.readers[at]}
        if at in self.outputs or len(groups) != 1:
            return False
        (head,) = groups
        alone = head not in self.members or self.program.operations[head].opcode in _ALONE
        if alone or not self._fits([head], at):
            return False
        self.group[at] = head
        self.members[head].append(at)
        return True

    def _normalise(self, head: int) -> None:
        """Join a group that ends in a reduce's followers to that of another reduce of the same rows
        which is its only reader: the parts of a softmax, of a norm."""
        last = max(self.members[head])
        groups = {self.group[reader] for reader in self.readers[last]}
        if last in self.outputs or len(groups) != 1:
            return
        (other,) = groups
        if self._rows(head) is None or self._rows(head) != self._rows(other):
            return
        if not self._fits([head, other]):
            return
        for at in self.members.pop(head):
            self.group[at] = other
            self.members[other].append(at)

    def _rows(self, head: int) -> tuple[tuple[int, ...], ...] | None:
        op = self.program.operations[head]
        if op.opcode != "reduce" or head not in self.members:
            return None
        return self.program.operand_shapes(head)[0].dims, op.dims("dimensions")

    def _fits(self, heads: Iterable[int], *more: int) -> bool:
        members = [at for head in heads for at in self.members[head]]
        return len(self._places([*members, *more])) <= MOST_OPERATIONS

    def _places(self, members: Iterable[int]) -> list[int]:
        """Places of all operations of a kernel with these members: them, copies, inputs."""
        inside = set(members)
        waiting = list(inside)
        while waiting:
            for below in self.program.operations[waiting.pop()].operands:
                if below in inside:
                    continue
                inside.add(below)
                if not self.own[below]:
                    waiting.append(below)
        return sorted(inside)

    def piece(self, number: int, members: tuple[int, ...]) -> Piece:
        program, places, last = self.program, self._places(members), max(members)
        at = {place: new for new, place in enumerate(places)}
        operations = [self._within(place, members, at) for place in places]
        extracted = computation(operations, [at[last]], names=[str(place) for place in places])
        back = [int(name) for name in extracted.names]
        names = tuple(program.names[place] for place in back) if program.names else ()
        head = program.name or program.id[:12]
        kernel = replace(extracted, name=f"{head}/{number}", group=program.group, names=names)
        return Piece(kernel, tuple(back[p] for p in extracted.parameters), last, members)

    def _within(self, place: int, members: tuple[int, ...], at: dict[int, int]) -> Operation:
        op = self.program.operations[place]
        many_numbers = op.opcode == "constant" and "value" not in op.attributes
        if place not in members and (self.own[place] or many_numbers):
            return Operation("parameter", op.results, (), {"number": 0})
        return replace(op, operands=tuple(at[o] for o in op.operands))


def _readers(program: TensorGraph, own: list[bool]) -> list[list[int]]:
    """Operations that read each place, also through copied ones."""
    readers: list[list[int]] = [[] for _ in own]
    for at in reversed(range(len(own))):
        seen: dict[int, None] = {}
        for user in program.users[at]:
            seen.update(dict.fromkeys([user] if own[user] else readers[user]))
        readers[at] = list(seen)
    return readers
