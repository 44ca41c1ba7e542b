"""The header of a for loop of C as a loop of a nest."""

from __future__ import annotations

from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Index, Loop
from indexer.frontends.c.subscripts import index_of
from indexer.frontends.indices import constant, counted
from indexer.frontends.names import Scope


def header(node: Any, depth: int, scope: Scope) -> tuple[str, Loop, Index]:
    """Name and loop, and the value of its index; `depth`: loops around it.

    Raises: NestError for what is no loop over equally spaced whole numbers.
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
