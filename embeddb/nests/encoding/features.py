"""Features of the nodes of a nest's graph ("Performance Embeddings", Table 4).

Every node has the same coordinates, `FEATURES`; those of other kinds of nodes are 0. Sizes are
log2(1 + size), and coefficients keep their sign. Dimensions are counted from the last of an array
(`-1` is contiguous), loops from the innermost (`-1`): at most `_DIMENSIONS` and `_LOOPS`; outer
ones enter only the totals.

Constant features of the table are omitted: alignment (every array begins a cache line), offset (0),
storage (main memory), map dimensions (1). Additions to the table: the fill of an array, how a loop
runs (the table's canonical schedule does not vary either), the body's operations, and the strides
of a memlet in bytes, which combine matrix, shape and type in one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from embeddb.core.sizes import log_size, signed_log
from embeddb.nests.dependence.legality import packable
from embeddb.nests.nest import Nest, furthest, index_range
from embeddb.nests.parts import (
    COMBINES,
    DTYPES,
    MOST_LOOPS,
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    LoopIndex,
    Read,
    Statement,
)
from embeddb.nests.schedule import INNER, POLICIES, Piece, Schedule

#: Operators by class of cost.
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


def operations(body: Iterable[Statement]) -> dict[str, int]:
    """Number of operations of each class of `OPERATIONS` in one iteration of the body, including
    those that combine reductions; masked ones count in full."""
    counts = dict.fromkeys(OPERATIONS, 0)
    for statement in body:
        for expression in (statement.value, statement.where):
            for op in _operators(expression):
                counts[_CLASS[op]] += 1
        if statement.reduction:
            counts[_CLASS[statement.combine.removesuffix("=")]] += 1
    return counts


def _operators(expression: Expr | None) -> Iterator[str]:
    if isinstance(expression, Call):
        yield expression.op
        for argument in expression.args:
            yield from _operators(argument)


def uses_loop(expression: Expr | None) -> bool:
    """Return true if it needs the value of a loop's index."""
    match expression:
        case LoopIndex():
            return True
        case Call(_, args):
            return any(map(uses_loop, args))
        case None | Const() | Read():
            return False


class Span(NamedTuple):
    """First and last index in one dimension, affine in the surrounding loops; `most` is the largest
    number of indices between them, `step` the distance from one to the next (0: only one)."""

    first: Affine
    last: Affine
    most: int
    step: int


#: Distinct accesses to one array that differ in constants only, in the order of the text. They
#: cover the same part of it up to a shift.
Group = tuple[Access, ...]


def groups_of(accesses: list[Access]) -> list[Group]:
    """Accesses in groups, in the order of the first access of each."""
    groups: dict[object, list[Access]] = {}
    for access in dict.fromkeys(accesses):
        shape = tuple((index.affine.coefs, index.of) for index in access.at)
        groups.setdefault((access.array, shape), []).append(access)
    return [tuple(members) for members in groups.values()]


def around(pieces: tuple[Piece, ...], level: int) -> dict[int, int]:
    """Loops that have a generated loop among the first `level`, and the largest offset of the
    loop's own index from that of the generated one: 0, or a block's width minus a step."""
    offsets: dict[int, int] = {}
    for piece in pieces[:level]:
        inside = piece.block
        inner = [p for p in pieces if p.loop == piece.loop and not p.block]
        offsets[piece.loop] = piece.step - inner[0].step if inside and inner else 0
    return offsets


def spans(nest: Nest, group: Group, fixed: Mapping[int, int]) -> list[Span | None]:
    """Span of the accesses of a group by dimension, with the loops of `fixed` (`around`) fixed;
    None where the index is read from an array."""
    ranges: list[Span | None] = []
    point = len(group) == 1 and len(fixed) == nest.depth and not any(fixed.values())
    for dimension, index in enumerate(group[0].at):
        if index.of is not None:
            ranges.append(None)
            continue
        if point:
            ranges.append(Span(index.affine, index.affine, 1, 0))
            continue
        constants = [a.at[dimension].affine.constant for a in group]
        coefs = index.affine.coefs
        ends = ((min(constants), False), (max(constants), True))
        first, last = (
            furthest(nest.loops, nest.arrays, Affine(constant, coefs), up, fixed)
            for constant, up in ends
        )
        between = index_range(nest.loops, nest.arrays, Index(last - first))[1] + 1
        ranges.append(Span(first, last, max(between, 1), _step(nest, index.affine, fixed)))
    return ranges


def _step(nest: Nest, affine: Affine, fixed: Mapping[int, int]) -> int:
    free = [at for at in affine.loops if fixed.get(at, 1)]
    return min((abs(affine.coef(at)) * nest.loops[at].step for at in free), default=0)


KINDS = ("array", "entry", "exit", "body", "memlet")
_FILLS = ("uniform", "zero", "range", "permutation", "below", "offsets")
_DIMENSIONS, _LOOPS = 4, MOST_LOOPS

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
    *(f"entry.policy.{name}" for name in POLICIES),
    *(f"entry.{name}" for name in INNER[1:]),
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

Row = list[float]


