"""Statistics of a pattern that influence the choice between SpMM and SpMV schedules.

Size and shape, unevenness of rows and columns, position of the nonzeros, fill of small dense blocks
(BCSR), imbalance of parts of equally many rows (static scheduling), and reuse distance of columns
(cache reuse of the dense operand). numpy only.

Cost and memory: everything that needs a sort works on at most about `_SAMPLE` nonzeros, taken in
`_WINDOWS` evenly spaced windows of whole 24-row stripes, so a pattern up to that size is measured
exactly and a larger one by a fixed, deterministic sample. The rest is passes over the rows, some of
them at a time, and one count of the columns: memory grows with the nonzeros, not with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.featurizers.base import Exported, Travelling

#: Number of rows processed together, a multiple of the slices of 32.
ROWS = 1 << 20
#: Lengths below this are counted in an array.
_COUNTED = 1 << 12
#: Number of columns that are counted in an array for any number of nonzeros.
_COLUMNS = 1 << 22


class Lengths(NamedTuple):
    """Distribution of `total` lengths.

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
    # A hypersparse pattern: n counters would need far more memory than the nonzeros.
    ordered = np.sort(pattern.indices)
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return _counted([np.diff(starts, append=ordered.size)], n)


def _counted(blocks: Iterable[NDArray[np.int64]], total: int) -> Lengths:
    """Distribution of `total` lengths; those in no block are zero."""
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


_SAMPLE = 1 << 17
_WINDOWS = 32
_PROBES = 1 << 13
#: Rows per stripe: the least common multiple of the block heights 1, 2, 3, 4, 8.
_STRIPE = 24
_PARTS = (2, 4, 32)
_BLOCKS = ((1, 4), (1, 8), (4, 1), (8, 1), (2, 2), (3, 3), (4, 4), (8, 8))
#: Nonzeros per reuse window: about L1, L2 and beyond for 32 to 128 dense columns.
_REUSE = (512, 4096, 32768)

_SIZES = ("log_rows", "log_cols", "log_nnz", "log_density", "log_aspect")
_LENGTHS = ("mean", "cv", "max_over_mean", "gini", "q10", "median", "q90", "empty")
_NAMES = (
    *_SIZES,
    *(f"row_{n}" for n in _LENGTHS),
    *(f"col_{n}" for n in _LENGTHS),
    "row_next_change",
    "slice_padding",
    *(f"imbalance_{p}" for p in _PARTS),
    "bandwidth",
    "profile",
    "row_span",
    "diagonal_distance",
    "diagonal_share",
    "symmetry",
    "run_length",
    "gap_median",
    "near_share",
    *(f"fill_{r}x{c}" for r, c in _BLOCKS),
    "row_overlap",
    "stripe_reuse",
    *(f"reuse_{w}" for w in _REUSE),
)


