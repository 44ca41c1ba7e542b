"""`.sdfg` files, JSON that DaCe writes, read without DaCe: the order of execution of their states,
as a tree of loops and conditions.

Loops are those that DaCe generates for a `for`: a state that is entered with `i = start`, left by
`i < end` and its opposite, and entered again with `i = i + step`; or a loop region.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Affine, Array, Const, Expr, Index, Read, Statement
from indexer.frontends.dace.data import (
    Containers,
    Place,
    Values,
    View,
    expression,
    index_of,
    parsed,
)
from indexer.frontends.dace.states import State
from indexer.frontends.scalars import all_true, opposite, truth
from indexer.frontends.tree import (
    Block,
    Node,
    Program,
    Refused,
    Registry,
    Scope,
    Step,
    constant,
    counted,
    walk,
    with_statements,
)

_FLIPPED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_AROUND = str.maketrans("<>", "><")


def code_text(code: Any) -> str:
    """Code of a file, which is a text or an object with one."""
    return str(code.get("string_data", "")) if isinstance(code, dict) else str(code or "")


def comparison(code: Any) -> tuple[str, str, ast.expr] | None:
    """`name < bound` as (name, operator, bound)."""
    text = code_text(code)
    match expression(text) if text else None:
        case ast.Compare(ast.Name(name), [op], [bound]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)], bound
        case ast.Compare(bound, [op], [ast.Name(name)]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)].translate(_AROUND), bound
    return None


def assignment(text: str) -> tuple[str, ast.expr] | None:
    """`name = value` as (name, value)."""
    match parsed(text):
        case [ast.Assign([ast.Name(name)], value)]:
            return name, value
    return None


def step_of(text: Any, name: str, place: Place) -> int | None:
    """The step 4 of `name + 4`; None if it is no such sum."""
    if not isinstance(text, str | ast.expr):
        return None
    own = Index(Affine.of_loop(len(place.loops)))
    inner = place.deeper()
    inner.scope.names[name] = own
    try:
        grown = index_of(text, inner) - own
    except NestError:
        return None
    return constant(grown)


#: States of a program beyond which branches of it are not followed.
_MOST_STATES = 256


def join_of(out: Mapping[str, Collection[str]], at: str, stop: str | None) -> str | None:
    """The first state on every path from `at`; `stop` if the paths have no join. `out`: the
    successors of every state. Raises: NestError for too many states."""
    if len(out) > _MOST_STATES:
        raise NestError(f"states branch in a program of more than {_MOST_STATES}")
    ways = list(out[at])
    for candidate in _reached(out, ways, without=stop):
        left = _reached(out, [way for way in ways if way != candidate], without=candidate)
        if stop not in left and all(out[one] for one in left):
            return candidate
    return stop


def _reached(out: Mapping[str, Collection[str]], ways: list[str], without: str | None) -> list[str]:
    """The states on all paths, the nearest first; none through `without`."""
    met = {without, *ways}
    reached = [way for way in ways if way != without]
    for one in reached:
        new = [following for following in out[one] if following not in met]
        met.update(new)
        reached += dict.fromkeys(new)
    return reached


def condition_of(one: object, other: object, place: Place) -> Expr:
    """Condition of the first of two edges, whose conditions must be opposite.

    Raises: NestError for conditions that are not opposite, or not supported in a nest.
    """
    first, second = expression(one), expression(other)
    if ast.dump(_not(first)) != ast.dump(second):
        if ast.dump(_not(second)) != ast.dump(first):
            raise NestError("states branch by conditions that are not contrary")
        return opposite(_value(second, place))
    return truth(_value(first, place))


def _not(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)


def _value(node: ast.expr, place: Place) -> Expr:
    """A condition over arrays by their names."""
    names: dict[str, Expr | View] = {}
    for name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}:
        if name not in place.scope.names:
            view = place.view(name)
            names[name] = Read(view.access([])) if view.single else view
    return Values(names, place).of(_plain(node, names))


def _plain(node: ast.expr, names: Mapping[str, Expr | View]) -> ast.expr:
    """The expression with `x[0]` replaced by `x` where that is one element."""

    class Elements(ast.NodeTransformer):
        def visit_Subscript(self, one: ast.Subscript) -> ast.expr:
            value = names.get(one.value.id) if isinstance(one.value, ast.Name) else None
            return one if value is None or isinstance(value, View) else one.value

    changed: ast.expr = Elements().visit(node)
    return changed


def under(condition: Expr, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with every statement under a condition."""

    def guarded(statement: Statement) -> Statement:
        old = statement.where
        where = truth(condition) if old is None else all_true(condition, old)
        return replace(statement, where=where)

    return with_statements(nodes, guarded)


