"""The numbers of a node of a nest's graph ("Performance Embeddings", Table 4).

Every node has the same coordinates, `FEATURES`; those of other kinds of nodes are 0. Sizes are
log2(1 + size), and coefficients keep their sign. Dimensions are counted from the last of an array
(`-1` is contiguous), loops from the innermost (`-1`): at most `_DIMENSIONS` and `_LOOPS`, what is
further out is in the total only.

Left out of the table because they do not vary here: alignment (every array begins a cache line),
offset (0), storage (main memory), map dimensions (1). Ours beyond the table: what an array holds,
how a loop runs (the table's canonical schedule does not vary either), the body's operations, and
the strides of a memlet in bytes, which say in one number what matrix, shape and type say in many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.encoding.footprints import Group, Span, around, spans
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    COMBINES,
    DTYPES,
    MOST_LOOPS,
    Array,
    Call,
    Const,
    Expr,
    LoopIndex,
    Read,
    Statement,
)
from embeddb.nests.schedule import Piece, Schedule

__all__ = [
    "FEATURES",
    "KINDS",
    "OPERATIONS",
    "array_row",
    "body_row",
    "entry_row",
    "log_size",
    "memlet_row",
    "operations",
    "plain_row",
    "strides_of",
]

KINDS = ("array", "entry", "exit", "body", "memlet")
_FILLS = ("uniform", "zero", "range", "permutation", "below", "offsets")
_POLICIES = ("static", "dynamic", "guided")
_INNER = ("simd", "unroll4", "jam4")
_DIMENSIONS, _LOOPS = 4, MOST_LOOPS

#: Operators by what they cost.
OPERATIONS = {
    "add": ("+", "-"),
    "multiply": ("*",),
    "divide": ("/",),
    "compare": ("<", "<=", "==", "!=", "select"),
    "extreme": ("min", "max"),
    "sign": ("neg", "abs"),
    "sqrt": ("sqrt",),
    "exp": ("exp", "log", "tanh"),
}
_CLASS = {op: name for name, ops in OPERATIONS.items() for op in ops}

_DIMS = tuple(f"d-{at + 1}" for at in range(_DIMENSIONS))
_INNERMOST = tuple(f"l-{at + 1}" for at in range(_LOOPS))
_COLUMNS = (*_INNERMOST, "constant")

FEATURES: tuple[str, ...] = (
    *(f"is.{kind}" for kind in KINDS),
    *(f"array.{name}" for name in (*DTYPES, "element", "dimensions", "elements", "bytes")),
    *(f"array.shape.{d}" for d in _DIMS),
    *(f"array.stride.{d}" for d in _DIMS),
    *(f"array.{name}" for name in ("transient", "written", "packed", "values", "unevenness")),
    *(f"array.fill.{name}" for name in _FILLS),
    *(f"entry.{name}" for name in ("level", "inside", "trip", "turns", "step", "block")),
    *(f"entry.{name}" for name in ("dynamic", "triangular", "parallel", "chunk")),
    *(f"entry.{name}" for name in (*_POLICIES, *_INNER)),
    *(f"body.{name}" for name in ("statements", *OPERATIONS, "reads", "masked", "loop_index")),
    *(f"memlet.{name}" for name in ("writes", "level", "inside", "of_bound", "accesses")),
    *(f"memlet.start.{d}.{c}" for d in _DIMS for c in _COLUMNS),
    *(f"memlet.stop.{d}.{c}" for d in _DIMS for c in _COLUMNS),
    *(f"memlet.{name}.{d}" for name in ("step", "extent") for d in _DIMS),
    *(f"memlet.{name}.{c}" for name in ("stride", "random") for c in _INNERMOST),
    *(f"memlet.{name}" for name in ("footprint", "dynamic", "indirect")),
    *(f"memlet.reduction.{name}" for name in COMBINES[1:]),
)
_PLACE = {name: at for at, name in enumerate(FEATURES)}

Row = NDArray[np.float32]


def plain_row(kind: str) -> Row:
    """float32[f]: the kind of a node and nothing else, which is all of a map exit."""
    return _row(kind, {})


def array_row(array: Array, *, written: bool, packed: bool) -> Row:
    """float32[f] of an access node."""
    fill, *told = array.fill.split(":")
    values = {
        array.dtype: 1.0,
        "element": log_size(DTYPES[array.dtype]),
        "dimensions": len(array.shape),
        "elements": log_size(array.elements),
        "bytes": log_size(array.bytes),
        "transient": array.transient,
        "written": written,
        "packed": packed,
        "values": log_size(int(told[0])) if told else 0.0,
        "unevenness": log_size(float(told[1])) if len(told) > 1 else 0.0,
        f"fill.{fill}": 1.0,
    }
    values |= _named("shape", _DIMS, map(log_size, reversed(array.shape)))
    values |= _named("stride", _DIMS, map(log_size, reversed(array.strides)))
    return _row("array", values)


def entry_row(nest: Nest, schedule: Schedule, pieces: tuple[Piece, ...], level: int) -> Row:
    """float32[f] of a map entry: one generated loop, `level` from the outermost."""
    piece, loop = pieces[level], nest.loops[pieces[level].loop]
    parallel = schedule.parallel_piece(nest) == piece
    values: dict[str, float] = {
        "level": level,
        "inside": len(pieces) - 1 - level,
        "trip": log_size(piece.trip),
        "turns": log_size(math.prod(p.trip for p in pieces[: level + 1])),
        "step": log_size(piece.step),
        "block": piece.block,
        "dynamic": loop.lower.of is not None or loop.upper.of is not None,
        "triangular": bool(loop.lower.affine.coefs or loop.upper.affine.coefs),
        "parallel": parallel,
    }
    if parallel:
        values[schedule.policy] = 1.0
        if schedule.policy == "dynamic":
            values["chunk"] = log_size(schedule.chunk)
    if level == len(pieces) - 1 and schedule.inner in _INNER:
        values[schedule.inner] = 1.0
    return _row("entry", values)


def body_row(nest: Nest) -> Row:
    """float32[f] of the one node that stands for all statements."""
    values = {name: log_size(count) for name, count in operations(nest.body).items()}
    values["statements"] = log_size(len(nest.body))
    values["reads"] = log_size(sum(len(s.reads()) for s in nest.body))
    values["masked"] = float(any(s.where is not None for s in nest.body))
    values["loop_index"] = float(any(_uses_loop(e) for s in nest.body for e in (s.value, s.where)))
    return _row("body", values)


def memlet_row(
    nest: Nest,
    schedule: Schedule,
    pieces: tuple[Piece, ...],
    group: Group,
    *,
    level: int,
    writer: Statement | None = None,
    of_bound: bool = False,
) -> Row:
    """float32[f] of what a group of accesses moves each time the first `level` loops have come to
    a turn; `writer` is a statement that writes it."""
    known = around(pieces, level)
    inwards = schedule.order[::-1]
    touched = spans(nest, group, known)[::-1]
    array = nest.arrays[group.array]
    values: dict[str, float] = {
        "writes": writer is not None,
        "level": level,
        "inside": len(pieces) - level,
        "of_bound": of_bound,
        "accesses": log_size(len(group.accesses)),
        "footprint": log_size(_elements(array, touched) * DTYPES[array.dtype]),
        "dynamic": _dynamic(nest, group) or (writer is not None and writer.where is not None),
        "indirect": None in touched,
    }
    if writer is not None and writer.reduction:
        values[f"reduction.{writer.combine}"] = 1.0
    for name, span in zip(_DIMS, touched, strict=False):
        if span is None:
            continue
        for end, affine in (("start", span.first), ("stop", span.last)):
            row = [*(affine.coef(at) for at in inwards)]
            values |= _named(f"{end}.{name}", _INNERMOST, map(_signed, row))
            values[f"{end}.{name}.constant"] = _signed(affine.constant)
        values[f"step.{name}"] = log_size(span.step)
        values[f"extent.{name}"] = log_size(span.most)
    strides = strides_of(nest, group)
    values |= _named("stride", _INNERMOST, (_signed(strides[at]) for at in inwards))
    through = frozenset(at for i in group.accesses[0].at if i.of for at in i.of.loops)
    values |= _named("random", _INNERMOST, (float(at in through) for at in inwards))
    return _row("memlet", values)


def strides_of(nest: Nest, group: Group) -> tuple[int, ...]:
    """By loop, the bytes from one turn to the next; what goes through another array is left out."""
    array, access = nest.arrays[group.array], group.accesses[0]
    size = DTYPES[array.dtype]
    return tuple(
        nest.loops[at].step
        * size
        * sum(i.affine.coef(at) * s for i, s in zip(access.at, array.strides, strict=True))
        for at in range(nest.depth)
    )


def operations(body: Iterable[Statement]) -> dict[str, int]:
    """How many operations of each class of `OPERATIONS` one turn of the body has, those by which
    reductions combine included; those of masks count as if always done."""
    found = dict.fromkeys(OPERATIONS, 0)
    for statement in body:
        for expression in (statement.value, statement.where):
            for op in _operators(expression):
                found[_CLASS[op]] += 1
        if statement.reduction:
            found[_CLASS[statement.combine.removesuffix("=")]] += 1
    return found


def log_size(size: float) -> float:
    """log2(1 + size)."""
    return math.log2(1.0 + size)


def _signed(value: float) -> float:
    return math.copysign(math.log2(1.0 + abs(value)), value)


def _row(kind: str, values: Mapping[str, float]) -> Row:
    row = np.zeros(len(FEATURES), dtype=np.float32)
    row[_PLACE[f"is.{kind}"]] = 1.0
    for name, value in values.items():
        row[_PLACE[f"{kind}.{name}"]] = value
    return row


def _named(name: str, places: tuple[str, ...], values: Iterable[float]) -> dict[str, float]:
    """Values by `name.place`; those beyond the places are left out."""
    return {f"{name}.{place}": value for place, value in zip(places, values, strict=False)}


def _elements(array: Array, touched: list[Span | None]) -> int:
    """How many elements lie in what is touched; an index out of an array may be any."""
    sizes = zip(reversed(array.shape), touched, strict=True)
    return math.prod(extent if span is None else span.most for extent, span in sizes)


def _dynamic(nest: Nest, group: Group) -> bool:
    """Whether how much is moved depends on data: a loop it depends on has such bounds."""
    loops = (nest.loops[at] for at in group.accesses[0].loops)
    return any(loop.lower.of is not None or loop.upper.of is not None for loop in loops)


@cache
def _operators(expression: Expr | None) -> tuple[str, ...]:
    if not isinstance(expression, Call):
        return ()
    return (expression.op, *(op for a in expression.args for op in _operators(a)))


def _uses_loop(expression: Expr | None) -> bool:
    match expression:
        case LoopIndex():
            return True
        case Call(_, args):
            return any(map(_uses_loop, args))
        case None | Const() | Read():
            return False
