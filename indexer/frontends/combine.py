"""Assignments as statements of a nest: which of them are reductions."""

from __future__ import annotations

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Call, Expr, Read, Statement
from indexer.frontends.tree import reads

_COMBINES = {"+": "+=", "*": "*=", "min": "min=", "max": "max="}


def combined(target: Access, op: str, value: Expr, mask: Expr | None) -> Statement:
    """`target op value` where `mask` is not 0. `op`: `=`, `+=`, `-=`, `*=`, `/=`, `min=`, `max=`.

    `x = x + e`, `x = min(x, e)` and `if (e < x) x = e` are reductions, unless e reads x itself.

    Raises: NestError for other operators.
    """
    if op == "-=":
        return Statement(target, "+=", Call("neg", (value,)), mask)
    if op == "/=":
        return Statement(target, "=", Call("/", (Read(target), value)), mask)
    if op in ("+=", "*=", "min=", "max="):
        own = any(access == target for access in reads(value))
        if not own:
            return Statement(target, op, value, mask)
        return Statement(target, "=", Call(op.removesuffix("="), (Read(target), value)), mask)
    if op != "=":
        raise NestError(f"operator {op} is not known in a nest")
    if isinstance(mask, Call) and mask.op in ("<", "<="):
        if mask.args == (value, Read(target)):
            return Statement(target, "min=", value)
        if mask.args == (Read(target), value):
            return Statement(target, "max=", value)
    for operator, combine in _COMBINES.items():
        rest = _without(value, Read(target), operator)
        if rest is not None and all(access != target for access in reads(rest)):
            return Statement(target, combine, rest, mask)
    return Statement(target, "=", value, mask)


def _without(value: Expr, own: Read, op: str) -> Expr | None:
    """What a sum (product, ...) is made of beside `own`, which stands in it once; None: it is not
    such a sum."""
    if not isinstance(value, Call):
        return None
    if value.op == op:
        one, other = value.args
        if one == own:
            return other
        if other == own:
            return one
        rest = _without(one, own, op)
        return None if rest is None else Call(op, (rest, other))
    if value.op == "-" and op == "+":
        one, other = value.args
        if one == own:
            return Call("neg", (other,))
        rest = _without(one, own, op)
        return None if rest is None else Call("-", (rest, other))
    return None