def forget(nodes: Sequence[Node], place: Place) -> bool:
    """Refuse symbols that were read from arrays written by `nodes` from here on. True if there are
    any."""
    written = {node.statement.target.array for _, node in walk(nodes) if isinstance(node, Step)}
    any_stale = False
    for name, value in list(place.scope.names.items()):
        if isinstance(value, Index) and written & {one.array for one in value.reads()}:
            place.scope.names[name] = Refused("was read before its array was written")
            any_stale = True
    return any_stale


_MOST_NESTED = 24


def program_nodes(sdfg: dict[str, Any], place: Place) -> list[Node]:
    """The tree of an SDFG, or of a nested one. Raises: NestError."""
    if place.depth > _MOST_NESTED:
        raise NestError(f"programs lie more than {_MOST_NESTED} deep in programs")
    flow = _Flow(sdfg)
    try:
        nodes = flow.run(flow.start, None, place)
        if len(flow.reached) < len(flow.blocks):
            raise _Unstructured("states are not reached")
        return nodes
    except _Unstructured as error:
        if place.depth:
            raise
        place.registry.notes.append(f"{error.reason}: its states are read one by one")
        return [node for block in flow.blocks.values() for node in flow.block(block, place)]


class _Unstructured(NestError):
    """States that follow each other neither in sequence nor in a loop."""


@contextmanager
def _unstructured() -> Iterator[None]:
    """Turn a refusal inside into `_Unstructured`."""
    try:
        yield
    except NestError as error:
        raise _Unstructured(error.reason) from error


class _Flow:
    """The blocks of a region and the edges between them."""

    def __init__(self, region: dict[str, Any]) -> None:
        blocks = region.get("nodes")
        if not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
            raise NestError("a program has no states")
        self.blocks: dict[str, dict[str, Any]] = {
            str(block.get("id", at)): block for at, block in enumerate(blocks)
        }
        self.out: dict[str, list[tuple[str, dict[str, Any]]]] = {at: [] for at in self.blocks}
        for edge in region.get("edges") or []:
            source, target = str(edge.get("src")), str(edge.get("dst"))
            if source not in self.blocks or target not in self.blocks:
                raise NestError("an edge ends at a state that is not there")
            data = (edge.get("attributes") or {}).get("data") or {}
            self.out[source].append((target, data.get("attributes") or {}))
        self.reached: set[str] = set()
        self._following = {at: [target for target, _ in edges] for at, edges in self.out.items()}
        self._branching: set[str] = set()
        entered = {target for edges in self.out.values() for target, _ in edges}
        sources = [at for at in self.blocks if at not in entered]
        # As in DaCe: the file's start block counts only where the graph has several sources.
        start = sources[0] if len(sources) == 1 else str(region.get("start_block"))
        self.start = start if start in self.blocks else next(iter(self.blocks), "")

    def run(self, at: str, stop: str | None, place: Place) -> list[Node]:
        """From a block up to another, or to the end."""
        nodes: list[Node] = []
        met: set[str] = set()
        while at and at != stop:
            if at in met:
                raise _Unstructured("states follow each other in a circle that is no loop")
            met.add(at)
            self.reached.add(at)
            edges = self.out[at]
            counted_loop = self._loop(at, place) if len(edges) == 2 else None
            if counted_loop is not None:
                loop, edge = counted_loop
                step_nodes: list[Node] = [loop] if loop.inside else []
            else:
                step_nodes = self.block(self.blocks[at], place)
                edge = edges[0] if edges else ("", {})
            forget(step_nodes, place)
            nodes += step_nodes
            if counted_loop is None and len(edges) > 1:
                branch, at = self._branch(at, stop, place)
                forget(branch, place)
                nodes += branch
                continue
            _assign(edge[1], place)
            at = edge[0]
        return nodes

    def block(self, block: dict[str, Any], place: Place) -> list[Node]:
        kind = block.get("type")
        if kind == "SDFGState":
            return State(block, program_nodes).nodes(None, place)
        if kind == "LoopRegion":
            return _region(block, place)
        raise _Unstructured(f"a block is a {str(kind)[:40]}")

    def _branch(self, at: str, stop: str | None, place: Place) -> tuple[list[Node], str]:
        """Both branches from a block, each under its condition, and the block of their join.
        Outside of loops nothing is put under a condition: each branch has nests of its own."""
        ways = self.out[at]
        if at in self._branching or len(ways) > 2 or not place.loops:
            raise _Unstructured("states branch")
        where = f"state {str(self.blocks[at].get('label', at))[:60]}"
        with _unstructured():
            join = join_of(self._following, at, stop)
            one, other = (code_text(edge.get("condition")) for _, edge in ways)
            value = condition_of(one, other, place)
        # The condition is stored as a number, since statements under it may change its operands.
        number = place.registry.add("flag", Array("i32", (), "below:2"), local=True)
        flag = Read(Access(number, ()))
        nodes: list[Node] = [Step(Statement(flag.access, "=", value), where)]
        self._branching.add(at)
        for (target, edge), condition in zip(ways, (flag, opposite(flag)), strict=True):
            inner = place.deeper()
            _assign(edge, inner)
            nodes += under(condition, self.run(target, join, inner))
            for name in inner.scope.names.maps[0]:
                place.scope.names[name] = Refused("has another value on each of two ways")
        self._branching.remove(at)
        return nodes, join or ""

    def _loop(self, at: str, place: Place) -> tuple[Block, tuple[str, dict[str, Any]]] | None:
        """The loop of which a block is the guard, and the edge on which it is left; None if it is
        no guard."""
        for edge in self.out[at]:
            with _unstructured():
                compared = comparison(edge[1].get("condition"))
            if compared is None:
                continue
            name, op, _ = compared
            back = [back for edges in self.out.values() for target, back in edges if target == at]
            for assigned in (one.get("assignments") or {} for one in back):
                step = step_of(assigned.get(name), name, place)
                if not step or (step > 0) != (op in ("<", "<=")):
                    continue
                where = f"state {str(self.blocks[at].get('label', at))[:60]}"
                block = self.loop(edge[0], at, compared, name, step, place, where)
                leaving = next(one for one in self.out[at] if one is not edge)
                place.scope.names[name] = Refused("has no value after its loop")
                return block, leaving
        return None

    def loop(
        self,
        first: str,
        head: str | None,
        compared: tuple[str, str, ast.expr],
        start: object,
        step: int,
        place: Place,
        where: str,
    ) -> Block:
        """The loop with a body from the block `first` up to `head`. The body is read again if it
        writes arrays from which symbols were read before the loop."""
        name, op, bound = compared
        with _unstructured():
            begin, end = index_of(start, place), index_of(bound, place)
            loop, index = counted(begin, op, end, step, len(place.loops))
        inside = self.run(first, head, place.within(name, loop, index))
        if forget(inside, place):
            inside = self.run(first, head, place.within(name, loop, index))
        return Block(name, loop, tuple(inside), where)


