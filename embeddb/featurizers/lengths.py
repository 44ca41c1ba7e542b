"""How long the rows and the columns of a pattern are: which lengths there are, and how often.

A file of a few bytes may speak of many millions of rows, so nothing of their number is made beside
the pattern's own pointers: rows are looked at some at a time, and most of them share few lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern

__all__ = ["ROWS", "Lengths", "column_lengths", "row_blocks", "row_lengths"]

#: Rows looked at together; whole slices of 32 of them.
ROWS = 1 << 20
#: Lengths below this have a counter each.
_COUNTED = 1 << 12
#: Columns that may have a counter each, whatever the nonzeros.
_COLUMNS = 1 << 22


class Lengths(NamedTuple):
    """`total` lengths, all told.

    Shapes: `values` int64[k], the distinct ones, ascending, 0 always first; `times` int64[k].
    """

    total: int
    values: NDArray[np.int64]
    times: NDArray[np.int64]


def row_blocks(pattern: Pattern) -> Iterator[NDArray[np.int64]]:
    """Nonzeros per row, int64[<=ROWS] at a time."""
    for first in range(0, pattern.shape[0], ROWS):
        yield np.diff(pattern.indptr[first : first + ROWS + 1])


def row_lengths(pattern: Pattern) -> Lengths:
    """Nonzeros per row."""
    return _counted(row_blocks(pattern), pattern.shape[0])


def column_lengths(pattern: Pattern) -> Lengths:
    """Nonzeros per column."""
    n, nnz = pattern.shape[1], pattern.nnz
    if n <= nnz or n <= min(4 * nnz + 1024, _COLUMNS):
        return _counted([np.bincount(pattern.indices, minlength=n)], n)
    # A hypersparse pattern: n counters would cost far more than the nonzeros themselves.
    ordered = np.sort(pattern.indices)
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return _counted([np.diff(starts, append=ordered.size)], n)


def _counted(blocks: Iterable[NDArray[np.int64]], total: int) -> Lengths:
    """Of `total` lengths; those in no block are zero."""
    few = np.zeros(_COUNTED + 1, dtype=np.int64)
    longer = [np.empty(0, dtype=np.int64)]
    for block in blocks:
        counts = np.bincount(np.minimum(block, _COUNTED))
        few[: counts.size] += counts
        if counts.size > _COUNTED:
            longer.append(block[block >= _COUNTED])
    few[0] += total - int(few.sum())
    values = np.flatnonzero(few[:_COUNTED])
    values = values if few[0] else np.insert(values, 0, 0)
    long_values, long_times = np.unique(np.concatenate(longer), return_counts=True)
    return Lengths(
        total,
        np.concatenate([values, long_values]),
        np.concatenate([few[values], long_times]),
    )
