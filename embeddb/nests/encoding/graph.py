"""A nest and its schedule as a graph ("Performance Embeddings", Section 3.2, static encoding).

    array -> memlet -> entry ... -> memlet -> body -> memlet -> exit ... -> memlet -> array

Arrays that are read, the generated loops (an entry and an exit each), one body for all statements,
arrays that are written; data between two scopes passes a memlet, a node of its own, which describes
the part of the array. As in an SDFG: an array that is read and written is two nodes; a reduction's
target is only written; accesses that differ in constants share their memlets except for the
innermost ones, one for each access. Scopes are also connected without memlets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.encoding.features import Encoder, groups_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access
from embeddb.nests.schedule import Schedule


class Node(NamedTuple):
    """`kind` is one of `array`, `entry`, `exit`, `body`, `memlet`; the other fields identify the
    part of the nest, -1 where they do not apply. `loop` and `block`: loop of an entry or exit, and
    true for the loop over blocks. `array`: of array and memlet; `written`: true for a node that is
    written. `statement`: of an innermost memlet."""

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


def rows_of(nodes: Sequence[Node], **wanted: object) -> list[int]:
    """Nodes whose fields have these values, in order."""
    fields = wanted.items()
    return [at for at, n in enumerate(nodes) if all(getattr(n, k) == v for k, v in fields)]


def graph_of(nest: Nest, schedule: Schedule) -> NestGraph:
    """The graph of a nest under that schedule. Names do not enter; the order of nodes and edges
    depends on the nest alone: arrays read, entries and exits from the outermost, the body, arrays
    written, memlets.

    Only entries describe how loops run; the rest is shared between schedules, read-only.
    """
    still = replace(schedule, parallel="none", policy="static", chunk=1, inner="plain")
    graph = _still(nest, still)
    if schedule == still:
        return graph
    encoder, features = Encoder(nest, schedule), graph.features.copy()
    for level, row in enumerate(rows_of(graph.nodes, kind="entry")):
        features[row] = encoder.entry(level)
    return NestGraph(graph.nodes, features, graph.edges)


@lru_cache(maxsize=16)
def _still(nest: Nest, schedule: Schedule) -> NestGraph:
    """Graph of sequential loops, cached. A query needs it twice: for the features of its neighbours
    and for matching loops."""
    making = _Builder(nest, schedule)
    making.add_scopes()
    for at, loop in enumerate(nest.loops):
        level = next(n for n, piece in enumerate(making.encoder.pieces) if piece.loop == at)
        making.add_reads([(-1, a) for bound in loop.bounds for a in bound.reads()], level)
    reads = [(at, access) for at, s in enumerate(nest.body) for access in s.reads()]
    making.add_reads(reads, None)
    making.add_writes()
    return making.graph()


class _Builder:
    """Builder of a graph."""

    def __init__(self, nest: Nest, schedule: Schedule) -> None:
        self.nest = nest
        self.encoder = Encoder(nest, schedule)
        self.nodes: list[Node] = []
        self.rows: list[list[float]] = []
        self.joined: dict[tuple[int, int], None] = {}
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.entries: list[int] = []
        self.exits: list[int] = []
        self.body = -1

    def graph(self) -> NestGraph:
        edges = np.array(list(self.joined), dtype=np.int64).reshape(-1, 2).T
        both = np.concatenate([edges, edges[::-1]], axis=1)
        features = np.array(self.rows, dtype=np.float32)
        for shared in (features, both):
            shared.flags.writeable = False
        return NestGraph(tuple(self.nodes), features, both)

    def add_scopes(self) -> None:
        """Add every node but memlets, and the edges between scopes."""
        nest, encoder = self.nest, self.encoder
        for array in sorted({access.array for _, access, writes in nest.accesses() if not writes}):
            self.read[array] = self._add(Node("array", array=array), encoder.array(array))
        for level, piece in enumerate(encoder.pieces):
            node = Node("entry", piece.loop, piece.block)
            self.entries.append(self._add(node, encoder.entry(level)))
        for piece in encoder.pieces:
            node = Node("exit", piece.loop, piece.block)
            self.exits.append(self._add(node, encoder.exit()))
        self.body = self._add(Node("body"), encoder.body())
        for array in sorted(nest.written):
            node = Node("array", array=array, written=True)
            self.written[array] = self._add(node, encoder.array(array, written=True))
        chain = [*self.entries, self.body, *reversed(self.exits)]
        for one, other in (*pairwise(chain), *zip(self.entries, self.exits, strict=True)):
            self._join(one, other)

    def add_reads(self, reads: list[tuple[int, Access]], level: int | None) -> None:
        """Add the reads of the bounds of the generated loop `level`, or (None) of the body."""
        bound = level is not None
        goal = self.body if level is None else self.entries[level]
        met = {access: at for at, access in reversed(reads)}
        for group in groups_of([access for _, access in reads]):
            scopes = [self.read[group[0].array], *self.entries[:level]]
            for at, (outer, inner) in enumerate(pairwise(scopes)):
                node = Node("memlet", array=group[0].array)
                memlet = self._add(node, self.encoder.memlet(group, at, of_bound=bound))
                self._pass(outer, memlet, inner)
            for access in group:
                node = Node("memlet", array=group[0].array, statement=met[access])
                row = self.encoder.memlet((access,), len(scopes) - 1, of_bound=bound)
                self._pass(scopes[-1], self._add(node, row), goal)

    def add_writes(self) -> None:
        """Add the writes of each statement separately: their reductions may differ."""
        for at, statement in enumerate(self.nest.body):
            group = (statement.target,)
            scopes = [self.written[group[0].array], *self.exits, self.body]
            for level, (outer, inner) in enumerate(pairwise(scopes)):
                of = at if inner == self.body else -1
                node = Node("memlet", array=group[0].array, statement=of, written=True)
                memlet = self._add(node, self.encoder.memlet(group, level, writer=statement))
                self._pass(inner, memlet, outer)

    def _pass(self, source: int, memlet: int, goal: int) -> None:
        self._join(source, memlet)
        self._join(memlet, goal)

    def _add(self, node: Node, row: list[float]) -> int:
        self.nodes.append(node)
        self.rows.append(row)
        return len(self.nodes) - 1

    def _join(self, source: int, goal: int) -> None:
        self.joined[source, goal] = None