def _region(block: dict[str, Any], place: Place) -> list[Node]:
    """A loop as a region: `init_statement`, `loop_condition`, `update_statement`."""
    attributes = block.get("attributes") or {}
    texts = [code_text(attributes.get(f"{part}_statement")) for part in ("init", "update")]
    compared = comparison(attributes.get("loop_condition"))
    assigned = [assignment(text) for text in texts]
    if compared is None or None in assigned or attributes.get("inverted"):
        raise _Unstructured("the loop is not of a supported form")
    name = compared[0]
    (first, start), (again, after) = (one for one in assigned if one is not None)
    step = step_of(after, name, place)
    if first != name or again != name or not step:
        raise _Unstructured("the loop is not of a supported form")
    flow, where = _Flow(block), f"loop {str(block.get('label', ''))[:60]}"
    loop = flow.loop(flow.start, None, compared, start, step, place, where)
    return [loop] if loop.inside else []


def _assign(edge: dict[str, Any], place: Place) -> None:
    """Bind the symbols assigned on an edge to their indices."""
    for name, text in (edge.get("assignments") or {}).items():
        try:
            place.scope.names[name] = index_of(text, place)
        except NestError as error:
            place.scope.names[name] = Refused(f"is no index: {error.reason}")


#: Most lists and objects in a file: they need many times the memory of their text.
_MOST_PARTS = 3_000_000
#: Unused properties, which make up most of a file.
_LEFT_OUT = {"debuginfo", "orig_sdfg", "transformation_hist", "symbol_instrument_condition"}


def sdfg_program(
    data: bytes, *, name: str, defines: Mapping[str, int | float] | None = None
) -> tuple[Program, list[str]]:
    """The program of a file, and one line for each part that could not be read. `defines` are
    values of symbols, which override the file's own constants.

    Raises: NestError.
    """
    if data.count(b"{") + data.count(b"[") > _MOST_PARTS:
        raise NestError(f"has more than {_MOST_PARTS} parts")
    document = json.loads(
        data, object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in _LEFT_OUT}
    )
    if not isinstance(document, dict) or document.get("type") != "SDFG":
        raise NestError('is no SDFG: it needs "type": "SDFG"')
    attributes = document.get("attributes")
    described = attributes.get("_arrays") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict) or not isinstance(described, dict):
        raise NestError("has no arrays")
    registry = Registry()
    scope = Scope(registry.arrays)
    constants = _constants(attributes.get("constants_prop"))
    scope.names.update(
        {symbol: Const(value) for symbol, value in {**constants, **(defines or {})}.items()}
    )
    body = program_nodes(document, Place(registry, Containers(described, {}), scope))
    return registry.program(name, body, strict=False), registry.notes


def _constants(properties: Any) -> dict[str, int | float]:
    """Numbers among the constants, which are [type, value]."""
    constants: dict[str, int | float] = {}
    for name, pair in properties.items() if isinstance(properties, dict) else ():
        match pair:
            case [_, int(value) | float(value)] if not isinstance(value, bool):
                constants[name] = value
    return constants