class Stats(Exported):
    """Structural statistics as a raw vector, float32[d]; standardise before comparing.

    Lengths and ratios with heavy tails are log1p; shares and fills lie in 0..1; positions are
    relative to the matrix. Deterministic; every value is finite for every pattern.
    """

    name = "stats"
    version = "1"
    names: tuple[str, ...] = _NAMES
    dim = len(_NAMES)

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] of the structure; the name and group of the pattern do not enter."""
        values = _sizes(pattern)
        values |= {f"row_{k}": v for k, v in _spread(row_lengths(pattern)).items()}
        values |= {f"col_{k}": v for k, v in _spread(column_lengths(pattern)).items()}
        if pattern.nnz:  # else the others are 0
            values |= _row_order(pattern) | _positions(pattern) | _windows(pattern)
            values |= {f"reuse_{w}": _reuse(pattern.indices, w) for w in _REUSE}
        return np.array([values.get(n, 0.0) for n in self.names], dtype=np.float32)


PLUGIN: type[Travelling] = Stats


def _sizes(pattern: Pattern) -> dict[str, float]:
    m, n = pattern.shape
    logs = [float(np.log1p(v)) for v in (m, n, pattern.nnz)]
    # log1p throughout, since a size may be zero.
    density = logs[2] - logs[0] - logs[1]
    return dict(zip(_SIZES, [*logs, density, logs[0] - logs[1]], strict=True))


def _spread(lengths: Lengths) -> dict[str, float]:
    """Distribution of lengths."""
    total, values, times = lengths
    nnz = float(values @ times)
    if not total or not nnz:
        return dict.fromkeys(_LENGTHS, 0.0) | {"empty": 1.0}
    mean = nnz / total
    # Integers below 2^62: sums do not depend on their order.
    variance = max(float(int(values * values @ times)) / total - mean * mean, 0.0)
    upto = np.cumsum(times)
    # Over the ranks r of equal lengths in ascending order, the sum of 2 r - total - 1.
    ranks = times * (2 * upto - times - total)
    gini = float(int(values @ ranks)) / (total * nnz)

    def quantile(p: float) -> float:
        return float(np.log1p(values[np.searchsorted(upto, int(p * (total - 1)), side="right")]))

    return {
        "mean": float(np.log1p(mean)),
        "cv": float(np.log1p(np.sqrt(variance) / mean)),
        "max_over_mean": float(np.log(float(values[-1]) / mean)),
        "gini": gini,
        "q10": quantile(0.1),
        "median": quantile(0.5),
        "q90": quantile(0.9),
        "empty": int(times[0]) / total,
    }


def _row_order(pattern: Pattern) -> dict[str, float]:
    """Features of the order of the rows: neighbours, slices of 32 (SELL), equal parts."""
    m, nnz = pattern.shape[0], pattern.nnz
    changes, padded, before = 0, 0, None
    for lengths in row_blocks(pattern):
        changes += int(np.abs(np.diff(lengths)).sum())
        changes += 0 if before is None else abs(int(lengths[0]) - before)
        tops = np.maximum.reduceat(lengths, np.arange(0, lengths.size, 32))
        padded += int(tops.sum()) * 32
        before = int(lengths[-1])
    # A narrow last slice is padded to its own height only.
    padded -= int(tops[-1]) * (-m % 32)
    out = {"row_next_change": changes / (2 * nnz), "slice_padding": float(np.log(padded / nnz))}
    for parts in _PARTS:
        bounds = np.arange(parts + 1, dtype=np.int64) * m // parts
        heaviest = float(np.diff(pattern.indptr[bounds]).max())
        out[f"imbalance_{parts}"] = float(np.log(heaviest * min(parts, m) / nnz))
    return out


def _positions(pattern: Pattern) -> dict[str, float]:
    """Positions of the nonzeros. A rectangular matrix's diagonal is the line corner to corner."""
    m, n = pattern.shape
    slope = max(n - 1, 1) / max(m - 1, 1)
    filled, farthest, below, span = 0, 0.0, 0.0, 0.0
    for block, lengths in enumerate(row_blocks(pattern)):
        rows = np.flatnonzero(lengths)
        if not rows.size:
            continue
        rows += block * ROWS
        first = pattern.indices[pattern.indptr[rows]].astype(np.float64)
        last = pattern.indices[pattern.indptr[rows + 1] - 1].astype(np.float64)
        centre = rows * slope
        left = np.maximum(centre - first, 0.0)
        farthest = max(farthest, float(left.max()), float((last - centre).max()))
        filled += rows.size
        below += float(left.sum())
        span += float((last - first + 1).sum())
    places = _evenly(min(pattern.shape), _PROBES)
    return {
        "bandwidth": float(np.log1p(farthest) / np.log1p(n)),
        "profile": below / filled / n,
        "row_span": span / filled / n,
        "diagonal_share": float(contains(pattern, places, places).mean()),
        "symmetry": pattern_symmetry(pattern),
    }


def pattern_symmetry(pattern: Pattern) -> float:
    """Fraction of off-diagonal nonzeros (i, j) with a nonzero at (j, i); 0 unless square.

    The definition of the SuiteSparse collection's `psym`; 1 when there are no off-diagonal
    nonzeros. Exact up to 8192 nonzeros, above that over 8192 evenly spaced ones.
    """
    if pattern.shape[0] != pattern.shape[1]:
        return 0.0
    at = _evenly(pattern.nnz, _PROBES)
    rows = np.searchsorted(pattern.indptr, at, side="right") - 1
    cols = pattern.indices[at].astype(np.int64)
    off = rows != cols
    return float(contains(pattern, cols[off], rows[off]).mean()) if off.any() else 1.0


