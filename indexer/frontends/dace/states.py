"""States of an `.sdfg` file as trees: maps become loops, tasklets and copies statements.

A view in another order of elements (a reshape, a transpose) is refused: its indices are not affine
in those of its array, so dependences could not be tested.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.nest import ending_at_last
from embeddb.nests.parts import Affine, Expr, Index, Loop, Read, Statement
from indexer.frontends.dace.data import Containers, Part, Place, View, index_of, number_of
from indexer.frontends.dace.tasklets import Output, combine_of, tasklet
from indexer.frontends.tree import (
    Block,
    Node,
    Refused,
    Step,
    constant,
)

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
        """The part of an array that it carries. Raises: NestError."""
        if not isinstance(self.data, str):
            raise NestError("an edge carries no data")
        return part_of(place.view(self.data), self.memlet.get("subset"), place)


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
    """A subset as parts, one for each dimension. Raises: NestError."""
    match subset:
        case {"type": "Range", "ranges": [*ranges]}:
            return [_part(one, place) for one in ranges]
        case {"type": "Indices", "indices": [*indices]}:
            return [Part(at, at) for at in (index_of(one, place) for one in indices)]
    raise NestError("a subset is malformed")


def part_of(view: View, subset: Any, place: Place) -> View:
    """The subset of a view, which is the view itself for a scalar. Raises: NestError."""
    return view.part(parts_of(subset, place)) if view.at else view


def _part(document: Any, place: Place) -> Part:
    if not isinstance(document, dict):
        raise NestError("a range is malformed")
    start, end = (index_of(document.get(name), place) for name in ("start", "end"))
    steps = [number_of(document.get(name, "1"), place) for name in ("step", "tile")]
    if start != end and steps != [1, 1]:
        raise NestError("a part of an array has gaps")
    return Part(start, end)


#: Connector of a view's node on the edge to its array.
CONNECTOR = "views"


def view_of(edge: Edge, array: str, attributes: Mapping[str, Any], place: Place) -> View:
    """The part of `array` named by a view with these declared attributes.

    Raises: NestError unless it is only a part.
    """
    subset = edge.memlet.get("subset" if edge.data == array else "other_subset")
    base = place.view(array)
    parts = parts_of(subset, place) if base.at else []
    part = base.part(parts)
    shape = [index_of(size, place) for size in attributes.get("shape") or []]
    long_dimensions = [at for at, size in enumerate(shape) if constant(size) != 1]
    if [shape[at] for at in long_dimensions] != [one.size for one in parts if not one.single]:
        raise NestError("a view has another order of elements than its array")
    own = place.registry.arrays[base.array].strides
    strides = attributes.get("strides") or []
    if len(strides) != len(shape):
        raise NestError("a view has no strides")
    for dimension, (_, of) in enumerate(part.at):
        if of is not None and number_of(strides[long_dimensions[of]], place) != own[dimension]:
            raise NestError("a view has another order of elements than its array")
    at = tuple((start, None if of is None else long_dimensions[of]) for start, of in part.at)
    return View(base.array, at, len(shape))


#: Reader of a nested program: its declarations and graphs, in a place.
Nested = Callable[[dict[str, Any], Place], list[Node]]


class State:
    """The nodes and edges of a state. Raises: NestError for edges to missing nodes and for
    cycles."""

    def __init__(self, state: dict[str, Any], nested: Nested) -> None:
        self._label = str(state.get("label", ""))[:60]
        self._nested = nested
        #: Values passed from tasklet to tasklet.
        self._passed: dict[tuple[str, str | None], Expr] = {}
        self._nodes = {node.id: node for node in _nodes(state.get("nodes"))}
        self._into: dict[str, list[Edge]] = {at: [] for at in self._nodes}
        self._out: dict[str, list[Edge]] = {at: [] for at in self._nodes}
        for edge in _edges(state.get("edges")):
            for end in (edge.source, edge.target):
                if end not in self._nodes:
                    raise NestError(f"an edge ends at node {end[:20]}, which is not there")
            self._into[edge.target].append(edge)
            self._out[edge.source].append(edge)
        self._order = self._ordered()
        for node in self._nodes.values():
            self._check_scope(node)

    def _within(self, scope: str | None) -> Iterator[GraphNode]:
        """The nodes of a map, or those outside of all, in topological order."""
        return (self._nodes[at] for at in self._order if self._nodes[at].scope == scope)

    def _ordered(self) -> list[str]:
        place = {at: number for number, at in enumerate(self._nodes)}
        left = {at: len(edges) for at, edges in self._into.items()}
        ready = [(place[at], at) for at, count in left.items() if not count]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            _, at = heapq.heappop(ready)
            order.append(at)
            for edge in self._out[at]:
                left[edge.target] -= 1
                if not left[edge.target]:
                    heapq.heappush(ready, (place[edge.target], edge.target))
        if len(order) < len(self._nodes):
            raise NestError("a graph has a cycle")
        return order

    def _check_scope(self, node: GraphNode) -> None:
        at, depth = node.scope, 0
        while at is not None:
            around = self._nodes.get(at)
            if around is None or not around.type.endswith("Entry") or depth > _DEEPEST:
                raise NestError(f"node {node.id[:20]} is in no map")
            at, depth = around.scope, depth + 1

    def nodes(self, scope: str | None, place: Place) -> list[Node]:
        """The tree of a map's body, or of the nodes outside of all maps. Outside of nested programs
        an unreadable part is left out, with a note.

        Raises: NestError for an unreadable part of a map or of a nested program.
        """
        for node in self._within(scope):
            self._views(node, place)
        nodes: list[Node] = []
        for node in self._within(scope):
            try:
                nodes += self._node(node, place)
            except NestError as error:
                if scope is not None or place.depth:
                    raise
                place.registry.notes.append(f"{self._where(node)}: {error.reason}")
        return nodes

    def _where(self, node: GraphNode) -> str:
        return f"state {self._label}, {node.type} {node.label or node.id}"

    def _node(self, node: GraphNode, place: Place) -> list[Node]:
        match node.type:
            case "MapEntry":
                return self._map(node, place)
            case "MapExit":
                return []
            case "Tasklet":
                return self._tasklet(node, place)
            case "AccessNode":
                return self._copies(node, place)
            case "NestedSDFG":
                return self._program(node, place)
        raise NestError("is not supported; expand library nodes by sdfg.expand_library_nodes()")

    # -- maps --------------------------------------------------------------------------------------

    def _map(self, node: GraphNode, place: Place) -> list[Node]:
        params, ranges = node.attributes.get("params"), node.attributes.get("range")
        if not isinstance(params, list) or not isinstance(ranges, dict):
            raise NestError("a map has no range")
        ranges = ranges.get("ranges")
        if not isinstance(ranges, list) or len(ranges) != len(params):
            raise NestError(f"a map of {len(params)} parameters has other ranges")
        place = self._with_dynamic_bounds(node, place)
        loops: list[tuple[str, Loop]] = []
        for name, dimension in zip(params, ranges, strict=True):
            if not isinstance(name, str) or not isinstance(dimension, dict):
                raise NestError("a map has no range")
            if number_of(dimension.get("tile", "1"), place) != 1:
                raise NestError("a map runs over tiles")
            start, end = (index_of(dimension.get(bound), place) for bound in ("start", "end"))
            if start == end:
                place = place.deeper()
                place.scope.names[name] = start
                continue
            loop = Loop(start, end + 1, number_of(dimension.get("step", "1"), place))
            loop = ending_at_last(loop)
            place = place.within(name, loop, Index(Affine.of_loop(len(place.loops))))
            loops.append((name, loop))
        inside = tuple(self.nodes(node.id, place))
        for name, loop in reversed(loops):
            inside = (Block(name, loop, inside, self._where(node)),) if inside else ()
        return list(inside)

    def _with_dynamic_bounds(self, node: GraphNode, place: Place) -> Place:
        """The place with a symbol for each bound read from an array, named as the map's
        connector."""
        inner = place
        for edge in self._into[node.id]:
            name = edge.target_connector
            if name is None or name.startswith("IN_"):
                continue
            if inner is place:
                inner = place.deeper()
            inner.scope.names[name] = Index(of=edge.view(place).access([]))
        return inner

    # -- tasklets ----------------------------------------------------------------------------------

    def _tasklet(self, node: GraphNode, place: Place) -> list[Node]:
        inputs: dict[str, Expr | View] = {}
        for edge in self._into[node.id]:
            if edge.target_connector is not None:
                inputs[edge.target_connector] = self._input(edge, place)
        outputs = [
            Output(edge.source_connector, edge.view(place), combine_of(edge.memlet.get("wcr")))
            for edge in self._out[node.id]
            if edge.source_connector is not None and edge.data is not None
        ]
        statements, values = tasklet(node.attributes.get("code"), inputs, outputs, place)
        self._passed.update({(node.id, name): value for name, value in values.items()})
        return [Step(statement, self._where(node)) for statement in statements]

    def _input(self, edge: Edge, place: Place) -> Expr | View:
        if edge.data is None:
            passed = self._passed.get((edge.source, edge.source_connector))
            if passed is None:
                raise NestError(f"{edge.target_connector} has no value")
            return passed
        view = edge.view(place)
        return Read(view.access([])) if view.single else view

    # -- views -------------------------------------------------------------------------------------

    def _views(self, node: GraphNode, place: Place) -> None:
        """Bind the name of a view node to the part of its array."""
        ends = [(edge, edge.source) for edge in self._into[node.id]]
        ends += [(edge, edge.target) for edge in self._out[node.id]]
        for edge, other in ends:
            own = edge.target_connector if edge.target == node.id else edge.source_connector
            if own == CONNECTOR and self._nodes[other].type == "AccessNode":
                array = str(self._nodes[other].attributes.get("data"))
                part = partial(view_of, edge, array)
                place.views.alias(str(node.attributes.get("data")), part, place)

    # -- copies ------------------------------------------------------------------------------------

    def _copies(self, node: GraphNode, place: Place) -> list[Node]:
        """Copies into a node, and out of it through the end of a map."""
        copies: list[Node] = []
        for edge in self._into[node.id]:
            source = self._nodes[edge.source]
            binds_view = CONNECTOR in (edge.source_connector, edge.target_connector)
            if edge.data is None or binds_view or source.type not in ("AccessNode", "MapEntry"):
                continue
            other = self._far_data(edge, up=True)
            copies += self._copy(edge, other, str(node.attributes.get("data")), place)
        for edge in self._out[node.id]:
            if edge.data is not None and self._nodes[edge.target].type == "MapExit":
                other = self._far_data(edge, up=False)
                copies += self._copy(edge, str(node.attributes.get("data")), other, place)
        return copies

    def _far_data(self, edge: Edge, *, up: bool) -> str:
        """The array at the other end of a path through the ends of maps."""
        for _ in self._nodes:
            node = self._nodes[edge.source if up else edge.target]
            if node.type == "AccessNode":
                return str(node.attributes.get("data"))
            if up:
                name = str(edge.source_connector).replace("OUT_", "IN_", 1)
                ends = [e for e in self._into[node.id] if e.target_connector == name]
            else:
                name = str(edge.target_connector).replace("IN_", "OUT_", 1)
                ends = [e for e in self._out[node.id] if e.source_connector == name]
            if len(ends) != 1:
                break
            edge = ends[0]
        raise NestError("a copy has no other end")

    def _copy(self, edge: Edge, source: str, target: str, place: Place) -> list[Node]:
        near, far = edge.memlet.get("subset"), edge.memlet.get("other_subset")
        subsets = (near, far) if edge.data == source else (far, near)
        views = [
            place.view(name) if subset is None else part_of(place.view(name), subset, place)
            for name, subset in zip((source, target), subsets, strict=True)
        ]
        sizes = [part.size for part in parts_of(near, place) if not part.single]
        first = len(place.loops)
        at = [Index(Affine.of_loop(first + d)) for d in range(len(sizes))]
        if any(view.rank != len(sizes) for view in views if sizes and not view.single):
            raise NestError("a copy between parts of unlike dimensions")
        one, other = (view.access(at or [Index()] * view.rank) for view in views)
        where = f"state {self._label}, copy of {source} to {target}"
        statement = Statement(other, combine_of(edge.memlet.get("wcr")), Read(one))
        inside: Node = Step(statement, where)
        for number, size in reversed(list(enumerate(sizes))):
            inside = Block(f"c{number}", Loop(Index(), size), (inside,), where)
        return [inside]

    # -- nested programs ---------------------------------------------------------------------------

    def _program(self, node: GraphNode, place: Place) -> list[Node]:
        program = node.attributes.get("sdfg")
        if not isinstance(program, dict) or not isinstance(program.get("attributes"), dict):
            raise NestError("a nested program is malformed")
        described = program["attributes"].get("_arrays") or {}
        if any(edge.memlet.get("wcr") for edge in self._out[node.id]):
            raise NestError("a nested program accumulates into an outer array")
        symbols: dict[str, Index | Expr | Refused] = {}
        for name, text in (node.attributes.get("symbol_mapping") or {}).items():
            try:
                symbols[name] = index_of(text, place)
            except NestError as error:
                symbols[name] = Refused(error.reason)
        declared = Containers(described, {})
        inside = place.inside(declared, symbols)
        handed: dict[str, View] = {}
        ends = [(edge, edge.target_connector) for edge in self._into[node.id]]
        ends += [(edge, edge.source_connector) for edge in self._out[node.id]]
        for edge, name in ends:
            if name is None or edge.data is None or name in handed:
                continue
            view = place.view(edge.data)
            if view.at:
                parts = parts_of(edge.memlet.get("subset"), place)
                view = view.part(parts, declared.ones(name, inside))
            handed[name] = view
        return self._nested(
            program, place.inside(Containers(described, handed, place.loops), symbols)
        )
