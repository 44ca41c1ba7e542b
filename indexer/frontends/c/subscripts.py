"""Subscripts, bounds and numbers of C (trees of pycparser) as indices of a nest."""

from __future__ import annotations

import re
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Const, Index
from indexer.frontends.indices import index_pair, scaled, whole
from indexer.frontends.names import Held, Scope

_NUMBER = re.compile(
    r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*|((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFlL]?"
)


def index_of(node: Any, scope: Scope) -> Index:
    """A subscript or bound: whole, affine in the loops, plus at most one element of an array.

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


def number_of(node: Any) -> int | float:
    found = _NUMBER.fullmatch(node.value)
    if found is None:
        raise NestError(f"{node.value[:20]} is no number")
    if found[1] is None or "." in node.value or node.type in ("float", "double"):
        return float(found[2])
    if len(found[1]) > 1 and found[1][0] == "0" and found[1][1] not in "xX":
        return int(found[1], 8)
    return int(found[1], 0)
