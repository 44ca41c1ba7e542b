"""The dataflow graph of a state of an `.sdfg` file: checked, in an order in which it may run."""

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
    """A node; `scope`: the map it lies in, None outside of all."""

    id: str
    type: str
    label: str
    told: dict[str, Any]
    scope: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """From a node to a node; `memlet` says which part of which array goes along, empty for none."""

    source: str
    target: str
    source_connector: str | None
    target_connector: str | None
    memlet: dict[str, Any]

    @property
    def data(self) -> str | None:
        return self.memlet.get("data")

    def view(self, place: Place) -> View:
        """The part of an array that goes along.

        Raises: NestError.
        """
        if not isinstance(self.data, str):
            raise NestError("an edge carries no data")
        view = place.view(self.data)
        return view.part(parts_of(self.memlet.get("subset"), place)) if view.at else view


class Graph:
    """Nodes and edges of a state.

    Raises: NestError for edges to nowhere and for cycles.
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
        """The nodes of a map, or those outside of all, in the order in which they may run."""
        return (self.nodes[at] for at in self.order if self.nodes[at].scope == scope)

    def _ordered(self) -> list[str]:
        place = {at: number for number, at in enumerate(self.nodes)}
        left = {at: len(edges) for at, edges in self.into.items()}
        ready = [(place[at], at) for at, count in left.items() if not count]
        heapq.heapify(ready)
        found: list[str] = []
        while ready:
            _, at = heapq.heappop(ready)
            found.append(at)
            for edge in self.out[at]:
                left[edge.target] -= 1
                if not left[edge.target]:
                    heapq.heappush(ready, (place[edge.target], edge.target))
        if len(found) < len(self.nodes):
            raise NestError("a graph has a cycle")
        return found

    def _check_scope(self, node: GraphNode) -> None:
        at, depth = node.scope, 0
        while at is not None:
            around = self.nodes.get(at)
            if around is None or not around.type.endswith("Entry") or depth > _DEEPEST:
                raise NestError(f"node {node.id[:20]} lies in no map")
            at, depth = around.scope, depth + 1


def _nodes(told: Any) -> Iterator[GraphNode]:
    for number, one in enumerate(told if isinstance(told, list) else []):
        if not isinstance(one, dict) or not isinstance(one.get("attributes"), dict):
            raise NestError(f"node {number} is none")
        scope = one.get("scope_entry")
        yield GraphNode(
            str(one.get("id", number)),
            str(one.get("type")),
            str(one.get("label", ""))[:60],
            one["attributes"],
            None if scope is None else str(scope),
        )


def _edges(told: Any) -> Iterator[Edge]:
    for one in told if isinstance(told, list) else []:
        try:
            memlet = one["attributes"]["data"].get("attributes") or {}
            ends = str(one["src"]), str(one["dst"])
        except (KeyError, TypeError, AttributeError) as error:
            raise NestError("an edge is none") from error
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
    raise NestError("a subset is none")


def _part(told: Any, place: Place) -> Part:
    if not isinstance(told, dict):
        raise NestError("a range is none")
    start, end = (index_of(told.get(name), place) for name in ("start", "end"))
    steps = [number_of(told.get(name, "1"), place) for name in ("step", "tile")]
    if start != end and steps != [1, 1]:
        raise NestError("a part of an array has gaps")
    return Part(start, end)
