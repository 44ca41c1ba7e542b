"""Families of random nests whose accesses or work depend on data, for
`indexer.training.nests.synthetic`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from indexer.training.nests.draws import (
    ArrayRef,
    Draft,
    chance,
    expression,
    order,
    pick,
    size,
    split,
)


def mask(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """A statement under a condition: a mask of 0 and 1, or a comparison."""
    rank = int(rng.integers(1, 4))
    sizes = split(rng, points, rank)
    outer = rank if chance(rng, 0.7) else int(rng.integers(rank))
    at = draft.loops(sizes, order(rng, outer, rank))
    result = draft.array(*sizes[:outer] or [1], fill="zero")[at[:outer] or 0]
    terms = [draft.array(*sizes)[at] for _ in range(rng.integers(1, 4))]
    depth = rank if chance(rng, 0.7) else 1
    if chance(rng, 0.5):
        where = draft.array(*sizes[:depth], fill=f"below:{pick(rng, (2, 2, 3, 8))}")[at[:depth]]
    else:
        where = draft.array(*sizes[:depth])[at[:depth]] < round(float(rng.uniform(0.05, 0.95)), 2)
    draft.let(result, "=" if outer == rank else "+=", expression(rng, terms), where)


def gather(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Elements or rows at indices in an array: its own, a permutation, or any."""
    n, *row = split(rng, points, int(rng.integers(1, 3)))
    i, *at = draft.loops([n, *row])
    places, source = _places(draft, rng, n)
    value = draft.array(source, *row)[[places[i], *at]]
    if chance(rng, 0.4):
        value = value * draft.array(n, *row)[[i, *at]]
    draft.let(draft.array(n, *row, fill="zero")[[i, *at]], "=", value)


def scatter(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Writes or additions at indices in an array."""
    n, *row = split(rng, points, int(rng.integers(1, 3)))
    i, *at = draft.loops([n, *row])
    places, target = _places(draft, rng, n)
    value = draft.array(n, *row)[[i, *at]]
    draft.let(draft.array(target, *row, fill="zero")[[places[i], *at]], "+=", value * 0.5)


def _places(draft: Draft, rng: np.random.Generator, n: int) -> tuple[ArrayRef, int]:
    """`n` indices, and the number of elements that they may name."""
    kind = pick(rng, ("range", "permutation", "permutation", "below"))
    if kind != "below":
        return draft.array(n, fill=kind), n
    among = size(rng, max(n / 16, 2), 2 * n)
    return draft.array(n, fill=f"below:{among}"), among


def histogram(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Counts or sums of weights by bin, over one dimension or two."""
    sizes = split(rng, points, int(rng.integers(1, 3)))
    at = draft.loops(sizes)
    bins = size(rng, 8, min(points, 1 << 18))
    bin_of = draft.array(*sizes, fill=f"below:{bins}")[at]
    count = draft.array(bins, fill="zero")[bin_of]
    if chance(rng, 0.5):
        draft.let(count, "+=", draft.array(*sizes)[at])
    else:
        draft.let(count, pick(rng, ("max=", "+=")), draft.array(sizes[0])[at[0]] + 1.0)


class _Sparse(NamedTuple):
    """A matrix in compressed rows: where each begins, and the column of every entry."""

    rows: int
    columns: int
    entries: int
    begins: ArrayRef
    column: ArrayRef


def _sparse(draft: Draft, rng: np.random.Generator, entries: int) -> _Sparse:
    rows = size(rng, max(entries / 200, 4), max(entries / 3, 8))
    columns = rows if chance(rng, 0.6) else size(rng, max(rows / 8, 4), rows * 8)
    uneven = pick(rng, ("0", "1", "1", "2", "4", "10"))
    begins = draft.array(rows + 1, fill=f"offsets:{entries}:{uneven}")
    return _Sparse(rows, columns, entries, begins, draft.array(entries, fill=f"below:{columns}"))


def spmv(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """y = A x with a sparse A; or the largest product of a row, or the row's sum."""
    a = _sparse(draft, rng, points)
    i = draft.loop(0, a.rows)
    k = draft.loop(a.begins[i], a.begins[i + 1])
    value = draft.array(a.entries)[k]
    if chance(rng, 0.8):
        value = value * draft.array(a.columns)[a.column[k]]
    draft.let(draft.array(a.rows, fill="zero")[i], pick(rng, ("+=", "+=", "max=")), value)


def spmm(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """C = A B with a sparse A and a dense B; B's columns innermost, or outside the entries."""
    width = size(rng, 4, 256)
    a = _sparse(draft, rng, max(points // width, 64))
    i = draft.loop(0, a.rows)
    if chance(rng, 0.75):
        k = draft.loop(a.begins[i], a.begins[i + 1])
        j = draft.loop(0, width)
    else:
        j = draft.loop(0, width)
        k = draft.loop(a.begins[i], a.begins[i + 1])
    value = draft.array(a.entries)[k] * draft.array(a.columns, width)[a.column[k], j]
    draft.let(draft.array(a.rows, width, fill="zero")[i, j], "+=", value)


def sddmm(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """At the entries of a sparse A, the product of two dense matrices."""
    width = size(rng, 4, 256)
    a = _sparse(draft, rng, max(points // width, 64))
    i = draft.loop(0, a.rows)
    k = draft.loop(a.begins[i], a.begins[i + 1])
    j = draft.loop(0, width)
    value = draft.array(a.rows, width)[i, j] * draft.array(a.columns, width)[a.column[k], j]
    if chance(rng, 0.4):
        value = value * draft.array(a.entries)[k]
    draft.let(draft.array(a.entries, fill="zero")[k], "+=", value)