def contains(
    pattern: Pattern, rows: NDArray[np.int64], cols: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """bool[q]: true if (rows[i], cols[i]) is a nonzero."""
    # All rows are bisected at once, so a long row costs no more than a short one.
    low, end = pattern.indptr[rows], pattern.indptr[rows + 1]
    high = end
    while bool((low < high).any()):
        middle = (low + high) >> 1
        # A finished row is unchanged; its middle may be past the end.
        open_ = low < high
        below = open_ & (pattern.indices[np.where(open_, middle, 0)] < cols)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    present = low < end
    present[present] = pattern.indices[low[present]] == cols[present]
    return present


def _evenly(total: int, count: int) -> NDArray[np.int64]:
    """At most `count` evenly spaced numbers of 0..total-1."""
    if total <= count:
        return np.arange(total, dtype=np.int64)
    return np.arange(count, dtype=np.int64) * total // count


def _windows(pattern: Pattern) -> dict[str, float]:
    """Features measured on the sample of 24-row stripes."""
    rows, cols = _sample(pattern)
    m, n = pattern.shape
    centre = rows.astype(np.float32) * np.float32(max(n - 1, 1) / max(m - 1, 1))
    distance = float(np.abs(cols - centre).mean(dtype=np.float64)) / n
    same_row = rows[1:] == rows[:-1]
    gaps = np.diff(cols)[same_row]
    runs = cols.size - int(np.count_nonzero(gaps == 1))
    middle = float(np.partition(gaps, gaps.size // 2)[gaps.size // 2]) if gaps.size else 0.0
    # 16 float32 are one cache line.
    near = float(np.count_nonzero(gaps < 16)) / max(gaps.size, 1)
    return {
        "diagonal_distance": distance,
        "run_length": float(np.log(cols.size / runs)),
        "gap_median": float(np.log1p(middle)),
        "near_share": near,
        **_stripes(rows, cols, n),
    }


def _sample(pattern: Pattern) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Row and column of every nonzero in the sampled stripes, in row-major order.

    Beyond the budget only the first `longest` nonzeros of a row are taken, so that one stripe of
    very long rows cannot exceed it.
    """
    m, ptr = pattern.shape[0], pattern.indptr
    if pattern.nnz <= _SAMPLE:
        rows = _filled(ptr, 0, m)
        return np.repeat(rows, ptr[rows + 1] - ptr[rows]), pattern.indices
    share = min(max(_SAMPLE // _WINDOWS, _STRIPE * pattern.nnz // m), _SAMPLE // 4)
    longest = share // 4
    spans: list[NDArray[np.int64]] = []
    done = 0
    for at in _evenly(pattern.nnz - share, _SAMPLE // share).tolist():
        start = int(np.searchsorted(ptr, at, side="right")) - 1
        start = max(start // _STRIPE * _STRIPE, done)
        stop = int(np.searchsorted(ptr, ptr[min(start, m)] + share))
        done = min(stop + -stop % _STRIPE, m)
        spans.append(_filled(ptr, start, done))
    rows = np.concatenate(spans)
    lengths = np.minimum(ptr[rows + 1] - ptr[rows], longest)
    shift = ptr[rows] - np.cumsum(lengths) + lengths
    return np.repeat(rows, lengths), pattern.indices[
        np.repeat(shift, lengths) + np.arange(lengths.sum())
    ]


def _filled(ptr: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Rows of a range that include all with a nonzero; not many more than nonzeros."""
    first, last = int(ptr[start]), int(ptr[stop])
    if stop - start <= 4 * (last - first) + 1024:
        return np.arange(start, stop)
    return np.unique(np.searchsorted(ptr, np.arange(first, last), side="right") - 1)


def _stripes(rows: NDArray[np.int64], cols: NDArray[np.int32], n: int) -> dict[str, float]:
    """Block fills, row overlap and column reuse within stripes of 24 rows.

    One sort by (stripe, column, row) gives, for each column of each stripe, a 24-bit mask of the
    rows that hold it. An r x c block is a nonzero group of r bits after or-ing c columns.
    """
    nnz = cols.size
    stripe = rows // _STRIPE
    inner = rows - stripe * _STRIPE
    # (stripe, column, row) in one number: 27 + 31 + 5 bits at most.
    width_bits = max(n.bit_length(), 3)
    first = (stripe - stripe[0]) << width_bits
    key = np.sort(((first + cols) << 5) | inner)
    place = key >> 5
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    mask = np.bitwise_or.reduceat(np.uint32(1) << (key & 31).astype(np.uint32), starts)
    place = place[starts]
    column = (place & ((1 << width_bits) - 1)).astype(np.int32)
    border = np.diff(place >> width_bits, prepend=-1) != 0
    merged = {1: mask}
    for width in sorted({c for _, c in _BLOCKS} - {1}):
        block = column // width
        heads = np.flatnonzero(border | (np.diff(block, prepend=-1) != 0))
        merged[width] = np.bitwise_or.reduceat(mask, heads)
    fills = {f"fill_{r}x{c}": nnz / (r * c * _groups(merged[c], r)) for r, c in _BLOCKS}
    pairs = int(np.bitwise_count(mask & (mask >> np.uint32(1))).sum())
    followers = int(np.count_nonzero(inner))
    overlap = pairs / max(followers, 1)
    return {**fills, "row_overlap": overlap, "stripe_reuse": 1.0 - mask.size / nnz}


def _groups(mask: NDArray[np.uint32], height: int) -> int:
    """Number of aligned groups of `height` bits that contain a one, over all masks."""
    folded = mask.copy()
    for shift in range(1, height):
        folded |= mask >> np.uint32(shift)
    leaders = np.uint32(sum(1 << b for b in range(0, _STRIPE, height)))
    return int(np.bitwise_count(folded & leaders).sum())


def _reuse(indices: NDArray[np.int32], window: int) -> float:
    """Fraction of nonzeros whose column occurred before in the same run of `window` nonzeros."""
    width = min(window, indices.size)
    count = max(min(indices.size, _SAMPLE) // width, 1)
    starts = _evenly(indices.size - width + 1, count)
    runs = np.sort(np.stack([indices[s : s + width] for s in starts.tolist()]), axis=1)
    fresh = int(runs.shape[0]) + int(np.count_nonzero(runs[:, 1:] != runs[:, :-1]))
    return 1.0 - fresh / int(runs.size)
