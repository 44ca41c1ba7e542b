"""A nest and its schedule as a graph ("Performance Embeddings", Section 3.2, static encoding).

    array -> memlet -> entry ... -> memlet -> body -> memlet -> exit ... -> memlet -> array

Arrays that are read, the generated loops (an entry and an exit each), one body for all statements,
arrays that are written; what flows between two scopes passes a memlet, a node of its own, which
says what part of the array it is. As in an SDFG: an array that is read and written is two nodes; a
reduction's target is only written; accesses that differ in constants share their memlets but for
the innermost ones, one for each access. Scopes hang together without memlets too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.encoding import features
from embeddb.nests.encoding.footprints import Group, groups_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Statement
from embeddb.nests.schedule import Piece, Schedule

__all__ = ["NestGraph", "Node", "graph_of"]


class Node(NamedTuple):
    """`kind` is one of `array`, `entry`, `exit`, `body`, `memlet`; the rest says what of the nest
    it is, -1 where that does not apply. `loop` and `block`: an entry's and exit's loop, and whether
    it is the one from block to block. `array`: of array and memlet; `written`: whether it is the
    node of what is written. `statement`: of an innermost memlet."""

    kind: str
    loop: int = -1
    block: bool = False
    array: int = -1
    statement: int = -1
    written: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NestGraph:
    """Shapes: `features` float32[n,f], the coordinates of `encoding.features.FEATURES`; `edges`
    int64[2,e], from the first row to the second, each in both directions."""

    nodes: tuple[Node, ...]
    features: NDArray[np.float32]
    edges: NDArray[np.int64]

    def find(self, **wanted: object) -> list[int]:
        """The nodes whose fields have these values, in order."""
        asked = wanted.items()
        return [at for at, n in enumerate(self.nodes) if all(getattr(n, k) == v for k, v in asked)]


def graph_of(nest: Nest, schedule: Schedule) -> NestGraph:
    """The graph of a nest as that schedule would run it. Names do not enter; nodes and edges come
    in an order that the nest alone decides: arrays read, entries and exits from the outermost, the
    body, arrays written, memlets."""
    making = _Making(nest, schedule)
    making.add_scopes()
    for at, loop in enumerate(nest.loops):
        level = next(n for n, piece in enumerate(making.pieces) if piece.loop == at)
        bounds = [bound.of for bound in (loop.lower, loop.upper) if bound.of is not None]
        making.add_reads([(-1, a) for of in bounds for a in (*of.inner(), of)], level)
    reads = [(at, access) for at, s in enumerate(nest.body) for access in s.reads()]
    making.add_reads(reads, None)
    making.add_writes()
    return making.graph()


class _Making:
    """A graph that is being put together."""

    def __init__(self, nest: Nest, schedule: Schedule) -> None:
        self.nest, self.schedule = nest, schedule
        self.pieces: tuple[Piece, ...] = schedule.pieces(nest)
        self.nodes: list[Node] = []
        self.rows: list[NDArray[np.float32]] = []
        self.joined: dict[tuple[int, int], None] = {}
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.entries: list[int] = []
        self.exits: list[int] = []
        self.body = -1

    def graph(self) -> NestGraph:
        edges = np.array(list(self.joined), dtype=np.int64).reshape(-1, 2).T
        both = np.concatenate([edges, edges[::-1]], axis=1)
        return NestGraph(tuple(self.nodes), np.stack(self.rows), np.ascontiguousarray(both))

    def add_scopes(self) -> None:
        """Every node but memlets, and what holds them together."""
        nest, pieces = self.nest, self.pieces
        packed = _packed(nest, self.schedule)
        for array in sorted({access.array for _, access, writes in nest.accesses() if not writes}):
            row = features.array_row(nest.arrays[array], written=False, packed=array == packed)
            self.read[array] = self._add(Node("array", array=array), row)
        for level, piece in enumerate(pieces):
            row = features.entry_row(nest, self.schedule, pieces, level)
            self.entries.append(self._add(Node("entry", piece.loop, piece.block), row))
        for piece in pieces:
            node = Node("exit", piece.loop, piece.block)
            self.exits.append(self._add(node, features.plain_row("exit")))
        self.body = self._add(Node("body"), features.body_row(nest))
        for array in sorted(nest.written):
            row = features.array_row(nest.arrays[array], written=True, packed=False)
            self.written[array] = self._add(Node("array", array=array, written=True), row)
        chain = [*self.entries, self.body, *reversed(self.exits)]
        for one, other in (*pairwise(chain), *zip(self.entries, self.exits, strict=True)):
            self._join(one, other)

    def add_reads(self, reads: list[tuple[int, Access]], level: int | None) -> None:
        """What is read by the bounds of the generated loop `level`, or (None) by the body."""
        inside = self.entries[:level] if level is not None else self.entries
        goal = self.body if level is None else self.entries[level]
        for group in groups_of([access for _, access in reads]):
            scopes = [self.read[group.array], *inside]
            for at, (outer, inner) in enumerate(pairwise(scopes)):
                self._pass(outer, inner, group, at, of_bound=level is not None)
            for access in group.accesses:
                statement = next(at for at, a in reads if a == access)
                one = Group((access,))
                bound = level is not None
                self._pass(scopes[-1], goal, one, len(inside), statement, of_bound=bound)

    def add_writes(self) -> None:
        """What the statements write, each by itself: how they combine may differ."""
        for at, statement in enumerate(self.nest.body):
            group = Group((statement.target,))
            scopes = [self.written[group.array], *self.exits]
            for level, (outer, inner) in enumerate(pairwise(scopes)):
                self._pass(inner, outer, group, level, writer=statement)
            self._pass(self.body, scopes[-1], group, len(self.exits), at, writer=statement)

    def _pass(
        self,
        source: int,
        goal: int,
        group: Group,
        level: int,
        statement: int = -1,
        *,
        writer: Statement | None = None,
        of_bound: bool = False,
    ) -> None:
        """A memlet between two nodes, `level` generated loops around it."""
        row = features.memlet_row(
            self.nest,
            self.schedule,
            self.pieces,
            group,
            level=level,
            writer=writer,
            of_bound=of_bound,
        )
        node = Node("memlet", array=group.array, statement=statement, written=writer is not None)
        memlet = self._add(node, row)
        self._join(source, memlet)
        self._join(memlet, goal)

    def _add(self, node: Node, row: NDArray[np.float32]) -> int:
        self.nodes.append(node)
        self.rows.append(row)
        return len(self.nodes) - 1

    def _join(self, source: int, goal: int) -> None:
        self.joined[source, goal] = None


def _packed(nest: Nest, schedule: Schedule) -> int:
    """The array that the schedule copies block by block; -1: none."""
    if schedule.pack == "none":
        return -1
    reads = [access.array for s in nest.body for access in s.reads()]
    distinct = [array for array in dict.fromkeys(reads) if array not in nest.written]
    at = int(schedule.pack.removeprefix("read")) - 1
    return distinct[at] if at < len(distinct) else -1
