"""Readable lines for a nest, and for its loops under a schedule."""

from __future__ import annotations

from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Call, Const, Expr, Index, LoopIndex, Read, Statement
from embeddb.nests.schedule import Schedule

#: Text in the line of the parallel loop.
PARALLEL = "in parallel"
_INFIX = ("+", "-", "*", "/", "<", "<=", "==", "!=")
_INNER = {
    "simd": "vectorised",
    "unroll4": "unrolled 4 times",
    "jam4": "jammed with 4 turns of the loop around it",
}


def loop_lines(nest: Nest, schedule: Schedule | None = None) -> list[str]:
    """A line for each loop from the outermost: as it is written (`for k from 0 to N`), or with a
    schedule each generated one (`k in blocks of 32: 16 turns, in parallel (static)`)."""
    if schedule is None:
        return [_written(nest, loop) for loop in range(nest.depth)]
    pieces, parallel = schedule.pieces(nest), schedule.parallel_piece(nest)
    lines = []
    for piece in pieces:
        size = piece.step // nest.loops[piece.loop].step
        blocks = f" in blocks of {size}" if piece.block else ""
        lines.append(f"{nest.loop_name(piece.loop)}{blocks}: {piece.trip:,} turns")
    if parallel is not None:
        chunk = f", {schedule.chunk} at a time" if schedule.policy == "dynamic" else ""
        lines[pieces.index(parallel)] += f", {PARALLEL} ({schedule.policy}{chunk})"
    if schedule.inner in _INNER:
        lines[-1] += f", {_INNER[schedule.inner]}"
    return lines


def statement_line(nest: Nest, statement: Statement) -> str:
    """`C[i][j] += A[i][k] * B[k][j]`."""
    target, value = access_text(nest, statement.target), _text(nest, statement.value)
    line = f"{target} {statement.combine} {value}"
    return line if statement.where is None else f"where {_text(nest, statement.where)}: {line}"


def access_text(nest: Nest, access: Access) -> str:
    """`A[i][2*k + 1]`."""
    return nest.array_name(access.array) + "".join(f"[{index_text(nest, i)}]" for i in access.at)


def index_text(nest: Nest, index: Index) -> str:
    """An index or a bound: `col[k]`, `i - 1`, `2*j`."""
    terms = [] if index.of is None else [access_text(nest, index.of)]
    for loop, by in enumerate(index.affine.coefs):
        if by:
            name = nest.loop_name(loop)
            terms.append(name if by == 1 else f"-{name}" if by == -1 else f"{by}*{name}")
    if index.affine.constant or not terms:
        terms.append(str(index.affine.constant))
    return " + ".join(terms).replace("+ -", "- ")


def _written(nest: Nest, loop: int) -> str:
    bounds = nest.loops[loop]
    step = f" in steps of {bounds.step}" if bounds.step > 1 else ""
    low, high = index_text(nest, bounds.lower), index_text(nest, bounds.upper)
    return f"for {nest.loop_name(loop)} from {low} to before {high}{step}"


def _text(nest: Nest, expression: Expr) -> str:
    match expression:
        case Const(value):
            return f"{value:g}" if isinstance(value, float) else str(value)
        case LoopIndex(loop):
            return nest.loop_name(loop)
        case Read(access):
            return access_text(nest, access)
        case Call("neg", (one,)):
            return f"-{_inner(nest, one)}"
        case Call("select", (test, yes, no)):
            return f"({_text(nest, test)} ? {_text(nest, yes)} : {_text(nest, no)})"
        case Call(op, (one, other)) if op in _INFIX:
            return f"{_inner(nest, one)} {op} {_inner(nest, other)}"
        case Call(op, args):
            return f"{op}({', '.join(_text(nest, a) for a in args)})"


def _inner(nest: Nest, expression: Expr) -> str:
    text = _text(nest, expression)
    infix = isinstance(expression, Call) and expression.op in _INFIX
    return f"({text})" if infix else text
