"""Reduction of a pattern to a bounded number of sites, the input of a sparse network.

A matrix of 10^7 nonzeros is too large to convolve for one query, so a network reads a recorded
reduction of it: `grid` is the whole matrix coarsely; `sites` is the papers' input, the coordinates
of the nonzeros, coarsened only where there are too many. Both are functions of the pattern alone,
in whole numbers up to the final logarithms.

Channels of a site, all at least log(2) and so also a mark of presence: log1p of the nonzeros in its
cell, log1p of the rows and log1p of the columns that the cell spans. The last two are the scale:
without them the cells of a coarse and of a fine grid are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern

Kind = Literal["grid", "sites"]

#: Features per site.
CHANNELS = 3
#: Largest grid side: its counters are then 32 MB.
_MAX_SIZE = 2048
#: Fields of a card that earlier kinds used: written and read, and otherwise ignored.
_EARLIER = {"windows": 8, "window": 64}
#: Nonzeros processed at once: bounds the memory to about 50 MB beside the counters.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Reduction:
    """Parameters of the reduction of patterns, recorded in the card of every network trained with
    it.

    `size`: most cells of the grid in each direction, 1..2048; for `sites`, at most size * size
    cells are occupied, the smallest possible ones.

    Raises: InputError for an unknown kind or a number out of bounds.
    """

    kind: Kind = "grid"
    size: int = 128

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise InputError(f"kind {self.kind!r} is none of {kinds}", where="reduction")
        if type(self.size) is not int or not 1 <= self.size <= _MAX_SIZE:
            raise InputError(f"a grid has 1 to {_MAX_SIZE} cells a side", where="reduction")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, by field."""
        return {"kind": self.kind, "size": self.size, **_EARLIER}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Reduction:
        """The inverse of `to_json`. Raises: InputError unless every field is present and legal."""
        names = ("kind", "size", *_EARLIER)
        if not isinstance(read, Mapping) or set(read) != set(names):
            raise InputError(
                f"a reduction has exactly the fields {', '.join(names)}", where="reduction"
            )
        return cls(read["kind"], read["size"])


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """One pattern as input of a network; an empty one has no sites.

    Shapes: `coords` int64[n,2] of (row, column), unique, sorted lexicographically; `features`
    float32[n,channels]; `shape` float32[3], log1p of rows, columns and nonzeros.
    """

    coords: NDArray[np.int64]
    features: NDArray[np.float32]
    shape: NDArray[np.float32]


def reduce(pattern: Pattern, reduction: Reduction, channels: int = CHANNELS) -> Input:
    """The sites of a pattern under a reduction, with so many features per site: all of them, or for
    one channel only a 1, the binary sites of the data-selection paper (Section 3.1).

    Time O(nnz) for the grid, and memory beyond the pattern `size`^2 counters and a fixed block of
    nonzeros. For sites see `occupied`. Raises: InputError for another number of channels.
    """
    if channels not in (1, CHANNELS):
        raise InputError(f"sites have 1 or {CHANNELS} features, not {channels}", where="network")
    if reduction.kind == "grid":
        # Every cell spans the same integer number of rows and columns (the last ones may extend
        # beyond the matrix), so a uniform band gives uniform counts; cells of m / size rows would
        # alternate between two sizes.
        height, width = (max(-(-length // reduction.size), 1) for length in pattern.shape)
        coords, counts = _sites(_first(pattern, height, width))
    else:
        coords, counts, height = occupied(pattern, reduction.size**2)
        width = height
    features = np.ones((counts.size, channels), dtype=np.float32)
    if channels == CHANNELS:
        features[:, 0] = np.log1p(counts.astype(np.float64))
        features[:, 1:] = np.log1p(np.array([height, width], np.float64))
    sizes = np.array([*pattern.shape, pattern.nnz], np.float64)
    return Input(coords, features, np.log1p(sizes).astype(np.float32))


# -- Cells of a pattern with a nonzero ------------------------------------------------------------

Ints = NDArray[np.int64]
#: Keys row * columns + column of cells, sorted, their counts, and the rows and columns of the grid.
_Grid = tuple[Ints, Ints, tuple[int, int]]

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
    side = 1 << max(0, math.ceil(math.log2(max(math.sqrt(pattern.nnz / max(most, 1)), 1.0))))
    probe = side
    while _cells(m, probe) * _cells(n, probe) > _COUNTED:
        probe *= 2
    grid = _first(pattern, probe, probe)
    if probe > side and len(grid[0]) <= most:
        # Smaller cells may suffice: these are sorted, which is slow only for scattered patterns.
        grid = _first(pattern, side, side)
    else:
        side = probe
    while len(grid[0]) > most:
        grid = _halved(*grid)
        side *= 2
    return *_sites(grid), side


def _sites(grid: _Grid) -> tuple[Ints, Ints]:
    """Row and column of the cells, int64[c,2], and their counts."""
    keys, counts, (_, across) = grid
    return np.stack(np.divmod(keys, across), axis=1), counts


def _cells(length: int, side: int) -> int:
    return max(-(-length // side), 1)


def _first(pattern: Pattern, height: int, width: int) -> _Grid:
    """Cells of `height` rows and `width` columns each."""
    m, n = pattern.shape
    shape = (_cells(m, height), _cells(n, width))
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    sums = np.zeros(math.prod(shape) if math.prod(shape) <= _COUNTED else 0, dtype=np.int64)
    for start in range(0, pattern.nnz, _CHUNK):
        stop = min(start + _CHUNK, pattern.nnz)
        first = (int(np.searchsorted(pattern.indptr, start, side="right")) - 1) // height
        last = _cells(int(np.searchsorted(pattern.indptr, stop, side="left")), height)
        # Cells of one row are consecutive nonzeros: only columns need a division.
        cuts = pattern.indptr[np.minimum(np.arange(first, last + 1) * height, m)].clip(start, stop)
        cells = np.repeat(np.arange(first, last) * shape[1], np.diff(cuts))
        cells += pattern.indices[start:stop] // width
        if sums.size:
            sums += np.bincount(cells, minlength=sums.size)
        else:
            ones = np.ones(len(cells), dtype=np.int64)
            keys, counts = _merged(np.append(keys, cells), np.append(counts, ones), shape)
    if sums.size:
        keys = np.flatnonzero(sums)
        counts = sums[keys]
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
