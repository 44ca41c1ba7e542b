"""The coordinates of a pattern themselves, made coarser only where there are too many of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern

Ints = NDArray[np.int64]
#: Keys row * columns + column of cells, sorted, their counts, and the rows and columns of the grid.
_Grid = tuple[Ints, Ints, tuple[int, int]]

#: Nonzeros sorted at once: bounds the memory to some 50 MB beside the pattern.
_CHUNK = 1 << 20
#: A grid of so many cells is counted instead of sorted.
_COUNTED = 1 << 22


def occupied(pattern: Pattern, most: int) -> tuple[Ints, Ints, int]:
    """Cells int64[c,2] (row, column) that hold a nonzero, sorted, how many each holds, int64[c],
    and the rows and columns s of a cell: the smallest power of two with which there are at most
    `most` cells. s is 1, and a cell is a nonzero, wherever the pattern has no more than that.

    Time O(nnz log nnz), O(nnz) for what is scattered; memory some 50 MB and 16 bytes for each cell
    of the first size that is tried.
    """
    m, n = pattern.shape
    # A cell of s by s holds at most s * s: what has fewer cells than nnz / s^2 need not be tried.
    side = _power(math.sqrt(pattern.nnz / max(most, 1)))
    probe = side
    while _cells(m, probe) * _cells(n, probe) > _COUNTED:
        probe *= 2
    found = _first(pattern, probe)
    if probe > side and len(found[0]) <= most:
        # Smaller cells may do: these are sorted, which only what is scattered makes slow.
        found = _first(pattern, side)
    else:
        side = probe
    while len(found[0]) > most:
        found = _halved(*found)
        side *= 2
    keys, counts, (_, width) = found
    return np.stack(np.divmod(keys, width), axis=1), counts, side


def _power(least: float) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))


def _cells(length: int, side: int) -> int:
    return max(-(-length // side), 1)


def _first(pattern: Pattern, side: int) -> _Grid:
    """The cells of one size."""
    shape = (_cells(pattern.shape[0], side), _cells(pattern.shape[1], side))
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for start in range(0, pattern.nnz, _CHUNK):
        stop = min(start + _CHUNK, pattern.nnz)
        first = int(np.searchsorted(pattern.indptr, start, side="right")) - 1
        last = int(np.searchsorted(pattern.indptr, stop, side="left"))
        held = np.diff(pattern.indptr[first : last + 1].clip(start, stop))
        cells = np.repeat(np.arange(first, last, dtype=np.int64) // side * shape[1], held)
        cells += pattern.indices[start:stop] // side
        found = _merged(cells, np.ones(len(cells), dtype=np.int64), shape)
        if start:
            found = _merged(
                np.concatenate((keys, found[0])), np.concatenate((counts, found[1])), shape
            )
        keys, counts = found
    return keys, counts, shape


def _halved(keys: Ints, counts: Ints, shape: tuple[int, int]) -> _Grid:
    """The same in cells of twice the side."""
    row, column = np.divmod(keys, shape[1])
    coarse = (_cells(shape[0], 2), _cells(shape[1], 2))
    return *_merged(row // 2 * coarse[1] + column // 2, counts, coarse), coarse


def _merged(keys: Ints, counts: Ints, shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Each key once, sorted, and the sum of its counts."""
    if shape[0] * shape[1] <= _COUNTED:
        # Sums of floats are exact up to 2^53.
        sums = np.bincount(keys, weights=counts, minlength=1).astype(np.int64)
        keys = np.flatnonzero(sums)
        return keys, sums[keys]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts[order], first)
