"""The order in which the states of an `.sdfg` file run, as a tree of loops.

Loops are those that DaCe makes of a `for`: a state that is entered with `i = start`, left by
`i < end` and its contrary, and entered again with `i = i + step`; or a region of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Affine, Index
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.states import state_nodes
from indexer.frontends.dace.symbolic import expression, index_of, parsed
from indexer.frontends.indices import added, constant, counted, scaled
from indexer.frontends.names import Refused
from indexer.frontends.tree import Block, Node

__all__ = ["program_nodes"]

_MOST_NESTED = 24
_FLIPPED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_AROUND = str.maketrans("<>", "><")


def program_nodes(told: dict[str, Any], place: Place) -> list[Node]:
    """What an SDFG, or a nested one, does.

    Raises: NestError.
    """
    if place.depth > _MOST_NESTED:
        raise NestError(f"programs lie more than {_MOST_NESTED} deep in programs")
    flow = _Flow(told)
    try:
        found = flow.run(flow.start, None, place)
        if len(flow.reached) < len(flow.blocks):
            raise _Unstructured("states are not reached")
        return found
    except _Unstructured as error:
        if place.nested:
            raise
        place.registry.notes.append(f"{error.reason}: its states are read one by one")
        return [node for block in flow.blocks.values() for node in flow.block(block, place)]


class _Unstructured(NestError):
    """States that follow each other in another way than in sequence or in a loop."""


@contextmanager
def _unstructured() -> Iterator[None]:
    """What is refused inside makes no loop."""
    try:
        yield
    except NestError as error:
        raise _Unstructured(error.reason) from error


class _Flow:
    """The blocks of a region and the edges between them."""

    def __init__(self, told: dict[str, Any]) -> None:
        blocks = told.get("nodes")
        if not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
            raise NestError("a program has no states")
        self.blocks: dict[str, dict[str, Any]] = {
            str(block.get("id", at)): block for at, block in enumerate(blocks)
        }
        self.out: dict[str, list[tuple[str, dict[str, Any]]]] = {at: [] for at in self.blocks}
        for edge in told.get("edges") or []:
            source, target = str(edge.get("src")), str(edge.get("dst"))
            if source not in self.blocks or target not in self.blocks:
                raise NestError("an edge ends at a state that is not there")
            data = (edge.get("attributes") or {}).get("data") or {}
            self.out[source].append((target, data.get("attributes") or {}))
        self.reached: set[str] = set()
        entered = {target for edges in self.out.values() for target, _ in edges}
        sources = [at for at in self.blocks if at not in entered]
        # As DaCe does: what the file says counts only where the graph does not tell.
        start = sources[0] if len(sources) == 1 else str(told.get("start_block"))
        self.start = start if start in self.blocks else next(iter(self.blocks), "")

    def run(self, at: str, stop: str | None, place: Place) -> list[Node]:
        """From a block up to another, or to the end."""
        found: list[Node] = []
        met: set[str] = set()
        while at and at != stop:
            if at in met:
                raise _Unstructured("states follow each other in a circle that is no loop")
            met.add(at)
            self.reached.add(at)
            edges = self.out[at]
            if len(edges) == 2:
                loop, edge = self._loop(at, place)
                found += [loop] if loop.inside else []
            else:
                found += self.block(self.blocks[at], place)
                if not edges:
                    break
                if len(edges) > 1:
                    raise _Unstructured("states branch")
                edge = edges[0]
            _assign(edge[1], place)
            at = edge[0]
        return found

    def block(self, block: dict[str, Any], place: Place) -> list[Node]:
        kind = block.get("type")
        if kind == "SDFGState":
            return state_nodes(block, place, program_nodes)
        if kind == "LoopRegion":
            return _region(block, place)
        raise _Unstructured(f"a block is a {str(kind)[:40]}")

    def _loop(self, at: str, place: Place) -> tuple[Block, tuple[str, dict[str, Any]]]:
        """The loop that a guard is the head of, and the edge on which it is left."""
        for edge in self.out[at]:
            with _unstructured():
                found = _comparison(edge[1].get("condition"))
            if found is None:
                continue
            name, op, bound = found
            for _, assigned in self._back_to(at):
                step = _step(assigned.get(name), name, place)
                if not step or (step > 0) != (op in ("<", "<=")):
                    continue
                with _unstructured():
                    start, end = index_of(name, place), index_of_node(bound, place)
                    loop, index = counted(start, op, end, step, len(place.loops))
                inner = place.within(name, loop, index)
                label = str(self.blocks[at].get("label", at))[:60]
                inside = tuple(self.run(edge[0], at, inner))
                leaving = next(one for one in self.out[at] if one is not edge)
                place.scope.names[name] = Refused("has no value after its loop")
                return Block(name, loop, inside, f"state {label}"), leaving
        raise _Unstructured("states branch")

    def _back_to(self, at: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (source, told.get("assignments") or {})
            for source, edges in self.out.items()
            for target, told in edges
            if target == at
        ]


def _region(block: dict[str, Any], place: Place) -> list[Node]:
    """A loop as a region: `init_statement`, `loop_condition`, `update_statement`."""
    told = block.get("attributes") or {}
    texts = [_text(told.get(f"{part}_statement")) for part in ("init", "update")]
    found = _comparison(told.get("loop_condition"))
    assigned = [_assignment(text) for text in texts]
    if found is None or None in assigned or told.get("inverted"):
        raise _Unstructured("a loop counts in no way that is known")
    name, op, bound = found
    (first, start), (again, after) = (one for one in assigned if one is not None)
    step = _step(after, name, place)
    if first != name or again != name or not step:
        raise _Unstructured("a loop counts in no way that is known")
    with _unstructured():
        begin, end = index_of(start, place), index_of_node(bound, place)
        loop, index = counted(begin, op, end, step, len(place.loops))
    flow = _Flow(block)
    inside = tuple(flow.run(flow.start, None, place.within(name, loop, index)))
    where = f"loop {str(block.get('label', ''))[:60]}"
    return [Block(name, loop, inside, where)] if inside else []


def _assign(told: dict[str, Any], place: Place) -> None:
    """The assignments of an edge: symbols that stand for indices."""
    for name, text in (told.get("assignments") or {}).items():
        try:
            place.scope.names[name] = index_of(text, place)
        except NestError as error:
            place.scope.names[name] = Refused(f"is no index: {error.reason}")


def index_of_node(node: ast.expr, place: Place) -> Index:
    return index_of(ast.unparse(node), place)


def _text(told: Any) -> str:
    return str(told.get("string_data", "")) if isinstance(told, dict) else str(told or "")


def _comparison(told: Any) -> tuple[str, str, ast.expr] | None:
    """`name < bound` as (name, operator, bound)."""
    text = _text(told)
    match expression(text) if text else None:
        case ast.Compare(ast.Name(name), [op], [bound]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)], bound
        case ast.Compare(bound, [op], [ast.Name(name)]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)].translate(_AROUND), bound
    return None


def _assignment(text: str) -> tuple[str, str] | None:
    match parsed(text):
        case [ast.Assign([ast.Name(name)], value)]:
            return name, ast.unparse(value)
    return None


def _step(text: Any, name: str, place: Place) -> int | None:
    """By how much `name` grows in `name + 4`."""
    if not isinstance(text, str):
        return None
    own = Index(Affine(0, (*[0] * len(place.loops), 1)))
    inner = place.deeper()
    inner.scope.names[name] = own
    try:
        grown = added(index_of(text, inner), scaled(own, -1))
    except NestError:
        return None
    return constant(grown)
