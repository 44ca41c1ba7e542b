"""Compiled loops: reuse distances, and the assignment of tasks to threads."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.extras import needing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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


def assign(
    work: NDArray[np.int64], starts: NDArray[np.int64], *, schedule: str, chunk: int, threads: int
) -> NDArray[np.int32]:
    """int32[tasks]: thread of each task, by the scheduling of libgomp.

    `work` int64[tasks] is the time of each; `starts` int64[phases + 1] divides the tasks into loops
    with a barrier after each. Static: blocks of tasks, or chunks in turn. Dynamic: the next chunk
    to the first idle thread. Guided: the same with chunks of a thread's share of the remaining
    tasks, at least `chunk`. Raises: MissingDependency without numba.
    """
    owner = np.zeros(work.size, dtype=np.int32)
    _compiled(_assign)(work, starts, _KINDS[schedule], chunk, threads, owner)
    return owner


def emit(
    points: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
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


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    with needing("a dynamic feature"):
        from numba import njit
    try:
        compiled: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        compiled = njit(function)
    return compiled


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
    points: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
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
