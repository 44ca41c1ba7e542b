"""Expressions of C (trees of pycparser) as indices and values of a nest."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Array, Call, Const, Expr, Index, LoopIndex, Read
from indexer.frontends.indices import added, constant, expression_of, scaled, whole

__all__ = ["Held", "Refused", "Scope", "access_of", "index_of", "is_whole", "value_of"]

_FLIPPED = {">": "<", ">=": "<="}
_NUMBER = re.compile(
    r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*|((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFlL]?"
)
#: Functions by their names in C without the letter of the type.
_FUNCTIONS = {
    **{name: name for name in ("sqrt", "exp", "log", "tanh", "min", "max")},
    **{"fabs": "abs", "abs": "abs", "fmin": "min", "fmax": "max", "MIN": "min", "MAX": "max"},
}
_OPERANDS = {"min": 2, "max": 2}


@dataclass(frozen=True, slots=True)
class Held:
    """A name that stands for an array of the program, or a scalar that is stored."""

    array: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that may not be used here, and why; with a type, it may be written."""

    why: str
    dtype: str = ""


@dataclass
class Scope:
    """Names that are known at a place of a program. `arrays` is that of the whole program."""

    arrays: list[Array]
    names: ChainMap[str, Index | Expr | Held | Refused] = field(default_factory=ChainMap)

    def inner(self) -> Scope:
        return Scope(self.arrays, self.names.new_child())

    def of(self, name: str) -> Index | Expr | Held:
        """Raises: NestError for a name that is not known or may not be used."""
        found = self.names.get(name)
        if found is None:
            raise NestError(f"{name} is not known; a size is given by #define, or from outside")
        if isinstance(found, Refused):
            raise NestError(f"{name} {found.why}")
        return found


def index_of(node: Any, scope: Scope) -> Index:
    """A subscript or bound: whole, affine in the loops, plus at most one element of an array.

    Raises: NestError for anything else.
    """
    match node:
        case c_ast.Constant():
            number = _number(node)
            if isinstance(number, int):
                return whole(number)
        case c_ast.ID():
            return _index_of_name(node.name, scope)
        case c_ast.ArrayRef():
            return Index(of=access_of(node, scope))
        case c_ast.Cast():
            return index_of(node.expr, scope)
        case c_ast.UnaryOp(op="-"):
            return scaled(index_of(node.expr, scope), -1)
        case c_ast.UnaryOp(op="+"):
            return index_of(node.expr, scope)
        case c_ast.BinaryOp(op="+" | "-" | "*" | "/"):
            return _index_of_pair(node.op, *(index_of(n, scope) for n in (node.left, node.right)))
    raise NestError("a subscript or bound is not affine: sums and multiples of loops are known")


def _index_of_name(name: str, scope: Scope) -> Index:
    found = scope.of(name)
    if isinstance(found, Index):
        return found
    if isinstance(found, Const) and isinstance(found.value, int):
        return whole(found.value)
    if isinstance(found, Held) and not scope.arrays[found.array].shape:
        raise NestError(f"{name} is computed: a subscript or bound is not affine")
    raise NestError(f"{name} is no whole number: a subscript or bound is not affine")


def _index_of_pair(op: str, left: Index, right: Index) -> Index:
    if op == "+":
        return added(left, right)
    if op == "-":
        return added(left, scaled(right, -1))
    a, b = constant(left), constant(right)
    if op == "*" and a is not None:
        return scaled(right, a)
    if op == "*" and b is not None:
        return scaled(left, b)
    if op == "/" and a is not None and b:
        return whole(_divided(a, b))
    raise NestError(f"a subscript or bound is not affine: {op} of two that vary")


def access_of(node: Any, scope: Scope) -> Access:
    """`A[i][j]`, or a scalar that is stored.

    Raises: NestError.
    """
    at: list[Index] = []
    while isinstance(node, c_ast.ArrayRef):
        at.append(index_of(node.subscript, scope))
        node = node.name
    if not isinstance(node, c_ast.ID):
        raise NestError("pointers and structures are not known: write ARRAY[i][j]")
    found = scope.of(node.name)
    if not isinstance(found, Held):
        raise NestError(f"{node.name} is no array")
    dimensions = len(scope.arrays[found.array].shape)
    if len(at) != dimensions:
        raise NestError(f"{node.name}: {len(at)} subscripts for {dimensions} dimensions")
    return Access(found.array, tuple(reversed(at)))


def value_of(node: Any, scope: Scope) -> Expr:
    """The value of an expression.

    Raises: NestError for what a nest does not compute.
    """
    match node:
        case c_ast.Constant():
            return Const(_number(node))
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
                return Const(_divided(one, other))
            case (("+" | "-" | "*"), [int(one), int(other)]):
                return Const({"+": one + other, "-": one - other, "*": one * other}[op])
    if op == "/" and all(is_whole(a, scope.arrays) for a in args):
        raise NestError("whole numbers are divided, which is not known in a nest")
    return Call(op, args)


def _divided(one: int, other: int) -> int:
    """As C divides: towards zero."""
    found = abs(one) // abs(other)
    return found if (one < 0) == (other < 0) else -found


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


def _number(node: Any) -> int | float:
    found = _NUMBER.fullmatch(node.value)
    if found is None:
        raise NestError(f"{node.value[:20]} is no number")
    if found[1] is None or "." in node.value or node.type in ("float", "double"):
        return float(found[2])
    if len(found[1]) > 1 and found[1][0] == "0" and found[1][1] not in "xX":
        return int(found[1], 8)
    return int(found[1], 0)


def _name_of(node: Any) -> str:
    return f"operator {node.op}" if hasattr(node, "op") else type(node).__name__
