"""The forms of what moves, picks and converts numbers, and of what goes along one dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from embeddb.tensors.encoding.form import Form, combine_number, counted, whole_number
from embeddb.tensors.operation import Operation, Shape

__all__ = ["MOVE_FORMS"]


def _transpose(op: Operation, given: Sequence[Shape]) -> Form:
    """`run`: what lies in one piece before and after; `along`: how far apart in the operand what is
    next to each other in the result lies."""
    shape, order = given[0], op.dims("dimensions")
    before, after = shape.layout, tuple(order[d] for d in op.shape.layout)
    run = 1
    for one, other in zip(before, after, strict=True):
        if one != other:
            break
        run *= shape.dims[one]
    moved = [d for d in after if shape.dims[d] > 1]
    stays = moved == [d for d in before if shape.dims[d] > 1]
    away = 1
    for d in before:
        if not moved or d == moved[0]:
            break
        away *= shape.dims[d]
    return {
        "minor": 1.0 + (not stays),
        "run": counted(run),
        "along": counted(away),
        "kept": counted(shape.dims[before[0]] if before else 1),
    }


def _reshape(op: Operation, given: Sequence[Shape]) -> Form:
    plain = all(s.layout == tuple(reversed(range(s.rank))) for s in (op.shape, given[0]))
    return {"minor": 1.0 + (not plain)}


def _broadcast(op: Operation, given: Sequence[Shape]) -> Form:
    own = op.dims("dimensions")
    run = 1
    for d in op.shape.layout:
        if d not in own:
            break
        run *= op.shape.dims[d]
    inside = bool(op.shape.rank) and op.shape.layout[0] in own
    return {"minor": 1.0 + inside, "run": counted(run), "kept": counted(given[0].elements)}


def _slice(op: Operation, given: Sequence[Shape]) -> Form:
    """Of a slice, a pad, a dynamic slice: what of the smaller lies in one piece in the larger."""
    part, whole = op.shape, given[0]
    if part.elements > whole.elements:
        part, whole = whole, part
    stride = op.dims("stride") or tuple(1 + inside for inside in op.dims("interior"))
    return {**_piece(part, whole), "stride": counted(math.prod(stride) - 1)}


def _update(op: Operation, given: Sequence[Shape]) -> Form:
    return {**_piece(given[1], given[0]), "kept": counted(given[1].elements)}


def _piece(part: Shape, whole: Shape) -> Form:
    run = 1
    for d in whole.layout:
        run *= part.dims[d]
        if part.dims[d] != whole.dims[d]:
            break
    inside = bool(whole.rank) and part.dims[whole.layout[0]] == whole.dims[whole.layout[0]]
    return {"minor": 1.0 + inside, "run": counted(run)}


def _concatenate(op: Operation, given: Sequence[Shape]) -> Form:
    at = whole_number(op, "dimension")
    inside = op.shape.layout[0] == at
    return {"minor": 1.0 + inside, "along": counted(given[0].dims[at]), "kept": float(len(given))}


def _reverse(op: Operation, given: Sequence[Shape]) -> Form:
    return {"minor": 1.0 + (op.shape.layout[0] in op.dims("dimensions"))}


def _sort(op: Operation, given: Sequence[Shape]) -> Form:
    minor = given[0].dims[given[0].layout[0]]
    return {"along": counted(minor), "results": float(len(op.results))}


def _gather(op: Operation, given: Sequence[Shape]) -> Form:
    """`run`: of what is picked or written at once."""
    part = given[2] if op.opcode == "scatter" and len(given) > 2 else op.shape
    run = part.dims[part.layout[0]] if part.rank else 1
    found = {"run": counted(run), "kept": counted(part.elements), "combine": combine_number(op)}
    return {**found, "along": counted(given[0].elements)}


def _factored(op: Operation, given: Sequence[Shape]) -> Form:
    """Of a triangular solve, a factorisation, a Fourier transform."""
    return {"along": counted(given[0].dims[-1] if given[0].rank else 1)}


def _convert(op: Operation, given: Sequence[Shape]) -> Form:
    given_type = given[0].dtype
    return {
        "from_bytes": given[0].bytes / max(given[0].elements, 1),
        "from_float": float("f" in given_type),
    }


MOVE_FORMS: Mapping[str, Callable[[Operation, Sequence[Shape]], Form]] = MappingProxyType(
    {
        "transpose": _transpose,
        "reshape": _reshape,
        "broadcast": _broadcast,
        "slice": _slice,
        "pad": _slice,
        "dynamic-slice": _slice,
        "dynamic-update-slice": _update,
        "concatenate": _concatenate,
        "reverse": _reverse,
        "sort": _sort,
        "gather": _gather,
        "scatter": _gather,
        "cholesky": _factored,
        "triangular-solve": _factored,
        "fft": _factored,
        "convert": _convert,
        "compare": _convert,
    }
)
