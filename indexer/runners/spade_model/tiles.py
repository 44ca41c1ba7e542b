"""Tiles of a pattern: rows in another order, and rows cut at the borders of column panels.

Importing this imports numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern


@dataclass(frozen=True, slots=True)
class Tiling:
    """A pattern cut into tiles of row panels x column panels; tiles without entries are left out.

    A segment is the part of one row in one tile. Shapes: s segments, t tiles, p row panels. `row`
    int32[s] the row's place in the order of rows, `start` int64[s] its first entry in the pattern's
    indices, `length` int32[s]; segments are ordered by row panel, column panel, row. `tiles`
    int64[t+1] cuts the segments into tiles, `panels` int64[p+1] the tiles into row panels.
    `columnwise` int64[t] are the tiles ordered by column panel, then row panel, and `phases`
    int64[c+1] cuts these into column panels; panels without entries have no place in either.
    """

    row: NDArray[np.int32]
    start: NDArray[np.int64]
    length: NDArray[np.int32]
    tiles: NDArray[np.int64]
    panels: NDArray[np.int64]
    columnwise: NDArray[np.int64]
    phases: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return sum(int(getattr(self, name).nbytes) for name in self.__slots__)


def natural(pattern: Pattern) -> NDArray[np.int64]:
    """int64[m]: the rows in their own order."""
    return np.arange(pattern.shape[0], dtype=np.int64)


def similar_first(pattern: Pattern) -> NDArray[np.int64]:
    """int64[m]: an order of the rows in which rows that share columns are close to each other.
    Breadth first over the bipartite graph of rows and columns, from rows of least degree: Cuthill
    and McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969), for any shape. Columns
    keep their numbers, because the rows of B belong to the caller. O(nnz)."""
    # Lists of rows that were filled in order of degree need no sorting later.
    by_degree = np.argsort(np.diff(pattern.indptr), kind="stable")
    order: NDArray[np.int64] = _breadth_first(
        pattern.indptr, pattern.indices, by_degree, pattern.shape[1]
    )
    return order


def tiling_of(
    pattern: Pattern, order: NDArray[np.int64], row_panel: int, column_panel: int
) -> Tiling:
    """Tiles of `row_panel` rows of the order int64[m] x `column_panel` columns. O(nnz + m + n)."""
    m, n = pattern.shape
    column_panel = max(1, min(column_panel, n))
    segments = _segments(pattern.indptr, pattern.indices, order, column_panel)
    # Two stable passes, first by column panel and then by row panel, sort by both.
    column = segments[3]
    at = _stable(column, -(-n // column_panel))
    panel = segments[0] // row_panel
    at = at[_stable(panel[at], -(-m // row_panel))]
    row, start, length, column = (part[at] for part in segments)
    panel = row // row_panel
    tiles = _cuts((np.diff(panel) != 0) | (np.diff(column) != 0), row.size)
    first = tiles[:-1]
    columnwise = _stable(column[first], -(-n // column_panel))
    return Tiling(
        row,
        start,
        length,
        tiles,
        _cuts(np.diff(panel[first]) != 0, first.size),
        columnwise,
        _cuts(np.diff(column[first][columnwise]) != 0, first.size),
    )


def _cuts(changes: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Indices where a sorted array of that size begins a new group, and its end."""
    if not size:
        return np.zeros(1, dtype=np.int64)
    return np.concatenate(([0], np.flatnonzero(changes) + 1, [size])).astype(np.int64)


def _breadth_first_loop(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], by_degree: NDArray[np.int64], n: int
) -> NDArray[np.int64]:
    m = indptr.size - 1
    heads = np.zeros(n + 1, dtype=np.int64)
    for p in range(indices.size):
        heads[indices[p] + 1] += 1
    for j in range(n):
        heads[j + 1] += heads[j]
    fill = heads[:n].copy()
    members = np.empty(indices.size, dtype=np.int32)
    for i in by_degree:
        for p in range(indptr[i], indptr[i + 1]):
            members[fill[indices[p]]] = i
            fill[indices[p]] += 1
    order = np.empty(m, dtype=np.int64)
    row_seen = np.zeros(m, dtype=np.bool_)
    column_seen = np.zeros(n, dtype=np.bool_)
    head, tail = 0, 0
    for seed in by_degree:
        if row_seen[seed]:
            continue
        row_seen[seed] = True
        order[tail] = seed
        tail += 1
        while head < tail:
            i = order[head]
            head += 1
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                if column_seen[j]:
                    continue
                column_seen[j] = True
                for q in range(heads[j], heads[j + 1]):
                    other = members[q]
                    if not row_seen[other]:
                        row_seen[other] = True
                        order[tail] = other
                        tail += 1
    return order


def _segments_loop(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    order: NDArray[np.int64],
    column_panel: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    count = 0
    for i in range(order.size):
        before = -1
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p] // column_panel
            count += j != before
            before = j
    row = np.empty(count, dtype=np.int32)
    start = np.empty(count, dtype=np.int64)
    length = np.empty(count, dtype=np.int32)
    column = np.empty(count, dtype=np.int32)
    s = -1
    for at in range(order.size):
        i = order[at]
        before = -1
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p] // column_panel
            if j != before:
                s += 1
                row[s], start[s], length[s], column[s] = at, p, 0, j
                before = j
            length[s] += 1
    return row, start, length, column


def _stable_loop(keys: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    heads = np.zeros(count + 1, dtype=np.int64)
    for k in keys:
        heads[k + 1] += 1
    for k in range(count):
        heads[k + 1] += heads[k]
    order = np.empty(keys.size, dtype=np.int64)
    for at in range(keys.size):
        k = keys[at]
        order[heads[k]] = at
        heads[k] += 1
    return order


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(function)


_breadth_first = _compiled(_breadth_first_loop)
_segments = _compiled(_segments_loop)
_stable = _compiled(_stable_loop)
