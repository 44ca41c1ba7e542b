"""Expressions of a nest, put together as front ends meet their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.core.errors import NestError
from embeddb.nests.parts import Array, Call, Const, Expr, LoopIndex, Read

#: The largest power that is written out.
_MOST_TIMES = 4
_COMPARISONS = ("<", "<=", "==", "!=")
_FLIPPED = {">": "<", ">=": "<="}
#: Functions by their names in C, in Python and in symbols, without C's letter of the type.
_FUNCTIONS = {
    **{name: name for name in ("sqrt", "exp", "log", "tanh", "min", "max", "abs")},
    **{"fabs": "abs", "Abs": "abs"},
    **dict.fromkeys(("fmin", "MIN", "Min", "minimum"), "min"),
    **dict.fromkeys(("fmax", "MAX", "Max", "maximum"), "max"),
}


def pair(op: str, left: Expr, right: Expr) -> Expr:
    """An arithmetic operator or a comparison; sums and products of two numbers are computed.

    Raises: NestError for others.
    """
    if op in _FLIPPED:
        return Call(_FLIPPED[op], (right, left))
    if op in ("+", "-", "*") and isinstance(left, Const) and isinstance(right, Const):
        one, other = left.value, right.value
        return Const({"+": one + other, "-": one - other, "*": one * other}[op])
    if op in (*_COMPARISONS, "+", "-", "*", "/"):
        return Call(op, (left, right))
    raise NestError(f"operator {op} is not known in a nest")


def negated(value: Expr) -> Expr:
    return Const(-value.value) if isinstance(value, Const) else Call("neg", (value,))


def truth(value: Expr) -> Expr:
    """1 where a value is not 0, else 0."""
    if isinstance(value, Call) and value.op in _COMPARISONS:
        return value
    return Call("!=", (value, Const(0)))


def opposite(value: Expr) -> Expr:
    """1 where a value is 0, else 0."""
    return Call("==", (value, Const(0)))


def all_true(one: Expr, other: Expr) -> Expr:
    return Call("*", (truth(one), truth(other)))


def any_true(one: Expr, other: Expr) -> Expr:
    return Call("max", (truth(one), truth(other)))


def chosen(condition: Expr, one: Expr, other: Expr) -> Expr:
    """`condition ? one : other`, as a minimum or maximum where it is one."""
    if isinstance(condition, Call) and condition.op in ("<", "<="):
        if condition.args == (one, other):
            return Call("min", (one, other))
        if condition.args == (other, one):
            return Call("max", (one, other))
    return Call("select", (condition, one, other))


def function(name: str, args: Sequence[Expr]) -> Expr:
    """Raises: NestError for a function that a nest does not know."""
    op = _FUNCTIONS.get(name)
    if op in ("min", "max") and len(args) > 1:
        made = args[0]
        for one in args[1:]:
            made = Call(op, (made, one))
        return made
    if op is not None and op not in ("min", "max") and len(args) == 1:
        return Call(op, tuple(args))
    if name == "pow" and len(args) == 2:
        return power(args[0], args[1])
    raise NestError(f"function {name[:40] or '?'} with {len(args)} operands is not known in a nest")


def power(base: Expr, exponent: Expr) -> Expr:
    """Small powers, written out, and those of a positive number, by `exp`.

    Raises: NestError for others.
    """
    match exponent:
        case Const(times) if 1 <= abs(2 * times) <= 2 * _MOST_TIMES and 2 * times % 1 == 0:
            parts = [base] * int(abs(times)) + [Call("sqrt", (base,))] * (abs(times) % 1 == 0.5)
            made = parts[0]
            for part in parts[1:]:
                made = pair("*", made, part)
            return made if times > 0 else Call("/", (Const(1.0), made))
    match base:
        case Const(number) if number > 0:
            return Call("exp", (pair("*", exponent, Const(math.log(number))),))
    raise NestError("only powers up to 4, by halves, and those of numbers are known in a nest")


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
