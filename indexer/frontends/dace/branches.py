"""Branches between the states of an `.sdfg` file: their join, and statements under a condition."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Array, Expr, Index, Read, Statement
from indexer.frontends.dace.data import View
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import Values, expression
from indexer.frontends.scalars import all_true, opposite, truth
from indexer.frontends.tree import Block, Node, Refused, Step, walk

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


def flagged(value: Expr, place: Place, where: str) -> tuple[Step, Expr]:
    """A condition stored as a number, so that statements under it may change its operands: the
    statement that stores it, and its value."""
    number = place.registry.add("flag", Array("i32", (), "below:2"), local=True)
    flag = Access(number, ())
    return Step(Statement(flag, "=", value), where), Read(flag)


def under(condition: Expr, nodes: Sequence[Node]) -> list[Node]:
    """The nodes with every statement under a condition."""
    guarded: list[Node] = []
    for node in nodes:
        if isinstance(node, Block):
            guarded.append(replace(node, inside=tuple(under(condition, node.inside))))
            continue
        statement = node.statement
        where = (
            truth(condition) if statement.where is None else all_true(condition, statement.where)
        )
        guarded.append(Step(replace(statement, where=where), node.place))
    return guarded


def forget(nodes: Sequence[Node], place: Place) -> bool:
    """Refuse symbols that were read from arrays written by `nodes` from here on. True if there are
    any."""
    written = {node.statement.target.array for _, node in walk(nodes) if isinstance(node, Step)}
    any_stale = False
    for name, value in list(place.scope.names.items()):
        if isinstance(value, Index) and value.of is not None:
            sources = {one.array for one in (*value.of.inner(), value.of)}
            if sources & written:
                place.scope.names[name] = Refused("was read before its array was written")
                any_stale = True
    return any_stale
