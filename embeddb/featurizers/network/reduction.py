"""Reduction of a pattern to a bounded number of sites, the input of a sparse network.

A matrix of 10^7 nonzeros is too large to convolve for one query, so a network reads a recorded
reduction of it. `grid` is the whole matrix coarsely, `windows` are parts of it at full resolution,
and `both` has the two as separate entries of one batch, whose embeddings are averaged. `sites` is
the papers' input, the coordinates of the nonzeros, coarsened only where there are too many. All are
functions of the pattern alone, in whole numbers up to the final logarithms.

Channels of a site, all at least log(2) and so also a mark of presence: log1p of the nonzeros in its
cell, log1p of the rows and log1p of the columns that the cell spans. The last two are the scale:
without them a cell of a window equals a cell of a coarse grid with one nonzero.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern

Kind = Literal["grid", "windows", "both", "sites"]

#: Features per site.
CHANNELS = 3
#: Largest grid side: its counters are then 32 MB.
_MAX_SIZE = 2048
#: Largest total number of sites in the windows of one pattern.
_MAX_WINDOW_SITES = 1 << 22
#: Largest number of windows of one pattern: each costs a hash and an entry of the batch.
_MAX_WINDOWS = 1 << 12
#: Nonzeros processed at once: bounds the memory to about 50 MB beside the counters.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Reduction:
    """Parameters of the reduction of patterns, recorded in the card of every network trained with
    it.

    `size`: most cells of the grid in each direction, 1..2048; for `sites`, at most size * size
    cells are occupied, the smallest possible ones. `windows`: most windows of one pattern, 1..4096.
    `window`: rows and columns of a window, cells that all windows have together at most 2^22. A
    kind ignores numbers that it does not use.

    Raises: InputError for an unknown kind or a number out of bounds.
    """

    kind: Kind = "grid"
    size: int = 128
    windows: int = 8
    window: int = 64

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise InputError(f"kind {self.kind!r} is none of {kinds}", where="reduction")
        numbers = (self.size, self.windows, self.window)
        if any(type(value) is not int or value < 1 for value in numbers):
            raise InputError("sizes are whole numbers from 1", where="reduction")
        if self.size > _MAX_SIZE:
            raise InputError(f"a grid has at most {_MAX_SIZE} cells a side", where="reduction")
        if self.windows > _MAX_WINDOWS:
            raise InputError(f"a pattern has at most {_MAX_WINDOWS} windows", where="reduction")
        if self.windows * self.window**2 > _MAX_WINDOW_SITES:
            raise InputError(
                f"{self.windows} windows of {self.window} x {self.window} have more than "
                f"{_MAX_WINDOW_SITES} cells",
                where="reduction",
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, by field."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Reduction:
        """The inverse of `to_json`. Raises: InputError unless every field is present and legal."""
        if not isinstance(read, Mapping) or set(read) != set(cls.__slots__):
            names = ", ".join(cls.__slots__)
            raise InputError(f"a reduction has exactly the fields {names}", where="reduction")
        return cls(**read)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """One pattern as input of a network.

    Shapes: `coords` int64[n,3] of (entry, row, column), unique, sorted lexicographically, rows and
    columns counted from the entry's own corner; `features` float32[n,CHANNELS]; `shape` float32[3],
    log1p of rows, columns and nonzeros of the whole matrix. `entries` >= 1 is the number of batch
    entries of this pattern; an empty pattern is one entry without sites.
    """

    coords: NDArray[np.int64]
    features: NDArray[np.float32]
    entries: int
    shape: NDArray[np.float32]


def reduce(pattern: Pattern, reduction: Reduction) -> Input:
    """The sites of a pattern under a reduction.

    Time O(nnz) for the grid; O(windows * window^2) for windows, independent of the pattern. Memory
    beyond the pattern: `size`^2 counters and a fixed block of nonzeros. For sites see `occupied`.
    """
    parts: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
    if reduction.kind in ("grid", "both"):
        parts.append(_grid(pattern, reduction.size))
    if reduction.kind == "sites":
        cells, counts, side = occupied(pattern, reduction.size**2)
        parts.append((cells, _features(counts, side, side)))
    if reduction.kind in ("windows", "both"):
        parts += _windows(pattern, reduction.windows, reduction.window)
    coords = [np.insert(sites, 0, entry, axis=1) for entry, (sites, _) in enumerate(parts)]
    m, n = pattern.shape
    return Input(
        coords=np.concatenate([np.empty((0, 3), np.int64), *coords]),
        features=np.concatenate([np.empty((0, CHANNELS), np.float32), *(f for _, f in parts)]),
        entries=max(len(parts), 1),
        shape=np.log1p(np.array([m, n, pattern.nnz], np.float64)).astype(np.float32),
    )


def seen_through(item: Input, channels: int) -> Input:
    """The input with so many features per site: all of them, or for one channel only a 1, the
    binary sites of the data-selection paper (Section 3.1). Raises: InputError for any other
    number."""
    if channels == CHANNELS:
        return item
    if channels != 1:
        raise InputError(f"sites have 1 or {CHANNELS} features, not {channels}", where="network")
    return replace(item, features=np.ones((len(item.coords), 1), dtype=np.float32))


def _grid(pattern: Pattern, size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Occupied cells int64[n,2] and their features, of at most size x size equal cells.

    Every cell spans the same integer number of rows and columns (the last ones may extend beyond
    the matrix), so a uniform band gives uniform counts; cells of m / size rows would alternate
    between two sizes.
    """
    m, n = pattern.shape
    height, width = max(-(-m // size), 1), max(-(-n // size), 1)
    down, across = -(-m // height), -(-n // width)
    # Cells of one row are consecutive nonzeros: only columns need a division.
    cuts = pattern.indptr[np.minimum(np.arange(down + 1, dtype=np.int64) * height, m)]
    first = np.arange(down, dtype=np.int64) * across
    counts = np.zeros(down * across, dtype=np.int64)
    for start in range(0, pattern.nnz, _CHUNK):
        stop = min(start + _CHUNK, pattern.nnz)
        inside = cuts.clip(start, stop)
        cells = np.repeat(first, inside[1:] - inside[:-1])
        cells += pattern.indices[start:stop] // width
        counts += np.bincount(cells, minlength=counts.size)
    full = np.flatnonzero(counts)
    sites = np.stack(np.divmod(full, max(across, 1)), axis=1)
    return sites, _features(counts[full], height, width)


def _features(counts: NDArray[np.int64], height: int, width: int) -> NDArray[np.float32]:
    out = np.empty((counts.size, CHANNELS), dtype=np.float32)
    out[:, 0] = np.log1p(counts.astype(np.float64))
    out[:, 1:] = np.log1p(np.array([height, width], np.float64))
    return out


def _windows(
    pattern: Pattern, count: int, side: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Sites int64[n,2] and features of up to `count` distinct windows, each with a nonzero."""
    if not pattern.nnz:
        return []
    corners = _corners(pattern, count, side)
    m, n = pattern.shape
    height, width = min(side, m), min(side, n)
    rows = (corners[:, :1] + np.arange(height)).ravel()
    left = np.repeat(corners[:, 1], height)
    start = _first_at_least(pattern, rows, left)
    lengths = _first_at_least(pattern, rows, left + width) - start
    shift = start - np.cumsum(lengths) + lengths
    columns = pattern.indices[np.repeat(shift, lengths) + np.arange(lengths.sum())]
    inner = np.tile(np.arange(height, dtype=np.int64), len(corners))
    sites = np.stack([np.repeat(inner, lengths), columns - np.repeat(left, lengths)], axis=1)
    ends = np.cumsum(lengths.reshape(len(corners), height).sum(axis=1))
    features = _features(np.ones(len(sites), np.int64), 1, 1)
    return list(zip(np.split(sites, ends[:-1]), np.split(features, ends[:-1]), strict=True))


def _corners(pattern: Pattern, count: int, side: int) -> NDArray[np.int64]:
    """Top left corners int64[w,2], distinct and sorted, of windows centred on sampled nonzeros.

    One nonzero is drawn from each of `count` equal parts of the nonzeros, so dense regions get more
    windows and no window is empty. Drawn by hashing the pattern's id, because the streams of
    numpy's generators may change between versions.
    """
    m, n = pattern.shape
    count = min(count, pattern.nnz)
    edges = [part * pattern.nnz // count for part in range(count)] + [pattern.nnz]
    drawn = np.array(
        [
            low + _hashed(f"{pattern.id}:{part}") % (high - low)
            for part, (low, high) in enumerate(pairwise(edges))
        ],
        dtype=np.int64,
    )
    rows = np.searchsorted(pattern.indptr, drawn, side="right") - 1
    centres = np.stack([rows, pattern.indices[drawn].astype(np.int64)], axis=1)
    highest = np.maximum(np.array([m, n], dtype=np.int64) - side, 0)
    corners: NDArray[np.int64] = np.clip(centres - side // 2, 0, highest)
    return np.unique(corners, axis=0)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _first_at_least(
    pattern: Pattern, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[r]: position in `indices` of the first nonzero of each row at or past its column.

    Bisects all rows at once, so a long row costs no more than a short one.
    """
    low, high = pattern.indptr[rows], pattern.indptr[rows + 1]
    while bool((low < high).any()):
        middle = (low + high) >> 1
        # A finished row is unchanged; its middle may be past the end.
        open_ = low < high
        below = open_ & (pattern.indices[np.where(open_, middle, 0)] < columns)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


# -- Coordinates of a pattern itself, coarsened only where there are too many of them -------------

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
