"""Coordinates of a pattern itself, coarsened only where there are too many of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern

Ints = NDArray[np.int64]
#: Keys row * columns + column of cells, sorted, their counts, and the rows and columns of the grid.
_Grid = tuple[Ints, Ints, tuple[int, int]]

#: Number of nonzeros sorted at once: bounds the memory to some 50 MB beside the pattern.
_CHUNK = 1 << 20
#: Largest grid, in cells, that is counted instead of sorted.
_COUNTED = 1 << 22


def occupied(pattern: Pattern, most: int) -> tuple[Ints, Ints, int]:
    """Cells int64[c,2] (row, column) with a nonzero, sorted, their numbers of nonzeros, int64[c],
    and the side s of a cell: the smallest power of two for which there are at most `most` cells. s
    is 1, and a cell is a nonzero, if the pattern has no more than that.

    Time O(nnz log nnz), O(nnz) for scattered patterns; memory some 50 MB and 16 bytes for each cell
    of the first size tried.
    """
    m, n = pattern.shape
    # A cell of s by s holds at most s * s nonzeros, so sizes with fewer cells than nnz / s^2 are
    # skipped.
    side = _power(math.sqrt(pattern.nnz / max(most, 1)))
    probe = side
    while _cells(m, probe) * _cells(n, probe) > _COUNTED:
        probe *= 2
    grid = _first(pattern, probe)
    if probe > side and len(grid[0]) <= most:
        # Smaller cells may suffice: these are sorted, which is slow only for scattered patterns.
        grid = _first(pattern, side)
    else:
        side = probe
    while len(grid[0]) > most:
        grid = _halved(*grid)
        side *= 2
    keys, counts, (_, width) = grid
    return np.stack(np.divmod(keys, width), axis=1), counts, side


def _power(least: float) -> int:
    """Smallest power of two that is at least `least`."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))


def _cells(length: int, side: int) -> int:
    return max(-(-length // side), 1)


def _first(pattern: Pattern, side: int) -> _Grid:
    """Cells of one size."""
    shape = (_cells(pattern.shape[0], side), _cells(pattern.shape[1], side))
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for start in range(0, pattern.nnz, _CHUNK):
        stop = min(start + _CHUNK, pattern.nnz)
        first = int(np.searchsorted(pattern.indptr, start, side="right")) - 1
        last = int(np.searchsorted(pattern.indptr, stop, side="left"))
        counts_by_row = np.diff(pattern.indptr[first : last + 1].clip(start, stop))
        cells = np.repeat(np.arange(first, last, dtype=np.int64) // side * shape[1], counts_by_row)
        cells += pattern.indices[start:stop] // side
        merged = _merged(cells, np.ones(len(cells), dtype=np.int64), shape)
        if start:
            merged = _merged(
                np.concatenate((keys, merged[0])), np.concatenate((counts, merged[1])), shape
            )
        keys, counts = merged
    return keys, counts, shape


def _halved(keys: Ints, counts: Ints, shape: tuple[int, int]) -> _Grid:
    """The same grid with cells of twice the side."""
    row, column = np.divmod(keys, shape[1])
    coarse = (_cells(shape[0], 2), _cells(shape[1], 2))
    return *_merged(row // 2 * coarse[1] + column // 2, counts, coarse), coarse


def _merged(keys: Ints, counts: Ints, shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Unique keys, sorted, and the sums of their counts."""
    if shape[0] * shape[1] <= _COUNTED:
        # Sums of floats are exact up to 2^53.
        sums = np.bincount(keys, weights=counts, minlength=1).astype(np.int64)
        keys = np.flatnonzero(sums)
        return keys, sums[keys]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts[order], first)
