"""States of an `.sdfg` file as trees: maps become loops, tasklets and copies statements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Affine, Expr, Index, Loop, Read, Statement
from indexer.frontends.dace.containers import Containers
from indexer.frontends.dace.data import View
from indexer.frontends.dace.graph import Edge, Graph, GraphNode, parts_of
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import index_of, number_of
from indexer.frontends.dace.tasklets import Output, combine_of, tasklet
from indexer.frontends.dace.views import CONNECTOR, is_view, view_of
from indexer.frontends.indices import added, ending_at_last, whole
from indexer.frontends.tree import Block, Node, Refused, Step

#: Reader of a nested program: its declarations and graphs, in a place.
Nested = Callable[[dict[str, Any], Place], list[Node]]


def state_nodes(state: dict[str, Any], place: Place, nested: Nested) -> list[Node]:
    """The tree of a state. Outside of nested programs an unreadable part is left out, with a note.

    Raises: NestError for a malformed graph, and for an unreadable part of a nested program.
    """
    label = str(state.get("label", ""))[:60]
    return _State(Graph(state), label, nested).nodes(None, place)


class _State:
    def __init__(self, graph: Graph, label: str, nested: Nested) -> None:
        self._graph = graph
        self._label = label
        self._nested = nested
        #: Values passed from tasklet to tasklet.
        self._passed: dict[tuple[str, str | None], Expr] = {}

    def nodes(self, scope: str | None, place: Place) -> list[Node]:
        """The tree of a map's body, or of the nodes outside of all maps."""
        for node in self._graph.within(scope):
            self._views(node, place)
        nodes: list[Node] = []
        for node in self._graph.within(scope):
            try:
                nodes += self._node(node, place)
            except NestError as error:
                if scope is not None or place.nested:
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
            loop = Loop(start, added(end, whole(1)), number_of(dimension.get("step", "1"), place))
            loop = ending_at_last(loop)
            place = place.within(name, loop, Index(Affine(0, (*[0] * len(place.loops), 1))))
            loops.append((name, loop))
        inside = tuple(self.nodes(node.id, place))
        for name, loop in reversed(loops):
            inside = (Block(name, loop, inside, self._where(node)),) if inside else ()
        return list(inside)

    def _with_dynamic_bounds(self, node: GraphNode, place: Place) -> Place:
        """The place with a symbol for each bound read from an array, named as the map's
        connector."""
        inner = place
        for edge in self._graph.into[node.id]:
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
        for edge in self._graph.into[node.id]:
            if edge.target_connector is not None:
                inputs[edge.target_connector] = self._input(edge, place)
        outputs = [
            Output(edge.source_connector, edge.view(place), combine_of(edge.memlet.get("wcr")))
            for edge in self._graph.out[node.id]
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
        ends = [(edge, edge.source) for edge in self._graph.into[node.id]]
        ends += [(edge, edge.target) for edge in self._graph.out[node.id]]
        for edge, other in ends:
            own = edge.target_connector if edge.target == node.id else edge.source_connector
            if own == CONNECTOR and self._graph.nodes[other].type == "AccessNode":
                array = str(self._graph.nodes[other].attributes.get("data"))
                part = partial(view_of, edge, array)
                place.views.alias(str(node.attributes.get("data")), part, place)

    # -- copies ------------------------------------------------------------------------------------

    def _copies(self, node: GraphNode, place: Place) -> list[Node]:
        """Copies into a node, and out of it through the end of a map."""
        copies: list[Node] = []
        for edge in self._graph.into[node.id]:
            source = self._graph.nodes[edge.source]
            if edge.data is None or source.type not in ("AccessNode", "MapEntry") or is_view(edge):
                continue
            other = self._far_data(edge, up=True)
            copies += self._copy(edge, other, str(node.attributes.get("data")), place)
        for edge in self._graph.out[node.id]:
            if edge.data is not None and self._graph.nodes[edge.target].type == "MapExit":
                other = self._far_data(edge, up=False)
                copies += self._copy(edge, str(node.attributes.get("data")), other, place)
        return copies

    def _far_data(self, edge: Edge, *, up: bool) -> str:
        """The array at the other end of a path through the ends of maps."""
        for _ in self._graph.nodes:
            node = self._graph.nodes[edge.source if up else edge.target]
            if node.type == "AccessNode":
                return str(node.attributes.get("data"))
            if up:
                name = str(edge.source_connector).replace("OUT_", "IN_", 1)
                ends = [e for e in self._graph.into[node.id] if e.target_connector == name]
            else:
                name = str(edge.target_connector).replace("IN_", "OUT_", 1)
                ends = [e for e in self._graph.out[node.id] if e.source_connector == name]
            if len(ends) != 1:
                break
            edge = ends[0]
        raise NestError("a copy has no other end")

    def _copy(self, edge: Edge, source: str, target: str, place: Place) -> list[Node]:
        near, far = edge.memlet.get("subset"), edge.memlet.get("other_subset")
        subsets = (near, far) if edge.data == source else (far, near)
        views = [
            _part_of(name, subset, place)
            for name, subset in zip((source, target), subsets, strict=True)
        ]
        sizes = [part.size for part in parts_of(near, place) if not part.single]
        first = len(place.loops)
        at = [Index(Affine(0, (*[0] * (first + d), 1))) for d in range(len(sizes))]
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
        if any(edge.memlet.get("wcr") for edge in self._graph.out[node.id]):
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
        ends = [(edge, edge.target_connector) for edge in self._graph.into[node.id]]
        ends += [(edge, edge.source_connector) for edge in self._graph.out[node.id]]
        for edge, name in ends:
            if name is None or edge.data is None or name in handed:
                continue
            view = place.view(edge.data)
            parts = parts_of(edge.memlet.get("subset"), place) if view.at else []
            handed[name] = view.part(parts, ones=declared.ones(name, inside)) if view.at else view
        return self._nested(
            program, place.inside(Containers(described, handed, place.loops), symbols)
        )


def _part_of(name: str, subset: Any, place: Place) -> View:
    view = place.view(name)
    return view if subset is None or not view.at else view.part(parts_of(subset, place))
