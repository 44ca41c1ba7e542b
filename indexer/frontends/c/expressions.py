"""Expressions of C (trees of pycparser) as indices and values of a nest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Index, Read
from indexer.frontends.c.text import undefined
from indexer.frontends.c.types import NATURAL, Operators, Typed, declared, literal, plain
from indexer.frontends.scalars import all_true, any_true, function, negated
from indexer.frontends.tree import (
    Scope,
    StoredArray,
    expression_of,
    index_pair,
    whole,
)

_NUMBER = re.compile(
    r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*|((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFlL]?"
)


def index_of(node: Any, scope: Scope) -> Index:
    """A subscript or bound: integer, affine in the loops, plus at most one element of an array.

    Raises: NestError for anything else.
    """
    match node:
        case c_ast.Constant():
            number = number_of(node)
            if isinstance(number, int):
                return whole(number)
        case c_ast.ID():
            return scope.index(node.name)
        case c_ast.ArrayRef():
            access, _ = element(node, scope)
            dtype = scope.arrays[access.array].dtype
            if dtype not in ("i32", "i64"):
                raise NestError(f"a subscript or bound needs whole numbers, not {dtype}")
            return Index(of=access)
        case c_ast.Cast() if declared(node.to_type.type, scope) in ("i32", "i64", "u64"):
            return index_of(node.expr, scope)
        case c_ast.UnaryOp(op="-" | "+" as op):
            return index_of(node.expr, scope) * (-1 if op == "-" else 1)
        case c_ast.BinaryOp(op="+" | "-" | "*" | "/"):
            return index_pair(node.op, *(index_of(n, scope) for n in (node.left, node.right)))
    raise NestError("a subscript or bound is not affine: use sums and multiples of loops")


def element(node: Any, scope: Scope) -> tuple[Access, Typed]:
    """`A[i][j]`, or a stored scalar, and its value. Raises: NestError."""
    at: list[Index] = []
    while isinstance(node, c_ast.ArrayRef):
        at.append(index_of(node.subscript, scope))
        node = node.name
    if not isinstance(node, c_ast.ID):
        raise NestError("pointers and structures are not supported: write ARRAY[i][j]")
    array = scope.of(node.name)
    if not isinstance(array, StoredArray):
        raise NestError(f"{node.name} is no array")
    dimensions = len(scope.arrays[array.array].shape)
    if len(at) != dimensions:
        raise NestError(f"{node.name}: {len(at)} subscripts for {dimensions} dimensions")
    access = Access(array.array, tuple(reversed(at)))
    c_type = scope.types.get(node.name) or scope.arrays[array.array].dtype
    return access, Typed(Read(access), c_type)


def number_of(node: Any) -> int | float:
    number = _NUMBER.fullmatch(node.value)
    if number is None:
        raise NestError(f"{node.value[:20]} is no number")
    if number[1] is None or "." in node.value or node.type in ("float", "double"):
        return float(number[2])
    if len(number[1]) > 1 and number[1][0] == "0" and number[1][1] not in "xX":
        return int(number[1], 8)
    return int(number[1], 0)


def typed(node: Any, scope: Scope) -> Typed:
    """The value of an expression with its type in C. Raises: NestError for an unsupported one."""
    operators = Operators(scope.arrays, scope.loops)
    match node:
        case c_ast.Constant():
            return literal(node.value, number_of(node))
        case c_ast.ID():
            return _named(node.name, scope)
        case c_ast.ArrayRef():
            return element(node, scope)[1]
        case c_ast.Cast():
            return operators.cast(typed(node.expr, scope), declared(node.to_type.type, scope))
        case c_ast.UnaryOp(op="+"):
            return typed(node.expr, scope)
        case c_ast.UnaryOp(op="-"):
            one = typed(node.expr, scope)
            return operators.negated(one, negated(one.value))
        case c_ast.UnaryOp(op="!"):
            return Typed(operators.opposite(typed(node.expr, scope)), "i32")
        case c_ast.BinaryOp(op="&&" | "||" as op):
            combine = all_true if op == "&&" else any_true
            both = (operators.truth(typed(part, scope)) for part in (node.left, node.right))
            return Typed(combine(*both), "i32")
        case c_ast.BinaryOp():
            return operators.pair(node.op, typed(node.left, scope), typed(node.right, scope))
        case c_ast.TernaryOp():
            parts = (node.cond, node.iftrue, node.iffalse)
            return operators.chosen(*(typed(part, scope) for part in parts))
        case c_ast.FuncCall():
            args = [typed(a, scope) for a in (node.args.exprs if node.args else [])]
            return _function(getattr(node.name, "name", "?"), args, scope)
    name = f"operator {node.op}" if hasattr(node, "op") else type(node).__name__
    raise NestError(f"{name} is not supported in a nest")


def _named(name: str, scope: Scope) -> Typed:
    meaning, c_type = scope.of(name), scope.types.get(name, "")
    if isinstance(meaning, Index):
        up = meaning.of is None and min((0, meaning.affine.constant, *meaning.affine.coefs)) == 0
        c_type = NATURAL if c_type == "u64" and up else c_type
        value = Typed(expression_of(meaning), c_type or "i32")
        if c_type == "i32" and meaning.of and scope.arrays[meaning.of.array].dtype == "i64":
            raise NestError(f"{name} is an int that is set to a long: declare it as long")
        return value
    if isinstance(meaning, StoredArray):
        if scope.arrays[meaning.array].shape:
            raise NestError(f"{name} is an array without subscripts: arrays cannot be passed on")
        return element(c_ast.ID(name), scope)[1]
    own = plain(meaning, scope.arrays)
    return Typed(meaning, c_type if c_type and c_type != "u64" else own.type)


#: Functions of double, and if a nest computes those of whole numbers in these; the functions of
#: float have an f behind.
_OF_DOUBLE = {
    **dict.fromkeys(("sqrt", "exp", "log", "tanh"), False),
    **dict.fromkeys(("fabs", "fmin", "fmax", "pow"), True),
}


def _function(name: str, args: Sequence[Typed], scope: Scope) -> Typed:
    values, result = [a.value for a in args], ""
    operators, base = Operators(scope.arrays, scope.loops), name.removesuffix("f")
    if args and not scope.overloaded:
        if base in _OF_DOUBLE:
            result = "f64" if base == name else "f32"
            values = operators.converted(args, result, whole=_OF_DOUBLE[base])
        elif name == "abs":
            operators.cast(args[0], "i32")
            result = "i32"
        elif len(args) == 2:
            operators.pair("<", *args)
            *values, result = operators.joined(*args)
    for spelling in (name, base):
        with suppress(NestError):
            value = function(spelling, values)
            large = result == "f64" and base in ("exp", "pow")
            return Typed(value, result, large) if result else plain(value, scope.arrays)
    if name.isupper() and name not in ("MIN", "MAX"):
        raise undefined(name)
    value = function(name, values)
    return Typed(value, result)
