"""Features of a rule in C: sizes, row pointers, and a bounded sample of the columns.

The same quantities as those of featurizer `stats` with the same names (`row_square` is 1 + cv²), as
plain ratios: a tree depends only on the order of values, so no logarithm is needed. Each is a
quotient of integers below 2^63, so that C (`rule_features.h.in`) and numpy compute the same double
to the last bit. Every change here needs one there; the tests compare the two.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.sizes import MAX_DIM
from embeddb.featurizers.sizes import coordinates

_SIZES = ("rows", "cols", "nnz", "density", "aspect", "row_mean")
_ROWS = ("row_square", "row_max", "row_empty", "row_change", "slice_padding")
_SPLITS = ("imbalance_4", "imbalance_32")
_STRIPES = ("row_span", "run_length", "near_share", "fill_4x4", "fill_8x8")
#: Features computed together, in this order.
PARTS = {"sizes": _SIZES, "rows": (*_ROWS, *_SPLITS), "stripes": _STRIPES, "reuse": ("reuse_512",)}
NAMES: tuple[str, ...] = tuple(name for part in PARTS.values() for name in part)

#: Rows looked at together: eight slices of 32. Up to 512 such windows are all rows.
_WINDOW, _WINDOWS, _SLICE = 256, 512, 32
#: Beyond it a row counts as that long where lengths are squared, so that sums stay below 2^63.
_LONGEST = 1 << 22
#: Stripes of 8 rows, one for 2,048 non-zeros, of whose rows the first 32 columns are looked at.
_STRIPE, _PER_STRIPE, _FEWEST, _MOST, _PER_ROW = 8, 2048, 2, 64, 32
#: Runs of 512 non-zeros, one for 8,192.
_RUN, _PER_RUN, _MOST_RUNS = 512, 8192, 16


def features_of(pattern: Pattern) -> NDArray[np.float64]:
    """float64[d] by `NAMES`; all 0 without a row, a column or a non-zero."""
    m, n = pattern.shape
    if not (m and n and pattern.nnz):
        return np.zeros(len(NAMES))
    values = [
        *_of_sizes(m, n, pattern.nnz),
        *_of_rows(pattern),
        *_of_splits(pattern),
        *_of_stripes(pattern),
        _reuse(pattern),
    ]
    return np.array(values, dtype=np.float64)


def recorded_features(info: WorkloadInfo) -> NDArray[np.float64]:
    """float64[d] of a pattern without a stored structure, from the features of its runs; nan for
    unknown ones. Quantities that `features_of` samples were computed on more non-zeros there."""
    values = dict.fromkeys(NAMES, math.nan)
    m, n, nnz = info.m, info.n, info.nnz
    if 0 < m <= MAX_DIM and 0 < n <= MAX_DIM and nnz > 0:
        values |= dict(zip(_SIZES, _of_sizes(m, n, nnz), strict=True))
        size_features = coordinates(m, n, nnz, info.features)
        stats = {name.removeprefix("stats."): value for name, value in info.features.items()}
        cv = info.features.get("stats.row_cv", math.nan)
        cv = size_features.get("row_cv", cv) if math.isnan(cv) else cv
        values["row_square"] = 1 + math.expm1(cv) ** 2
        values["row_max"] = math.expm1(size_features.get("row_padding", math.nan))
        for name in ("row_empty", "row_change", *_STRIPES, "reuse_512"):
            values[name] = stats.get(_STATS.get(name, name), math.nan)
        for name, source in _LOGS.items():
            if source in stats:
                values[name] = math.exp(stats[source])
    return np.array(list(values.values()), dtype=np.float64)


#: `stats` has these under another name, and those as logarithms.
_STATS = {"row_change": "row_next_change"}
_LOGS = {
    "row_max": "row_max_over_mean",
    "slice_padding": "slice_padding",
    "imbalance_4": "imbalance_4",
    "imbalance_32": "imbalance_32",
    "run_length": "run_length",
}


def _ratio(over: float, under: float) -> float:
    return float(over) / float(under) if under else 0.0


def _of_sizes(m: int, n: int, nnz: int) -> tuple[float, ...]:
    mean = _ratio(nnz, m)
    return float(m), float(n), float(nnz), mean / float(n), _ratio(m, n), mean


def _of_rows(pattern: Pattern) -> tuple[float, ...]:
    """Row features on whole windows of rows, all of them up to 131,072 rows."""
    m, ptr = pattern.shape[0], pattern.indptr
    count = min(-(-m // _WINDOW), _WINDOWS)
    total = seen = square = longest = empty = change = padded = 0
    for at in range(count):
        window = at * (m // _WINDOW) // count if m > _WINDOW * _WINDOWS else at
        start, stop = window * _WINDOW, min((window + 1) * _WINDOW, m)
        more = np.diff(ptr[start : min(stop + 1, m) + 1])
        lengths = more[: stop - start]
        change += int(np.abs(np.diff(more)).sum())
        tops = np.maximum.reduceat(lengths, np.arange(0, lengths.size, _SLICE))
        padded += int(tops.sum()) * _SLICE - int(tops[-1]) * (-lengths.size % _SLICE)
        square += int((np.minimum(lengths, _LONGEST) ** 2).sum())
        longest = max(longest, int(tops.max()))
        empty += int(np.count_nonzero(lengths == 0))
        total += int(lengths.sum())
        seen += lengths.size
    return (
        float(square) * float(seen) / (float(total) * float(total)) if total else 0.0,
        _ratio(longest * seen, total),
        _ratio(empty, seen),
        _ratio(change, 2 * total),
        _ratio(padded, total),
    )


def _of_splits(pattern: Pattern) -> tuple[float, ...]:
    """The heaviest of 4 and of 32 parts of equally many rows, over the mean."""
    m, ratios = pattern.shape[0], []
    for parts in (4, 32):
        bounds = np.arange(parts + 1, dtype=np.int64) * m // parts
        heaviest = int(np.diff(pattern.indptr[bounds]).max())
        ratios.append(_ratio(float(heaviest) * float(min(parts, m)), pattern.nnz))
    return tuple(ratios)


def _of_stripes(pattern: Pattern) -> tuple[float, ...]:
    """Features on stripes at evenly spaced non-zeros, so that long rows have weight by their
    length."""
    m, ptr, nnz = pattern.shape[0], pattern.indptr, pattern.nnz
    count = min(max(nnz // _PER_STRIPE, _FEWEST), _MOST)
    starts, done = [], 0
    for at in range(count):
        holds = int(np.searchsorted(ptr, nnz // count * at, side="right")) - 1
        start = max(holds // _STRIPE * _STRIPE, done)
        if start < m:
            starts.append(start)
        done = min(start, m) + _STRIPE
    rows = (np.array(starts, dtype=np.int64)[:, None] + np.arange(_STRIPE)).ravel()
    rows = rows[rows < m]
    rows = rows[ptr[rows + 1] > ptr[rows]]
    counts = np.minimum(ptr[rows + 1] - ptr[rows], _PER_ROW)
    shift = ptr[rows] - np.cumsum(counts) + counts
    column = pattern.indices[np.repeat(shift, counts) + np.arange(counts.sum())].astype(np.int64)
    row = np.repeat(rows, counts)
    first = pattern.indices[ptr[rows]].astype(np.int64)
    span = int((pattern.indices[ptr[rows + 1] - 1] - first + 1).sum())
    gaps = np.diff(column)[np.diff(row) == 0]
    stripe, half, count = row // _STRIPE, row % _STRIPE // 4, column.size
    return (
        _ratio(span, rows.size) / float(pattern.shape[1]),
        _ratio(count, count - int(np.count_nonzero(gaps == 1))),
        _ratio(int(np.count_nonzero(gaps < 16)), gaps.size),
        _ratio(count, 16 * _distinct(stripe, (column >> 2) * 2 + half)),
        _ratio(count, 64 * _distinct(stripe, column >> 3)),
    )


def _distinct(group: NDArray[np.int64], key: NDArray[np.int64]) -> int:
    """Number of distinct pairs."""
    return int(np.unique((group << 32) | key).size)


def _reuse(pattern: Pattern) -> float:
    """Share of non-zeros whose column came before in the same run of 512."""
    nnz = pattern.nnz
    width = min(_RUN, nnz)
    count = min(max(nnz // _PER_RUN, 1), _MOST_RUNS)
    fresh = 0
    for at in range(count):
        start = (nnz - width) // count * at
        fresh += int(np.unique(pattern.indices[start : start + width]).size)
    return _ratio(count * width - fresh, count * width)
