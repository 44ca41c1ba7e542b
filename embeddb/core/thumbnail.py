"""Thumbnail of a matrix: a 32x32 map of the density of its nonzeros."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern

SIDE = 32
#: Byte steps per halving of the density: 255 is full, 1 is 2^-25.4 (and anything thinner).
_STEPS = 10.0
#: Largest number of columns for which a table column -> bin (one byte each) is built.
_TABLE = 1 << 24


def thumbnail(pattern: Pattern) -> bytes:
    """uint8[1024], row-major: density of each of 32x32 equal areas; 0 is empty, else log scale."""
    cells = density(pattern)
    out = np.zeros(cells.shape, dtype=np.uint8)
    full = cells > 0
    out[full] = np.clip(np.round(255 + _STEPS * np.log2(cells[full])), 1, 255)
    return out.tobytes()


def density(pattern: Pattern) -> NDArray[np.float64]:
    """float64[32,32]: share of each area that is nonzero, a nonzero being a unit square.

    Exact for every size: a row or column that straddles two areas counts for its part in each,
    and a matrix smaller than 32 is enlarged.
    """
    m, n = pattern.shape
    if not pattern.nnz:
        return np.zeros((SIDE, SIDE))
    row_edges, row_parts = _bins(m)
    col_edges, col_parts = _bins(n)
    cuts = pattern.indptr[row_edges].tolist()
    bins = col_edges.size - 1
    table = np.repeat(np.arange(bins, dtype=np.uint8), np.diff(col_edges)) if n <= _TABLE else None
    counts = np.zeros((len(cuts) - 1, bins))
    for row, (start, stop) in enumerate(pairwise(cuts)):
        cols = pattern.indices[start:stop]
        where = np.searchsorted(col_edges, cols, side="right") - 1 if table is None else table[cols]
        counts[row] = np.bincount(where, minlength=bins)
    area = (m / SIDE) * (n / SIDE)
    return np.minimum(row_parts @ counts @ col_parts.T / area, 1.0)


def _bins(size: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Edges int64[b+1] of ranges that lie in one area or are one row (column), and the fraction of
    each range in each area, float64[32,b]."""
    borders = np.arange(SIDE + 1, dtype=np.int64) * size
    edges = np.unique(np.concatenate([borders // SIDE, -(-borders // SIDE)]))
    low = np.maximum(borders[:-1, None], edges[None, :-1] * SIDE)
    high = np.minimum(borders[1:, None], edges[None, 1:] * SIDE)
    return edges, np.maximum(high - low, 0) / (np.diff(edges) * SIDE)