class Encoder:
    """Rows of `FEATURES` for the nodes of one nest under one schedule, each float[f]."""

    def __init__(self, nest: Nest, schedule: Schedule) -> None:
        self.nest, self.schedule = nest, schedule
        self.pieces = schedule.pieces(nest)
        self._parallel = schedule.parallel_piece(nest)
        self._known = [around(self.pieces, level) for level in range(len(self.pieces) + 1)]
        packed = {f"read{at + 1}": array for at, array in enumerate(packable(nest))}
        self._packed = packed.get(schedule.pack, -1)
        self._inwards = schedule.order[::-1]

    def array(self, number: int, *, written: bool = False) -> Row:
        """Row of an access node."""
        array = self.nest.arrays[number]
        fill, *arguments = array.fill.split(":")
        values = {
            array.dtype: 1.0,
            "element": log_size(DTYPES[array.dtype]),
            "dimensions": len(array.shape),
            "elements": log_size(array.elements),
            "bytes": log_size(array.bytes),
            "transient": array.transient,
            "written": written,
            "packed": not written and number == self._packed,
            "values": log_size(int(arguments[0])) if arguments else 0.0,
            "unevenness": log_size(array.unevenness),
            f"fill.{fill}": 1.0,
        }
        runs = {
            "shape.d-1": [log_size(size) for size in reversed(array.shape)][:_DIMENSIONS],
            "stride.d-1": [log_size(size) for size in reversed(array.strides)][:_DIMENSIONS],
        }
        return _row("array", values, runs)

    def entry(self, level: int) -> Row:
        """Row of a map entry: one generated loop, `level` from the outermost."""
        pieces, schedule = self.pieces, self.schedule
        piece, loop = pieces[level], self.nest.loops[pieces[level].loop]
        values: dict[str, float] = {
            "level": level,
            "inside": len(pieces) - 1 - level,
            "trip": log_size(piece.trip),
            "turns": log_size(math.prod(p.trip for p in pieces[: level + 1])),
            "step": log_size(piece.step),
            "block": piece.block,
            "dynamic": loop.of_data,
            "triangular": bool(loop.lower.affine.coefs or loop.upper.affine.coefs),
        }
        if self._parallel == piece:
            values |= {"parallel": 1.0, f"policy.{schedule.policy}": 1.0}
            if schedule.policy == "dynamic":
                values["chunk"] = log_size(schedule.chunk)
        if level == len(pieces) - 1 and schedule.inner in INNER[1:]:
            values[schedule.inner] = 1.0
        return _row("entry", values)

    def exit(self) -> Row:
        """Row of a map exit: its kind alone."""
        return _row("exit", {})

    def body(self) -> Row:
        """Row of the single node of all statements."""
        body = self.nest.body
        values = {name: log_size(count) for name, count in operations(body).items()}
        values["statements"] = log_size(len(body))
        values["reads"] = log_size(sum(len(s.reads()) for s in body))
        values["masked"] = any(s.where is not None for s in body)
        values["loop_index"] = any(uses_loop(e) for s in body for e in (s.value, s.where))
        return _row("body", values)

    def memlet(
        self, group: Group, level: int, *, writer: Statement | None = None, of_bound: bool = False
    ) -> Row:
        """Row of the data that a group of accesses moves in each iteration of the first `level`
        loops; `writer` is a statement that writes it, `of_bound` is true if a bound reads it."""
        nest, array = self.nest, self.nest.arrays[group[0].array]
        touched = spans(nest, group, self._known[level])[::-1]
        loops = [nest.loops[at] for at in group[0].loops]
        masked = writer is not None and writer.where is not None
        values: dict[str, float] = {
            "writes": writer is not None,
            "level": level,
            "inside": len(self.pieces) - level,
            "of_bound": of_bound,
            "accesses": log_size(len(group)),
            "footprint": log_size(_elements(array, touched) * DTYPES[array.dtype]),
            "dynamic": masked or any(loop.of_data for loop in loops),
            "indirect": None in touched,
        }
        if writer is not None and writer.reduction:
            values[f"reduction.{writer.combine}"] = 1.0
        strides = strides_of(nest, group[0])
        through = {at for i in group[0].at if i.of for at in i.of.loops}
        runs = {
            "stride.l-1": [signed_log(strides[at]) for at in self._inwards],
            "random.l-1": [float(at in through) for at in self._inwards],
        }
        for name, span in zip(_DIMS, touched, strict=False):
            if span is not None:
                values[f"step.{name}"] = log_size(span.step)
                values[f"extent.{name}"] = log_size(span.most)
                for end, affine in (("start", span.first), ("stop", span.last)):
                    values[f"{end}.{name}.constant"] = signed_log(affine.constant)
                    row = [signed_log(affine.coef(at)) for at in self._inwards]
                    runs[f"{end}.{name}.l-1"] = row
        return _row("memlet", values, runs)


def strides_of(nest: Nest, access: Access) -> tuple[int, ...]:
    """Bytes from one iteration to the next, by loop; indirect indices are excluded."""
    array = nest.arrays[access.array]
    strides = [0] * nest.depth
    for index, stride in zip(access.at, array.strides, strict=True):
        for at, coef in enumerate(index.affine.coefs):
            strides[at] += coef * stride * DTYPES[array.dtype] * nest.loops[at].step
    return tuple(strides)


def _row(
    kind: str, values: Mapping[str, float], runs: Mapping[str, Sequence[float]] | None = None
) -> Row:
    """A row of coordinates by name; the values of `runs` are consecutive, starting at the name."""
    row = [0.0] * len(FEATURES)
    row[_PLACE[f"is.{kind}"]] = 1.0
    for name, value in values.items():
        row[_PLACE[f"{kind}.{name}"]] = float(value)
    for name, run in (runs or {}).items():
        start = _PLACE[f"{kind}.{name}"]
        row[start : start + len(run)] = run
    return row


def _elements(array: Array, touched: list[Span | None]) -> int:
    """Number of elements in spans; an index read from an array may have any value."""
    sizes = zip(reversed(array.shape), touched, strict=True)
    return math.prod(extent if span is None else span.most for extent, span in sizes)
