"""Expressions of C (trees of pycparser) as indices and values of a nest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Call, Const, Expr, Index, Read
from indexer.frontends.c.text import undefined
from indexer.frontends.scalars import (
    all_true,
    any_true,
    chosen,
    function,
    is_whole,
    negated,
    opposite,
    pair,
)
from indexer.frontends.tree import (
    Scope,
    StoredArray,
    divided,
    expression_of,
    index_pair,
    scaled,
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
            return index_pair(node.op, *(index_of(n, scope) for n in (node.left, node.right)))
    raise NestError("a subscript or bound is not affine: use sums and multiples of loops")


def _index_of_name(name: str, scope: Scope) -> Index:
    meaning = scope.of(name)
    if isinstance(meaning, Index):
        return meaning
    if isinstance(meaning, Const) and isinstance(meaning.value, int):
        return whole(meaning.value)
    if isinstance(meaning, StoredArray) and not scope.arrays[meaning.array].shape:
        raise NestError(f"{name} is computed: a subscript or bound is not affine")
    raise NestError(f"{name} is no whole number: a subscript or bound is not affine")


def access_of(node: Any, scope: Scope) -> Access:
    """`A[i][j]`, or a stored scalar. Raises: NestError."""
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
    return Access(array.array, tuple(reversed(at)))


def number_of(node: Any) -> int | float:
    number = _NUMBER.fullmatch(node.value)
    if number is None:
        raise NestError(f"{node.value[:20]} is no number")
    if number[1] is None or "." in node.value or node.type in ("float", "double"):
        return float(number[2])
    if len(number[1]) > 1 and number[1][0] == "0" and number[1][1] not in "xX":
        return int(number[1], 8)
    return int(number[1], 0)


def value_of(node: Any, scope: Scope) -> Expr:
    """The value of an expression. Raises: NestError for an unsupported one."""
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
            return negated(value_of(node.expr, scope))
        case c_ast.UnaryOp(op="!"):
            return opposite(value_of(node.expr, scope))
        case c_ast.BinaryOp():
            left, right = value_of(node.left, scope), value_of(node.right, scope)
            return _pair(node.op, left, right, scope)
        case c_ast.TernaryOp():
            return chosen(*(value_of(n, scope) for n in (node.cond, node.iftrue, node.iffalse)))
        case c_ast.FuncCall():
            args = [value_of(a, scope) for a in (node.args.exprs if node.args else [])]
            return _function(getattr(node.name, "name", "?"), args)
    name = f"operator {node.op}" if hasattr(node, "op") else type(node).__name__
    raise NestError(f"{name} is not supported in a nest")


def _value_of_name(name: str, scope: Scope) -> Expr:
    meaning = scope.of(name)
    if isinstance(meaning, Index):
        return expression_of(meaning)
    if isinstance(meaning, StoredArray):
        if scope.arrays[meaning.array].shape:
            raise NestError(f"{name} is an array without subscripts: arrays cannot be passed on")
        return Read(Access(meaning.array, ()))
    return meaning


def _cast(node: Any, scope: Scope) -> Expr:
    value = value_of(node.expr, scope)
    names = getattr(getattr(node.to_type.type, "type", None), "names", [])
    if set(names) & {"float", "double"}:
        if isinstance(value, Const):
            return Const(float(value.value))
        return Call("*", (value, Const(1.0))) if is_whole(value, scope.arrays) else value
    if not is_whole(value, scope.arrays):
        raise NestError("a number is cut to a whole one, which is not supported in a nest")
    return value


def _pair(op: str, left: Expr, right: Expr, scope: Scope) -> Expr:
    if op == "&&":
        return all_true(left, right)
    if op == "||":
        return any_true(left, right)
    if op == "/" and is_whole(left, scope.arrays) and is_whole(right, scope.arrays):
        match left, right:
            case Const(int(one)), Const(int(other)) if other:
                return Const(divided(one, other))
        raise NestError("whole numbers are divided, which is not supported in a nest")
    return pair(op, left, right)


def _function(name: str, args: Sequence[Expr]) -> Expr:
    for spelling in (name, name.removesuffix("f")):  # as C names them for float
        with suppress(NestError):
            return function(spelling, args)
    if name.isupper() and name not in ("MIN", "MAX"):
        raise undefined(name)
    return function(name, args)
