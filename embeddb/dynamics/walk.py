"""The stored entries of a matrix in the order a loop nest visits them, and the parallel tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.core.pattern import Pattern
    from embeddb.dynamics.execution import Execution

__all__ = ["Entries", "Tasks", "Tiling", "entries_of", "middle_of", "tasks_of", "tiling_of"]


@dataclass(frozen=True, slots=True)
class Entries:
    """The stored entries in the order in which a nest meets them.

    Shapes: `rows`, `columns` int64[e], (block) row and column of each stored entry or block in
    the order of the nest without its loops over dense columns; `segment` int64[e], what the
    format stores together: a row, block row, column, slice, or the part of a row in a panel.

    `work` int64[segments]: stored values, padding included. `starts` int64[phases + 1]: loops over
    segments with a barrier behind each (panels). `group` int64[e]: entries of one group are
    visited for one tile of dense columns, then for the next. `shape` is that of the matrix, `area`
    the values of a block.
    """

    shape: tuple[int, int]

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    segment: NDArray[np.int64]
    group: NDArray[np.int64]
    work: NDArray[np.int64]
    starts: NDArray[np.int64]
    area: int

    @property
    def stored(self) -> int:
        """Values in memory, padding included."""
        return int(self.work.sum())


@dataclass(frozen=True, slots=True)
class Tasks:
    """What the threads share out: `of` int64[e] the task of each entry, `work` int64[tasks],
    `starts` int64[phases + 1]."""

    of: NDArray[np.int64]
    work: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """`count` tiles of `columns` dense columns each; `outside`: the loop over them is outside of
    all loops over the matrix, so that they are equal passes."""

    columns: int
    count: int
    outside: bool


def tiling_of(ex: Execution, width: int) -> Tiling:
    """One tile if the dense columns are the innermost loops."""
    before, after = _around(ex)
    if not after:
        return Tiling(width, 1, False)
    columns = min(ex.nest.splits[2], width)
    return Tiling(columns, -(-width // columns), not before)


def entries_of(pattern: Pattern, ex: Execution) -> Entries:
    """Walk a pattern. O(nnz), and O(nnz log nnz) where the order is not that of the rows."""
    lengths = np.diff(pattern.indptr)
    rows = np.repeat(np.arange(pattern.shape[0], dtype=np.int64), lengths)
    columns = pattern.indices.astype(np.int64)
    rank = _ranks(lengths, ex)
    if ex.slice:
        return _sliced(pattern, ex, rows, columns, rank)
    (r, c), (m, n) = ex.block, pattern.shape
    if r * c > 1:
        across = -(-n // c)
        key = np.unique(rows // r * across + columns // c)
        rows, columns, m, n = key // across, key % across, -(-m // r), across
        place = rows
    else:
        place = rows if rank is None else rank[rows]
    keys = _keys(ex, place, columns)
    order = _order(ex, keys, sort_rows=rank is not None and r * c == 1)
    if order is not None:
        rows, columns, place = rows[order], columns[order], place[order]
        keys = {name: key[order] for name, key in keys.items()}
    segment, work, starts = _segments(ex, keys, place, columns, (m, n))
    before, _ = _around(ex)
    return Entries(
        pattern.shape,
        rows,
        columns,
        segment,
        _changes([keys[x] for x in before], rows.size),
        work * r * c,
        starts,
        r * c,
    )


def middle_of(pattern: Pattern, entries: int) -> Pattern:
    """At most so many non-zeros of a pattern: rows in its middle, the last one cut where need be,
    and all columns; a pattern that has no more, as it is."""
    if pattern.nnz <= entries:
        return pattern
    ends = pattern.indptr
    first = int(np.searchsorted(ends, (pattern.nnz - entries) // 2, side="right")) - 1
    start = int(ends[first])
    last = int(np.searchsorted(ends, start + entries))
    indptr = np.minimum(ends[first : last + 1] - start, entries)
    indices = pattern.indices[start : start + int(indptr[-1])]
    shape = (last - first, pattern.shape[1])
    return replace(pattern, digest="", shape=shape, indptr=indptr, indices=indices)


def tasks_of(found: Entries, ex: Execution) -> Tasks:
    """Segments, strips of `I` of them, or equal numbers of entries in position space."""
    size = found.rows.size
    if ex.pieces:
        each = max(1, -(-size // (ex.threads * ex.pieces)))
        of = np.arange(size, dtype=np.int64) // each
        work = np.bincount(of).astype(np.int64) * found.area
        return Tasks(of, work, np.array([0, work.size]))
    strip = _strip(ex) if _names(ex)[0] == "i2" else 1
    if strip == 1:
        return Tasks(found.segment, found.work, found.starts)
    count = -(-found.work.size // strip)
    work = np.add.reduceat(found.work, np.arange(count) * strip) if count else found.work
    return Tasks(found.segment // strip, work, np.array([0, count]))


def _strip(ex: Execution) -> int:
    """Segments per strip; the split is in rows."""
    return max(1, ex.nest.splits[0] // ex.block[0])


def _names(ex: Execution) -> list[str]:
    """Loops over the matrix, without those of one iteration."""
    single = {"i1"} if ex.nest.splits[0] == 1 else set()
    single |= {"j1"} if ex.nest.splits[1] == 1 else set()
    return [name for name in ex.nest.names if name[0] in "ij" and name not in single]


def _around(ex: Execution) -> tuple[list[str], list[str]]:
    """Loops over the matrix outside and inside of the tiles of dense columns."""
    at = ex.nest.names.index("k2")
    names = _names(ex)
    before = [name for name in names if ex.nest.names.index(name) < at]
    return before, [name for name in names if name not in before]


def _ranks(lengths: NDArray[np.int64], ex: Execution) -> NDArray[np.int64] | None:
    """int64[m]: when each row is visited; None in their own order."""
    if not ex.by_length and ex.sigma == 1:
        return None
    at = np.arange(lengths.size, dtype=np.int64)
    window = np.zeros_like(at) if ex.by_length else at // ex.sigma
    rank = np.empty_like(at)
    rank[np.lexsort((-lengths, window))] = at
    return rank


def _keys(
    ex: Execution, place: NDArray[np.int64], columns: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    high, wide = _strip(ex), ex.nest.splits[1]
    values = {"i2": place // high, "i1": place % high, "j2": columns // wide, "j1": columns % wide}
    return {name: values[name] for name in _names(ex)}


def _order(
    ex: Execution, keys: dict[str, NDArray[np.int64]], *, sort_rows: bool
) -> NDArray[np.int64] | None:
    """The visiting order; None where it is that of the rows."""
    letters = "".join(name[0] for name in keys)
    if letters.rstrip("j").strip("i") == "" and not sort_rows:
        return None
    order: NDArray[np.int64] = np.lexsort(list(keys.values())[::-1])
    return order


def _segments(
    ex: Execution,
    keys: dict[str, NDArray[np.int64]],
    place: NDArray[np.int64],
    columns: NDArray[np.int64],
    shape: tuple[int, int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The segment of each entry, entries of each segment, and where the phases start."""
    first = next(iter(keys))
    if first[0] == "j" and "j1" in keys:
        panel = keys["j2"]
        segment = _changes([panel, place], place.size)
        work = np.bincount(segment).astype(np.int64)
        new = np.flatnonzero(np.diff(panel)) + 1
        return segment, work, np.concatenate([[0], segment[new], [work.size]]).astype(np.int64)
    segment, count = (place, shape[0]) if first[0] == "i" else (columns, shape[1])
    work = np.bincount(segment, minlength=count).astype(np.int64)
    return segment, work, np.array([0, count])


def _changes(keys: list[NDArray[np.int64]], size: int) -> NDArray[np.int64]:
    """int64[size]: a number that rises by one wherever one of the keys changes."""
    new = np.zeros(size, dtype=np.bool_)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.cumsum(new, dtype=np.int64)


def _sliced(
    pattern: Pattern,
    ex: Execution,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    rank: NDArray[np.int64] | None,
) -> Entries:
    """SELL: within a slice the first entries of all rows, then the second ones; the padding is
    work, but the accesses it makes (to column 0) are left out."""
    place = rows if rank is None else rank[rows]
    slot = np.arange(rows.size, dtype=np.int64) - pattern.indptr[rows]
    order = np.lexsort((place, slot, place // ex.slice))
    longest = np.zeros(-(-pattern.shape[0] // ex.slice), dtype=np.int64)
    np.maximum.at(longest, place // ex.slice, slot + 1)
    if ex.padded and longest.size:
        longest[:] = longest.max()
    nothing = np.zeros(rows.size, dtype=np.int64)
    starts = np.array([0, longest.size])
    segment = (place // ex.slice)[order]
    work = longest * ex.slice
    return Entries(pattern.shape, rows[order], columns[order], segment, nothing, work, starts, 1)
