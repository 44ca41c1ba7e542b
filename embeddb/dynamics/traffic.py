"""Cache traffic: reuse of the dense rows thread by thread, and bytes that must move."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.extras import needing
from embeddb.dynamics.record import LINE_BYTES, TABLE_5, Cache
from embeddb.dynamics.walk import Entries, Tiling, tiling_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.dynamics.walk import Execution, Tasks

#: Size of one value in bytes, by type.
VALUE_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "tf32": 4, "c64": 8, "c128": 16}
_Points = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Accesses to dense rows, operand 0 the column operand (B, or x), 1 the row operand (the
    result, or C of SDDMM). `counts` float64[2, BINS], `cold` float64[2], `by_thread`
    float64[threads, 2, caches] misses, all for the whole matrix: a sampled window is scaled by 1 /
    `share`."""

    counts: NDArray[np.float64]
    cold: NDArray[np.float64]
    by_thread: NDArray[np.float64]
    unit_bytes: int
    share: float

    @property
    def misses(self) -> NDArray[np.float64]:
        """float64[2, caches], over all threads."""
        total: NDArray[np.float64] = self.by_thread.sum(axis=0)
        return total

    @property
    def accesses(self) -> NDArray[np.float64]:
        """float64[2], by operand."""
        total: NDArray[np.float64] = self.counts.sum(axis=1) + self.cold
        return total


def unit_of(tiling: Tiling, row_bytes: int, value_bytes: int) -> tuple[int, tuple[int, int, int]]:
    """Size of a unit of reuse in bytes, and the address (a, b, c): row x, tile k is unit (x a + k
    b) // c.

    A unit is a tile of a dense row, or a cache line where that is larger.
    """
    tile_bytes = tiling.columns * value_bytes
    tiles = 1 if tiling.outside else tiling.count
    unit = max(LINE_BYTES, tile_bytes)
    if tile_bytes >= LINE_BYTES:
        return unit, (tiles, 1, 1)
    if tiling.outside and row_bytes >= LINE_BYTES:
        return unit, (1, 0, 1)
    return unit, (row_bytes, tile_bytes, LINE_BYTES)


