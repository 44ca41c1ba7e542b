"""The dataflow graph of a state of an `.sdfg` file, checked and in topological order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from embeddb.core.errors import NestError
from indexer.frontends.dace.data import Part, View
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import index_of, number_of

_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node with its attributes; `scope`: the map around it, None outside of all."""

    id: str
    type: str
    label: str
    attributes: dict[str, Any]
    scope: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between nodes; `memlet` is the part of an array that it carries, empty for none."""

    source: str
    target: str
    source_connector: str | None
    target_connector: str | None
    memlet: dict[str, Any]

    @property
    def data(self) -> str | None:
        return self.memlet.get("data")

    def view(self, place: Place) -> View:
        """The part of an array that it carries.

        Raises: NestError.
        """
        if not isinstance(self.data, str):
            raise NestError("an edge carries no data")
        view = place.view(self.data)
        return view.part(parts_of(self.memlet.get("subset"), place)) if view.at else view


class Graph:
    """Nodes and edges of a state.

    Raises: NestError for edges to missing nodes and for cycles.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.nodes = {node.id: node for node in _nodes(state.get("nodes"))}
        self.into: dict[str, list[Edge]] = {at: [] for at in self.nodes}
        self.out: dict[str, list[Edge]] = {at: [] for at in self.nodes}
        for edge in _edges(state.get("edges")):
            for end in (edge.source, edge.target):
                if end not in self.nodes:
                    raise NestError(f"an edge ends at node {end[:20]}, which is not there")
            self.into[edge.target].append(edge)
            self.out[edge.source].append(edge)
        self.order = self._ordered()
        for node in self.nodes.values():
            self._check_scope(node)

    def within(self, scope: str | None) -> Iterator[GraphNode]:
        """The nodes of a map, or those outside of all, in topological order."""
        return (self.nodes[at] for at in self.order if self.nodes[at].scope == scope)

    def _ordered(self) -> list[str]:
        place = {at: number for number, at in enumerate(self.nodes)}
        left = {at: len(edges) for at, edges in self.into.items()}
        ready = [(place[at], at) for at, count in left.items() if not count]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            _, at = heapq.heappop(ready)
            order.append(at)
            for edge in self.out[at]:
                left[edge.target] -= 1
                if not left[edge.target]:
                    heapq.heappush(ready, (place[edge.target], edge.target))
        if len(order) < len(self.nodes):
            raise NestError("a graph has a cycle")
        return order

    def _check_scope(self, node: GraphNode) -> None:
        at, depth = node.scope, 0
        while at is not None:
            around = self.nodes.get(at)
            if around is None or not around.type.endswith("Entry") or depth > _DEEPEST:
                raise NestError(f"node {node.id[:20]} is in no map")
            at, depth = around.scope, depth + 1


def _nodes(documents: Any) -> Iterator[GraphNode]:
    for number, one in enumerate(documents if isinstance(documents, list) else []):
        if not isinstance(one, dict) or not isinstance(one.get("attributes"), dict):
            raise NestError(f"node {number} is malformed")
        scope = one.get("scope_entry")
        yield GraphNode(
            str(one.get("id", number)),
            str(one.get("type")),
            str(one.get("label", ""))[:60],
            one["attributes"],
            None if scope is None else str(scope),
        )


def _edges(documents: Any) -> Iterator[Edge]:
    for one in documents if isinstance(documents, list) else []:
        try:
            memlet = one["attributes"]["data"].get("attributes") or {}
            ends = str(one["src"]), str(one["dst"])
        except (KeyError, TypeError, AttributeError) as error:
            raise NestError("an edge is malformed") from error
        yield Edge(*ends, one.get("src_connector"), one.get("dst_connector"), memlet)


def parts_of(subset: Any, place: Place) -> list[Part]:
    """A subset as parts, one for each dimension.

    Raises: NestError.
    """
    match subset:
        case {"type": "Range", "ranges": [*ranges]}:
            return [_part(one, place) for one in ranges]
        case {"type": "Indices", "indices": [*indices]}:
            return [Part(at, at) for at in (index_of(one, place) for one in indices)]
    raise NestError("a subset is malformed")


def _part(document: Any, place: Place) -> Part:
    if not isinstance(document, dict):
        raise NestError("a range is malformed")
    start, end = (index_of(document.get(name), place) for name in ("start", "end"))
    steps = [number_of(document.get(name, "1"), place) for name in ("step", "tile")]
    if start != end and steps != [1, 1]:
        raise NestError("a part of an array has gaps")
    return Part(start, end)
