"""Products of matrices: all layouts of the operands, from one column to many."""

from __future__ import annotations

from collections.abc import Mapping

from tools.tensor_programs.probes.draft import Case, Draft
from tools.tensor_programs.probes.loops import chained, followed


def _sizes(draft: Draft) -> tuple[int, int, int]:
    """Rows, terms and columns of a product that is long enough to be timed, but not longer."""
    while True:
        m, k, n = (draft.size(2, 2048) for _ in range(3))
        if 3e5 < m * k * n < 1e8 and max(m * k, k * n, m * n) < 4e6:
            return m, k, n


def _parameter(draft: Draft, rows: int, terms: int, *, turned: bool) -> int:
    return draft.given(terms, rows) if turned else draft.given(rows, terms)


def _turned(draft: Draft, m: int, k: int, n: int) -> int:
    first, second = draft.chance(0.25), draft.chance(0.25)
    lhs = _parameter(draft, m, k, turned=first)
    rhs = _parameter(draft, n, k, turned=not second)
    return draft.dot(lhs, rhs, ((1 - first,), (int(second),)))


def _plain(draft: Draft) -> int:
    return followed(draft, _turned(draft, *_sizes(draft)))


def _thin(draft: Draft) -> int:
    """One, two or three rows or columns, or few terms."""
    few, long = draft.one(1, 1, 2, 3, 4, 6), draft.size(128, 4096)
    other = draft.size(32, max(33, min(4096, 4e6 / long)))
    m, k, n = draft.one((few, long, other), (long, other, few), (long, few, other))
    return followed(draft, _turned(draft, m, k, n))


def _vector(draft: Draft) -> int:
    rank = draft.one(2, 3)
    dims = draft.dims(rank, 3e4, 2e6)
    return draft.dot(draft.given(*dims), draft.given(dims[-1]), ((rank - 1,), (0,)))


def _many_rows(draft: Draft) -> int:
    """Product of an array of three or four dimensions with a matrix."""
    m, k, n = _sizes(draft)
    rank = draft.one(3, 3, 4)
    outer = (1, m)
    for part in (2, 4, 8):
        if m % part == 0 and draft.chance(0.6):
            outer = (part, m // part)
    lhs = draft.given(*((1,) * (rank - 3)), *outer, k)
    turned = draft.chance(0.2)
    rhs = _parameter(draft, n, k, turned=not turned)
    return followed(draft, draft.dot(lhs, rhs, ((rank - 1,), (int(turned),))))


def _summed_twice(draft: Draft) -> int:
    """Sum over rows of batches: gradients of weights."""
    m, k, n = _sizes(draft)
    part = draft.one(2, 4, 8)
    lhs, rhs = (draft.given(part, max(k // part, 1), size) for size in (m, n))
    return draft.dot(lhs, rhs, ((0, 1), (0, 1)))


def _gradient(draft: Draft) -> int:
    m, k, n = _sizes(draft)
    return draft.dot(draft.given(k, m), draft.given(k, n), ((0,), (0,)))


def _narrow_gradient(draft: Draft) -> int:
    """Gradient product with many rows, and few columns on both sides."""
    left, right = draft.size(1, 96), draft.size(1, 96)
    rows = draft.size(256, min(16384, 3e7 / left / right))
    return draft.dot(draft.given(rows, left), draft.given(rows, right), ((0,), (0,)))


def _small(draft: Draft) -> int:
    """Many products of matrices of a few rows and columns, in any layout."""
    m, k, n = (draft.size(1, 64) for _ in range(3))
    most = max(5, min(2048, 2e7 / (m * k * n), 2e6 / max(m * k, k * n, m * n)))
    batch = draft.size(4, most)
    sides = []
    for outer in (m, n):
        order = draft.one((0, 1, 2), (0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1))
        dims = (batch, outer, k)
        operand = draft.given(*(dims[d] for d in order))
        sides.append((operand, order.index(2), order.index(0)))
    (lhs, over, first), (rhs, summed, second) = sides
    return draft.dot(lhs, rhs, ((over,), (summed,)), ((first,), (second,)))


def _batched(draft: Draft) -> int:
    """The products of attention, batch and heads before or between the others."""
    batch, heads, width = draft.size(1, 6), draft.size(1, 8), draft.size(8, 128)
    rows, other = draft.size(8, 384), draft.size(8, 384)
    if draft.chance(0.3):
        few, many = draft.one(1, 2, 3, 4, 6, 8), draft.size(64, 1024)
        rows, other, width = draft.one((many, few, width), (many, other, few), (many, few, few))
    form = draft.one("scores", "scores", "mixed", "mixed", "leading", "turned", "plain")
    if form == "scores":
        lhs, rhs = (draft.given(batch, size, heads, width) for size in (rows, other))
        return chained(draft, draft.dot(lhs, rhs, ((3,), (3,)), ((0, 2), (0, 2))), 1)
    if form == "mixed":
        lhs = draft.given(batch, other, heads, width)
        rhs = draft.given(batch, heads, rows, other)
        return draft.dot(lhs, rhs, ((1,), (3,)), ((0, 2), (0, 1)))
    if form == "leading":
        lhs, rhs = draft.given(batch, heads, rows, width), draft.given(batch, heads, width, other)
        return draft.dot(lhs, rhs, ((3,), (2,)), ((0, 1), (0, 1)))
    if form == "turned":
        lhs, rhs = draft.given(batch, heads, rows, width), draft.given(batch, heads, other, width)
        return draft.dot(lhs, rhs, ((3,), (3,)), ((0, 1), (0, 1)))
    lhs, rhs = draft.given(batch * heads, rows, width), draft.given(batch * heads, width, other)
    return draft.dot(lhs, rhs, ((2,), (1,)), ((0,), (0,)))


def _rows_by_matrices(draft: Draft) -> int:
    """One row for each of many matrices: attention of one step, sums over neighbours; or some."""
    batch, width = draft.size(8, 512), draft.one(1, 3, 4, 8, draft.size(16, 512))
    rows = draft.size(8, max(9, min(1024, 4e6 / batch / width)))
    if draft.chance(0.2):
        terms, others = draft.one(4, 8, 16, 32), draft.size(2, 16)
        lhs = draft.given(batch, max(rows // max(others, terms // 2), 1), terms, width)
        return draft.dot(lhs, draft.given(others, batch, terms), ((2,), (2,)), ((0,), (1,)))
    many = draft.given(batch, rows, width)
    if draft.chance(0.5):
        return draft.dot(draft.given(batch, rows), many, ((1,), (1,)), ((0,), (0,)))
    return draft.dot(many, draft.given(batch, width), ((2,), (1,)), ((0,), (0,)))


def _computed(draft: Draft) -> int:
    """Product of operands that are computed for it alone, or transposed."""
    m, k, n = _sizes(draft)
    lhs = chained(draft, draft.given(m, k), 3)
    if draft.chance(0.4):
        rhs = draft.add("transpose", (k, n), draft.given(n, k), dimensions=(1, 0))
    else:
        rhs = draft.given(k, n)
    return followed(draft, draft.dot(lhs, rhs, ((1,), (0,))))


CASES: Mapping[str, tuple[int, Case]] = {
    "plain": (500, _plain),
    "thin": (500, _thin),
    "vector": (120, _vector),
    "rows": (250, _many_rows),
    "summed": (120, _summed_twice),
    "gradient": (350, _gradient),
    "narrow_gradient": (400, _narrow_gradient),
    "small": (400, _small),
    "batched": (600, _batched),
    "each": (350, _rows_by_matrices),
    "computed": (250, _computed),
}
