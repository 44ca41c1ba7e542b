"""The code of a nest as plain JSON values: input of its id, and main part of its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from embeddb.nests.parts import (
    Access,
    Array,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    LoopIndex,
    Read,
    Statement,
)


def code_text(loops: Sequence[Loop], arrays: Sequence[Array], body: Sequence[Statement]) -> bytes:
    """`code_of` as canonical JSON, without any name."""
    return json.dumps(code_of(loops, arrays, body), separators=(",", ":"), allow_nan=False).encode()


def code_of(
    loops: Sequence[Loop], arrays: Sequence[Array], body: Sequence[Statement]
) -> dict[str, Any]:
    """Loops, arrays and statements, as `embeddb.nests.nest_text` describes."""
    return {
        "loops": [[_index(at.lower), _index(at.upper), at.step] for at in loops],
        "arrays": [[a.dtype, list(a.shape), a.fill, int(a.transient)] for a in arrays],
        "body": [
            [s.combine, _access(s.target), _expr(s.value), s.where and _expr(s.where)] for s in body
        ],
    }


def _index(index: Index) -> Any:
    plain = [index.affine.constant, *index.affine.coefs]
    return plain if index.of is None else {"plus": plain, "of": _access(index.of)}


def _access(access: Access) -> list[Any]:
    return [access.array, *map(_index, access.at)]


def _expr(expression: Expr) -> Any:
    match expression:
        case Const(value):
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            return int(value) if whole else value
        case LoopIndex(loop):
            return ["loop", loop]
        case Read(access):
            return ["read", *_access(access)]
        case Call(op, args):
            return [op, *map(_expr, args)]
