"""Statements of C within a scop as nodes of a tree of loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Array, Call, Expr, Index, Loop, Read, Statement
from indexer.frontends.c.declarations import Declarations
from indexer.frontends.c.expressions import access_of, index_of, value_of
from indexer.frontends.c.text import undefined
from indexer.frontends.distribute import combined
from indexer.frontends.indices import constant, counted
from indexer.frontends.scalars import chosen, is_whole, opposite, truth
from indexer.frontends.tree import Block, Node, Refused, Scope, Step, reads, walk


def header(node: Any, depth: int, scope: Scope) -> tuple[str, Loop, Index]:
    """Name and loop, and the value of its index; `depth`: loops around it.

    Raises: NestError unless it is a loop over equally spaced integers.
    """
    name, first = _first(node.init)
    step = _step(node.next, name, scope)
    last, within = _last(node.cond, name)
    start, end = index_of(first, scope), index_of(last, scope)
    loop, index = counted(start, within, end, step, depth)
    return name, loop, index


def _first(init: Any) -> tuple[str, Any]:
    if isinstance(init, c_ast.DeclList) and len(init.decls) == 1 and init.decls[0].init:
        return init.decls[0].name, init.decls[0].init
    if isinstance(init, c_ast.Assignment) and init.op == "=" and isinstance(init.lvalue, c_ast.ID):
        return init.lvalue.name, init.rvalue
    raise NestError("a loop starts with one index: for (int i = ...")


def _last(condition: Any, name: str) -> tuple[Any, str]:
    if isinstance(condition, c_ast.BinaryOp) and condition.op in ("<", "<=", ">", ">="):
        left, right = condition.left, condition.right
        if isinstance(left, c_ast.ID) and left.name == name:
            return right, condition.op
        if isinstance(right, c_ast.ID) and right.name == name:
            return left, condition.op.translate(str.maketrans("<>", "><"))
    raise NestError(f"loop {name} ends by a comparison of {name} with a bound")


def _step(after: Any, name: str, scope: Scope) -> int:
    match after:
        case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--") if _is(after.expr, name):
            return 1 if "+" in after.op else -1
        case c_ast.Assignment(op="+=" | "-=") if _is(after.lvalue, name):
            by, sign = after.rvalue, 1 if after.op == "+=" else -1
        case c_ast.Assignment(op="=", rvalue=c_ast.BinaryOp(op="+" | "-")) if _is(
            after.lvalue, name
        ) and _is(after.rvalue.left, name):
            by, sign = after.rvalue.right, 1 if after.rvalue.op == "+" else -1
        case _:
            raise NestError(f"loop {name} steps by a number: {name}++ or {name} += 4")
    step = constant(index_of(by, scope))
    if not step:
        raise NestError(f"loop {name} steps by a number that is not 0")
    return sign * step


def _is(node: Any, name: str) -> bool:
    return isinstance(node, c_ast.ID) and node.name == name


_BEYOND = {
    c_ast.While: "a while loop",
    c_ast.DoWhile: "a do loop",
    c_ast.Goto: "goto",
    c_ast.Break: "break",
    c_ast.Continue: "continue",
    c_ast.Return: "return",
    c_ast.Switch: "switch",
    c_ast.FuncCall: "a call of a function",
}


class Statements:
    """A reader of statements. `loops`: the number of loops around; `mask`: the value that must not
    be 0 for a statement to run."""

    def __init__(self, names: Declarations) -> None:
        self._names = names

    def run(self, items: Sequence[Any], scope: Scope, loops: int, mask: Expr | None) -> list[Node]:
        nodes: list[Node] = []
        for node in items:
            with on_line(node):
                nodes += self._statement(node, scope, loops, mask)
        return nodes

    def _statement(self, node: Any, scope: Scope, loops: int, mask: Expr | None) -> list[Node]:
        match node:
            case c_ast.Compound():
                return self.run(node.block_items or [], scope.inner(), loops, mask)
            case c_ast.Label():
                return self.run([node.stmt], scope, loops, mask)
            case c_ast.DeclList():
                return self.run(node.decls, scope, loops, mask)
            case c_ast.Pragma() | c_ast.EmptyStatement() | None:
                return []
            case c_ast.For():
                return self._for(node, scope, loops, mask)
            case c_ast.If():
                return self._if(node, scope, loops, mask)
            case c_ast.Decl():
                return self._local(node, scope, mask)
            case c_ast.Assignment():
                return self._assign(node, scope, mask)
            case c_ast.FuncCall(name=c_ast.ID(name=name)) if name.isupper():
                raise undefined(name)
            case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--"):
                one = c_ast.Constant("int", "1", node.coord)
                op = "+=" if "+" in node.op else "-="
                return self._assign(c_ast.Assignment(op, node.expr, one, node.coord), scope, mask)
        raise NestError(
            f"{_BEYOND.get(type(node), type(node).__name__)} is not supported in a scop"
        )

    def _local(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        """A declaration within a scop: a scalar, stored unless it is an integer set once."""
        dtype = self._names.dtype(node.type)
        if dtype is None:
            self._names.declare(node, scope)
            return []
        times = self._names.assigned[node.name]
        if dtype in ("i32", "i64") and node.init is None and times < 2:
            scope.names[node.name] = Refused("has no value here", dtype, node.coord.line)
            return []
        if dtype in ("i32", "i64") and not times:
            with suppress(NestError):
                scope.names[node.name] = self._constant_index(node.init, scope)
                return []
        self._names.hold(node.name, Array(dtype, (), ""), scope, node.coord.line)
        if node.init is None:
            return []
        target = c_ast.ID(node.name, node.coord)
        assignment = c_ast.Assignment("=", target, node.init, node.coord)
        return self._assign(assignment, scope, None)

    def _constant_index(self, node: Any, scope: Scope) -> Index:
        """An index that does not change: none of its arrays is written in the scop."""
        index = index_of(node, scope)
        for access in () if index.of is None else (*index.of.inner(), index.of):
            self._names.check_unwritten(access.array)
        return index

    def _assign(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        op, right = node.op, node.rvalue
        if isinstance(node.lvalue, c_ast.ID):
            meaning = scope.names.get(node.lvalue.name)
            if isinstance(meaning, Refused) and meaning.dtype:
                if op == "=" and mask is None:
                    with suppress(NestError):
                        scope.names[node.lvalue.name] = self._constant_index(right, scope)
                        return []
                home = scope.home(node.lvalue.name)
                self._names.hold(node.lvalue.name, Array(meaning.dtype, (), ""), home, meaning.line)
        target = access_of(node.lvalue, scope)
        value = value_of(right, scope)
        if op == "/=" and is_whole(Read(target), self._names.arrays):
            raise NestError("whole numbers are divided, which is not supported in a nest")
        statement = combined(target, op, value, mask)
        return [Step(statement, node.coord.line)]

    def _if(self, node: Any, scope: Scope, loops: int, mask: Expr | None) -> list[Node]:
        condition = value_of(node.cond, scope)
        nodes = self.run([node.iftrue], scope.inner(), loops, _both(mask, condition))
        if node.iffalse is not None:
            other = opposite(condition)
            nodes += self.run([node.iffalse], scope.inner(), loops, _both(mask, other))
            nodes = _merged(nodes, condition, mask)
        deciding = {access.array for access in reads(condition)}
        steps = [(path, one) for path, one in walk(nodes) if isinstance(one, Step)]
        for at, (path, one) in enumerate(steps):
            if one.statement.target.array in deciding and (path or at + 1 < len(steps)):
                name = self._names.array_names[one.statement.target.array]
                raise NestError(
                    f"{name} is the condition of statements and is written by one of them"
                )
        return nodes

    def _for(self, node: Any, scope: Scope, loops: int, mask: Expr | None) -> list[Node]:
        name, loop, index = header(node, loops, scope)
        if self._names.assigned[name]:
            raise NestError(f"{name} is a loop and is written in it")
        inner = scope.inner()
        inner.names[name] = index
        inside = self.run([node.stmt], inner, loops + 1, mask)
        return [Block(name, loop, tuple(inside), node.coord.line)] if inside else []


def _both(mask: Expr | None, condition: Expr) -> Expr:
    return truth(condition) if mask is None else Call("*", (mask, truth(condition)))


def _merged(nodes: list[Node], condition: Expr, mask: Expr | None) -> list[Node]:
    """`if (c) x = a; else x = b;` as one statement; anything else as it is."""
    match nodes:
        case [Step(one, line), Step(other, _)] if one.where == _both(mask, condition) and (
            one.target,
            one.combine,
        ) == (other.target, other.combine):
            value = chosen(condition, one.value, other.value)
            return [Step(Statement(one.target, one.combine, value, mask), line)]
    return nodes


@contextmanager
def on_line(node: Any) -> Iterator[None]:
    """Errors inside get the line of a node, unless they have one."""
    try:
        yield
    except NestError as error:
        coord = getattr(node, "coord", None)
        if error.line is not None or coord is None:
            raise
        raise NestError(
            error.reason, where=error.where, line=coord.line, hint=error.hint
        ) from error
