"""Branches between the states of an `.sdfg` file: where their ways meet again, and statements that
run under a condition."""

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
    """The first state that every way from `at` comes through; `stop` where they meet nowhere.

    `out`: of every state, those that may follow. Raises: NestError for too many of them.
    """
    if len(out) > _MOST_STATES:
        raise NestError(f"states branch in a program of more than {_MOST_STATES}")
    ways = list(out[at])
    for candidate in _reached(out, ways, without=stop):
        left = _reached(out, [way for way in ways if way != candidate], without=candidate)
        if stop not in left and all(out[one] for one in left):
            return candidate
    return stop


def _reached(out: Mapping[str, Collection[str]], ways: list[str], without: str | None) -> list[str]:
    """The states on all ways, those nearest first; none through `without`."""
    met = {without, *ways}
    found = [way for way in ways if way != without]
    for one in found:
        new = [following for following in out[one] if following not in met]
        met.update(new)
        found += dict.fromkeys(new)
    return found


def condition_of(one: object, other: object, place: Place) -> Expr:
    """What holds on the first of two edges; on the second its contrary must hold.

    Raises: NestError for conditions that are not contrary, or that no nest knows.
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
    """A condition, in which arrays go by their names."""
    names: dict[str, Expr | View] = {}
    for name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}:
        if name not in place.scope.names:
            view = place.view(name)
            names[name] = Read(view.access([])) if view.single else view
    return Values(names, place).of(_plain(node, names))


def _plain(node: ast.expr, names: Mapping[str, Expr | View]) -> ast.expr:
    """`x[0]` of what is one element anyway is `x`."""

    class Elements(ast.NodeTransformer):
        def visit_Subscript(self, one: ast.Subscript) -> ast.expr:
            held = names.get(one.value.id) if isinstance(one.value, ast.Name) else None
            return one if held is None or isinstance(held, View) else one.value

    changed: ast.expr = Elements().visit(node)
    return changed


def flagged(value: Expr, place: Place, where: str) -> tuple[Step, Expr]:
    """A condition kept as a number, so that what runs under it may change what it was made from:
    the statement that keeps it, and its value."""
    number = place.registry.add("flag", Array("i32", (), "below:2"), local=True)
    flag = Access(number, ())
    return Step(Statement(flag, "=", value), where), Read(flag)


def under(condition: Expr, nodes: Sequence[Node]) -> list[Node]:
    """The same, where every statement runs only under a condition."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Block):
            made.append(replace(node, inside=tuple(under(condition, node.inside))))
            continue
        told = node.statement
        where = truth(condition) if told.where is None else all_true(condition, told.where)
        made.append(Step(replace(told, where=where), node.place))
    return made


def forget(nodes: Sequence[Node], place: Place) -> bool:
    """Symbols that were read out of arrays which `nodes` write are not used from here on. Returns
    whether there are any."""
    written = {node.statement.target.array for _, node in walk(nodes) if isinstance(node, Step)}
    found = False
    for name, value in list(place.scope.names.items()):
        if isinstance(value, Index) and value.of is not None:
            sources = {one.array for one in (*value.of.inner(), value.of)}
            if sources & written:
                place.scope.names[name] = Refused("was read before its array was written")
                found = True
    return found
