"""Expressions of C (trees of pycparser) as indices and values of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Array, Call, Const, Expr, Index, LoopIndex, Read
from indexer.frontends.c.names import Held, Scope
from indexer.frontends.c.subscripts import access_of, divided, number_of
from indexer.frontends.indices import expression_of

__all__ = ["is_whole", "value_of"]

_FLIPPED = {">": "<", ">=": "<="}
#: Functions by their names in C without the letter of the type.
_FUNCTIONS = {
    **{name: name for name in ("sqrt", "exp", "log", "tanh", "min", "max")},
    **{"fabs": "abs", "abs": "abs", "fmin": "min", "fmax": "max", "MIN": "min", "MAX": "max"},
}
_OPERANDS = {"min": 2, "max": 2}


def value_of(node: Any, scope: Scope) -> Expr:
    """The value of an expression.

    Raises: NestError for what a nest does not compute.
    """
    match node:
        case c_ast.Constant():
            return Const(number_of(node))
        case c_ast.ID():
            return _value_of_name(node.name, scope)
        case c_ast.ArrayRef():
            return Read(access_of(node, scope))
        case c_ast.Cast():
            return _cast(node, scope)
        case c_ast.UnaryOp(op="+"):
            return value_of(node.expr, scope)
        case c_ast.UnaryOp(op="-"):
            return _call("neg", value_of(node.expr, scope), scope=scope)
        case c_ast.UnaryOp(op="!"):
            return Call("==", (value_of(node.expr, scope), Const(0)))
        case c_ast.BinaryOp():
            left, right = value_of(node.left, scope), value_of(node.right, scope)
            return _pair(node.op, left, right, scope)
        case c_ast.TernaryOp():
            return _chosen(*(value_of(n, scope) for n in (node.cond, node.iftrue, node.iffalse)))
        case c_ast.FuncCall():
            return _function(node, scope)
    raise NestError(f"{_name_of(node)} is not known in a nest")


def _value_of_name(name: str, scope: Scope) -> Expr:
    found = scope.of(name)
    if isinstance(found, Index):
        return expression_of(found)
    if isinstance(found, Held):
        if scope.arrays[found.array].shape:
            raise NestError(f"{name} is an array without subscripts: arrays may not be handed on")
        return Read(Access(found.array, ()))
    return found


def _cast(node: Any, scope: Scope) -> Expr:
    value = value_of(node.expr, scope)
    names = getattr(getattr(node.to_type.type, "type", None), "names", [])
    if set(names) & {"float", "double"}:
        if isinstance(value, Const):
            return Const(float(value.value))
        return Call("*", (value, Const(1.0))) if is_whole(value, scope.arrays) else value
    if not is_whole(value, scope.arrays):
        raise NestError("a number is cut to a whole one, which is not known in a nest")
    return value


def _pair(op: str, left: Expr, right: Expr, scope: Scope) -> Expr:
    if op in _FLIPPED:
        return Call(_FLIPPED[op], (right, left))
    if op in ("<", "<=", "==", "!="):
        return Call(op, (left, right))
    if op == "&&":
        return Call("*", (_truth(left), _truth(right)))
    if op == "||":
        return Call("max", (_truth(left), _truth(right)))
    if op in ("+", "-", "*", "/"):
        return _call(op, left, right, scope=scope)
    raise NestError(f"operator {op} is not known in a nest")


def _call(op: str, *args: Expr, scope: Scope) -> Expr:
    """A call, or its value where all operands are whole numbers."""
    known = [a.value for a in args if isinstance(a, Const)]
    if len(known) == len(args):
        match op, known:
            case "neg", [one]:
                return Const(-one)
            case "/", [int(one), int(other)] if other:
                return Const(divided(one, other))
            case (("+" | "-" | "*"), [int(one), int(other)]):
                return Const({"+": one + other, "-": one - other, "*": one * other}[op])
    if op == "/" and all(is_whole(a, scope.arrays) for a in args):
        raise NestError("whole numbers are divided, which is not known in a nest")
    return Call(op, args)


def _chosen(condition: Expr, one: Expr, other: Expr) -> Expr:
    """`condition ? one : other`, as a minimum or maximum where it is one."""
    if isinstance(condition, Call) and condition.op in ("<", "<="):
        if condition.args == (one, other):
            return Call("min", (one, other))
        if condition.args == (other, one):
            return Call("max", (one, other))
    return Call("select", (condition, one, other))


def _truth(value: Expr) -> Expr:
    if isinstance(value, Call) and value.op in ("<", "<=", "==", "!="):
        return value
    return Call("!=", (value, Const(0)))


def _function(node: Any, scope: Scope) -> Expr:
    name = getattr(node.name, "name", "")
    args = [value_of(a, scope) for a in (node.args.exprs if node.args else [])]
    op = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f"))
    if op is not None and len(args) == _OPERANDS.get(op, 1):
        return Call(op, tuple(args))
    if name in ("pow", "powf") and len(args) == 2:
        return power(args[0], args[1])
    raise NestError(f"function {name or '?'} with {len(args)} operands is not known in a nest")


def power(base: Expr, exponent: Expr) -> Expr:
    """Small powers, written out.

    Raises: NestError for others.
    """
    match exponent:
        case Const(0.5):
            return Call("sqrt", (base,))
        case Const(1 | 2 | 3 | 4 as times):
            made = base
            for _ in range(int(times) - 1):
                made = Call("*", (made, base))
            return made
    raise NestError("only the powers 0.5, 1, 2, 3 and 4 are known in a nest")


def is_whole(value: Expr, arrays: Sequence[Array]) -> bool:
    """Whether C would compute it in whole numbers."""
    match value:
        case Const(number):
            return isinstance(number, int)
        case LoopIndex():
            return True
        case Read(access):
            return arrays[access.array].dtype in ("i32", "i64")
        case Call("<" | "<=" | "==" | "!="):
            return True
        case Call("select", (_, one, other)):
            return is_whole(one, arrays) and is_whole(other, arrays)
        case Call(op, args):
            return op in ("+", "-", "*", "neg", "abs", "min", "max") and all(
                is_whole(a, arrays) for a in args
            )


def _name_of(node: Any) -> str:
    return f"operator {node.op}" if hasattr(node, "op") else type(node).__name__