def reuse_of(
    entries: Entries,
    thread: NDArray[np.int32],
    *,
    ex: Execution,
    op: Op,
    caches: Sequence[Cache],
    max_accesses: int,
) -> Reuse:
    """Simulate every thread's own stream in LRU caches; a shared cache is divided equally.

    Beyond `max_accesses` accesses, a window in the middle of each thread's entries stands for all.
    First accesses count as misses, so a window overestimates them.
    """
    value, tiling = VALUE_BYTES[op.dtype], tiling_of(ex, op.width)
    unit, address = unit_of(tiling, op.width * value, value)
    passes = tiling.count if tiling.outside else 1
    inner = tiling.count // passes
    sharing = np.array([ex.threads if cache.shared else 1 for cache in caches])
    capacities = np.array([c.size_bytes for c in caches], dtype=np.int64) // sharing // unit
    last = (entries.shape[1] - 1) * address[0] + (inner - 1) * address[1]
    first_row = max(last, 0) // address[2] + 1
    counts, cold = np.zeros((2, BINS)), np.zeros(2)
    misses = np.zeros((ex.threads, 2, len(caches)))
    seen = 0
    room = max(1, max_accesses // (ex.threads * inner * sum(ex.block)))
    for number in range(1 if ex.tiles_parallel else ex.threads):
        own = np.arange(thread.size) if ex.tiles_parallel else np.flatnonzero(thread == number)
        start = max(0, (own.size - room) // 2)
        window = own[start : start + room]
        seen += window.size
        points = _points(entries, window, inner)
        ids = emit(points, ex.block, entries.shape, address, first_row)
        simulated = reuse(ids, first_row, capacities)
        scale = passes * (own.size / window.size if window.size else 1.0)
        counts += simulated[0] * scale
        cold += simulated[1] * scale
        misses[number] = simulated[2] * scale
    if ex.tiles_parallel:
        misses = misses[0] * tile_shares(tiling, ex.threads)[:, None, None]
    share = seen / thread.size if thread.size else 1.0
    return Reuse(counts, cold, misses, unit, share)


def tile_shares(tiling: Tiling, threads: int) -> NDArray[np.float64]:
    """float64[threads]: fraction of the tiles of dense columns of each thread where tiles are the
    tasks: equal numbers, one more for the first ones."""
    each, more = divmod(tiling.count, threads)
    return (each + (np.arange(threads) < more)) / tiling.count


def _points(entries: Entries, window: NDArray[np.int64], tiles: int) -> _Points:
    """Block row, block column and tile of each step: within a group, all entries once per tile."""
    rows, columns = entries.rows[window], entries.columns[window]
    if tiles == 1:
        return rows, columns, np.zeros(window.size, dtype=np.int64)
    group = entries.group[window]
    starts = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    sizes = np.diff(starts, append=window.size)
    at = np.repeat(starts, sizes)
    size = np.repeat(sizes, sizes)
    tile = np.arange(tiles, dtype=np.int64)[:, None]
    place = at * tiles + tile * size + (np.arange(window.size) - at)
    order = np.empty(place.size, dtype=np.int64)
    order[place.ravel()] = np.tile(np.arange(window.size), tiles)
    tile_at = np.empty(place.size, dtype=np.int64)
    tile_at[place.ravel()] = np.repeat(np.arange(tiles), window.size)
    return rows[order], columns[order], tile_at


def matrix_bytes(entries: Entries, ex: Execution, value_bytes: int) -> int:
    """Size of the stored sparse matrix: values, indices, int64 pointers, and an int32 row per
    segment (or lane) where rows are reordered."""
    segments = entries.work.size
    lanes = segments * max(ex.slice, 1)
    mapped = ex.slice or ex.by_length or entries.starts.size > 2
    indices = entries.stored // entries.area
    return (
        entries.stored * value_bytes
        + ex.index_bytes * indices
        + 8 * (segments + 1)
        + (4 * lanes if mapped else 0)
    )


#: Counters of lines into and out of each level.
LEVELS = {
    1: ("L1D_REPLACEMENT", "L1D_M_EVICT"),
    2: ("L2_LINES_IN_ALL", "L2_TRANS_L2_WB"),
    3: ("CAS_COUNT_RD", "CAS_COUNT_WR"),
}
#: Counter of scalar arithmetic by value type, and the suffix of those of the other type.
TYPES = {
    "f32": ("FP_ARITH_INST_RETIRED_SCALAR_SINGLE", "DOUBLE"),
    "f64": ("FP_ARITH_INST_RETIRED_SCALAR_DOUBLE", "SINGLE"),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """One execution, walked and simulated."""

    pattern: Pattern
    op: Op
    ex: Execution
    entries: Entries
    tasks: Tasks
    owner: NDArray[np.int32]
    tiling: Tiling
    reuse: Reuse
    caches: tuple[Cache, ...]

    @property
    def value(self) -> int:
        return VALUE_BYTES[self.op.dtype]

    @property
    def matrix(self) -> int:
        return matrix_bytes(self.entries, self.ex, self.value)

    @property
    def flops(self) -> int:
        nnz = self.pattern.nnz
        return 2 * nnz * self.op.width + (nnz if self.sampled else 0)

    @property
    def flops_stored(self) -> float:
        return self.flops * self.entries.stored / max(self.pattern.nnz, 1)

    @property
    def sampled(self) -> bool:
        """True for SDDMM, whose result is stored beside the sparse matrix."""
        return self.op.name == "sddmm"


def by_thread(p: Parts) -> NDArray[np.float64]:
    """float64[threads, 19], nan where unknown: lines of 64 bytes that enter and leave each level,
    and arithmetic, reported as scalar since its width is the compiler's choice."""
    table = np.full((p.ex.threads, len(TABLE_5)), np.nan)
    own, scalar, other = _shares(p, p.tasks.work), *TYPES.get(p.op.dtype, ("", ""))
    for at, name in enumerate(TABLE_5):
        if other and name.endswith(other):
            table[:, at] = 0.0
        elif name == scalar:
            table[:, at] = own * p.flops_stored
    # A row without entries is not visited, but its part of the result is written.
    empty = p.pattern.shape[0] - int(np.count_nonzero(np.diff(p.pattern.indptr)))
    zeros = 0.0 if p.sampled else empty * p.op.width * p.value / LINE_BYTES
    unit_lines = -(-p.reuse.unit_bytes // LINE_BYTES)
    for at, cache in enumerate(p.caches):
        columns, rows = p.reuse.by_thread[:, :, at].T * unit_lines
        rows = rows + zeros * _shares(p, None)
        passes = _passes(p, cache)
        result = own * passes * p.entries.stored * p.value / LINE_BYTES * p.sampled
        read = columns + rows + own * passes * p.matrix / LINE_BYTES + result
        written = result if p.sampled else rows
        for name, lines in zip(LEVELS[cache.level], (read, written), strict=True):
            table[:, TABLE_5.index(name)] = lines
    return table


def _shares(p: Parts, weights: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """float64[threads]: fraction of the tasks of each thread, by weight."""
    if p.ex.tiles_parallel:
        return tile_shares(p.tiling, p.ex.threads)
    own = np.bincount(p.owner, weights=weights, minlength=p.ex.threads).astype(np.float64)
    return own / max(float(own.sum()), 1.0)


def _passes(p: Parts, cache: Cache) -> int:
    """Number of times that the sparse matrix is loaded into a cache: once per tile of dense
    columns, unless the data of a thread between two tiles fits."""
    if p.tiling.count == 1:
        return 1
    threads = 1 if p.ex.tiles_parallel else p.ex.threads
    groups = int(p.entries.group[-1]) + 1 if p.entries.group.size else 1
    parts = max(groups, threads)
    equal = p.tiling.count if p.tiling.outside else 1
    rows = min(
        float(p.reuse.accesses.sum()) / (parts * p.tiling.count),
        float(p.reuse.cold.sum()) / (threads * equal),
    )
    size = cache.size_bytes // (p.ex.threads if cache.shared else 1)
    return p.tiling.count if p.matrix / parts + rows * p.reuse.unit_bytes > size else 1


# -- Compiled loops: reuse distances, and the assignment of tasks to threads ----------------------

#: Number of bins: distances are below 2^31, so bins 0 to 31 suffice.
BINS = 32
_KINDS = {"static": 0, "dynamic": 1, "guided": 2}


def reuse(
    ids: NDArray[np.int64], first_row: int, capacities: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """LRU stack distances of a trace of units, `ids` int64[t]; those from `first_row` on are the
    row operand (operand 1), the others the column operand (operand 0).

    Returns `counts` int64[2, BINS] (distance 0, then [2^(b-1), 2^b)), `cold` int64[2] first
    accesses, `misses` int64[2, c] of fully associative LRU caches of `capacities` int64[c] units.

    Source: Olken, "Efficient methods for calculating the success function of fixed space
    replacement policies", LBL-12370, 1981, with a Fenwick tree in place of the balanced one:
    O(t log t). Raises: MissingDependency without numba.
    """
    # Renumbered 0..units-1 in the same order, so that tables are at most as long as the trace.
    units, trace = np.unique(ids, return_inverse=True)
    split = int(np.searchsorted(units, first_row))
    result: tuple[Any, Any, Any] = _compiled(_reuse)(trace.astype(np.int64), split, capacities)
    return result


def assign(work: NDArray[np.int64], starts: NDArray[np.int64], ex: Execution) -> NDArray[np.int32]:
    """int32[tasks]: thread of each task, by the scheduling of libgomp.

    `work` int64[tasks] is the time of each; `starts` int64[phases + 1] divides the tasks into loops
    with a barrier after each. Static: blocks of tasks, or chunks in turn. Dynamic: the next chunk
    to the first idle thread. Guided: the same with chunks of a thread's share of the remaining
    tasks, at least a chunk. Raises: MissingDependency without numba.
    """
    owner = np.zeros(work.size, dtype=np.int32)
    _compiled(_assign)(work, starts, _KINDS[ex.schedule], ex.chunk, ex.threads, owner)
    return owner


def emit(
    points: _Points,
    block: tuple[int, int],
    shape: tuple[int, int],
    address: tuple[int, int, int],
    first_row: int,
) -> NDArray[np.int64]:
    """int64[t]: units accessed by a walk over `points` (block rows, block columns, tiles).

    A dense row of the row operand is accessed when block row or tile changes, one of the column
    operand when block column or tile changes. Row x, tile k is unit (x a + k b) // c with `address`
    = (a, b, c); `first_row` is added for the row operand.
    """
    out = np.empty(points[0].size * sum(block), dtype=np.int64)
    used = _compiled(_emit)(points, block, shape, address, first_row, out)
    return out[:used]


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    with needing("a dynamic feature"):
        return compiled(function)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function compiled by numba, from its cache if that is writable. Raises: ImportError
    without numba."""
    from numba import njit

    try:
        fast: Callable[..., Any] = njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        fast = njit(**options)(function)
    return fast


def _reuse(
    ids: NDArray[np.int64], first_row: int, capacities: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    length = ids.size
    counts = np.zeros((2, BINS), dtype=np.int64)
    cold = np.zeros(2, dtype=np.int64)
    misses = np.zeros((2, capacities.size), dtype=np.int64)
    # 1 at the latest access of each unit: a sum over the tree counts distinct units.
    tree = np.zeros(length + 1, dtype=np.int32)
    last = np.full(length, -1, dtype=np.int64)
    for p in range(length):
        unit = ids[p]
        operand = 1 if unit >= first_row else 0
        before = last[unit]
        if before < 0:
            cold[operand] += 1
            misses[operand] += 1
        else:
            distance = 0
            at = p
            while at > 0:
                distance += tree[at]
                at &= at - 1
            at = before + 1
            while at > 0:
                distance -= tree[at]
                at &= at - 1
            bin_ = 0
            while distance >> bin_:
                bin_ += 1
            counts[operand, bin_] += 1
            for c in range(capacities.size):
                misses[operand, c] += distance >= capacities[c]
            at = before + 1
            while at <= length:
                tree[at] -= 1
                at += at & -at
        at = p + 1
        while at <= length:
            tree[at] += 1
            at += at & -at
        last[unit] = p
    return counts, cold, misses


def _assign(
    work: NDArray[np.int64],
    starts: NDArray[np.int64],
    kind: int,
    chunk: int,
    threads: int,
    owner: NDArray[np.int32],
) -> None:
    busy = np.zeros(threads, dtype=np.int64)
    for phase in range(starts.size - 1):
        low, high = starts[phase], starts[phase + 1]
        share, rest = (high - low) // threads, (high - low) % threads
        busy[:] = 0
        at, turn = low, 0
        while at < high:
            size = max(chunk, 1)
            if kind == 0 and chunk == 0:
                size = share + (1 if turn < rest else 0)
            elif kind == 2:
                size = max(size, (high - at + threads - 1) // threads)
            thread = turn % threads if kind == 0 else np.argmin(busy)
            for task in range(at, min(at + size, high)):
                owner[task] = thread
                busy[thread] += work[task]
            at += size
            turn += 1


def _emit(
    points: _Points,
    block: tuple[int, int],
    shape: tuple[int, int],
    address: tuple[int, int, int],
    first_row: int,
    out: NDArray[np.int64],
) -> int:
    used = 0
    rows, columns, tiles = points
    a, b, c = address
    for p in range(rows.size):
        changed = p == 0 or tiles[p] != tiles[p - 1]
        if changed or rows[p] != rows[p - 1]:
            for x in range(rows[p] * block[0], min((rows[p] + 1) * block[0], shape[0])):
                out[used] = first_row + (x * a + tiles[p] * b) // c
                used += 1
        if changed or columns[p] != columns[p - 1]:
            for x in range(columns[p] * block[1], min((columns[p] + 1) * block[1], shape[1])):
                out[used] = (x * a + tiles[p] * b) // c
                used += 1
    return used
