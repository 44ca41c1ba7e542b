"""Start, end and step of a loop in an `.sdfg` file, parsed from its texts."""

from __future__ import annotations

import ast
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Affine, Index
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import expression, index_of, parsed
from indexer.frontends.indices import added, constant, scaled

_FLIPPED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_AROUND = str.maketrans("<>", "><")


def index_of_node(node: ast.expr, place: Place) -> Index:
    """A bound. Raises: NestError if it is not affine."""
    return index_of(ast.unparse(node), place)


def code_text(code: Any) -> str:
    """Code of a file, which is a text or an object with one."""
    return str(code.get("string_data", "")) if isinstance(code, dict) else str(code or "")


def comparison(code: Any) -> tuple[str, str, ast.expr] | None:
    """`name < bound` as (name, operator, bound)."""
    text = code_text(code)
    match expression(text) if text else None:
        case ast.Compare(ast.Name(name), [op], [bound]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)], bound
        case ast.Compare(bound, [op], [ast.Name(name)]) if type(op) in _FLIPPED:
            return name, _FLIPPED[type(op)].translate(_AROUND), bound
    return None


def assignment(text: str) -> tuple[str, str] | None:
    """`name = value` as (name, value)."""
    match parsed(text):
        case [ast.Assign([ast.Name(name)], value)]:
            return name, ast.unparse(value)
    return None


def step_of(text: Any, name: str, place: Place) -> int | None:
    """The step 4 of `name + 4`; None if it is no such sum."""
    if not isinstance(text, str):
        return None
    own = Index(Affine(0, (*[0] * len(place.loops), 1)))
    inner = place.deeper()
    inner.scope.names[name] = own
    try:
        grown = added(index_of(text, inner), scaled(own, -1))
    except NestError:
        return None
    return constant(grown)
