"""Stored entries of a matrix in the visiting order of a loop nest, and the parallel tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.errors import UsageError
from embeddb.platforms.loopnest import LoopNest, complete_order

#: Formats whose walk is modelled.
_FORMATS = ("csr", "csc", "dcsr", "bcsr", "sell", "ell", "sell16")

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class Entries:
    """Stored entries in the visiting order of a nest.

    Shapes: `rows`, `columns` int64[e], (block) row and column of each stored entry or block in the
    order of the nest without its loops over dense columns; `segment` int64[e], number of the unit
    that the format stores together: a row, block row, column, slice, or the part of a row in a
    panel.

    `work` int64[segments]: stored values, padding included. `starts` int64[phases + 1]: loops over
    segments with a barrier after each (panels). `group` int64[e]: entries of one group are visited
    for one tile of dense columns, then for the next. `shape` is that of the matrix, `area` the
    values of a block.
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
        """Number of values in memory, padding included."""
        return int(self.work.sum())


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks: `of` int64[e] that of each entry, `work` int64[tasks], `starts` int64[phases + 1]."""

    of: NDArray[np.int64]
    work: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """`count` tiles of `columns` dense columns each; `outside`: the loop over them is outside all
    loops over the matrix, so that they are equal passes."""

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
    """At most so many non-zeros of a pattern: rows in its middle, the last one truncated if needed,
    and all columns; a smaller pattern unchanged."""
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


def tasks_of(entries: Entries, ex: Execution) -> Tasks:
    """Segments, strips of `I` of them, or equal numbers of entries in position space."""
    size = entries.rows.size
    if ex.pieces:
        each = max(1, -(-size // (ex.threads * ex.pieces)))
        of = np.arange(size, dtype=np.int64) // each
        work = np.bincount(of).astype(np.int64) * entries.area
        return Tasks(of, work, np.array([0, work.size]))
    strip = _strip(ex) if _names(ex)[0] == "i2" else 1
    if strip == 1:
        return Tasks(entries.segment, entries.work, entries.starts)
    count = -(-entries.work.size // strip)
    work = np.add.reduceat(entries.work, np.arange(count) * strip) if count else entries.work
    return Tasks(entries.segment // strip, work, np.array([0, count]))


def _strip(ex: Execution) -> int:
    """Number of segments per strip; the split is in rows."""
    return max(1, ex.nest.splits[0] // ex.block[0])


def _names(ex: Execution) -> list[str]:
    """Loops over the matrix, without those of one iteration."""
    single = {"i1"} if ex.nest.splits[0] == 1 else set()
    single |= {"j1"} if ex.nest.splits[1] == 1 else set()
    return [name for name in ex.nest.names if name[0] in "ij" and name not in single]


def _around(ex: Execution) -> tuple[list[str], list[str]]:
    """Loops over the matrix outside and inside the tiles of dense columns."""
    at = ex.nest.names.index("k2")
    names = _names(ex)
    before = [name for name in names if ex.nest.names.index(name) < at]
    return before, [name for name in names if name not in before]


def _ranks(lengths: NDArray[np.int64], ex: Execution) -> NDArray[np.int64] | None:
    """int64[m]: position of each row in the visiting order; None for their own order."""
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
    """Visiting order; None where it is that of the rows."""
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
    """Segment of each entry, number of entries of each segment, and starts of the phases."""
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
    """int64[size]: a number that increases by one wherever one of the keys changes."""
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
    """SELL: within a slice the first entries of all rows, then the second ones; padding counts as
    work, but its accesses (to column 0) do not."""
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


SCHEDULES = ("static", "dynamic", "guided")
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Execution:
    """A loop nest with all properties that determine which thread accesses which data in which
    order.

    `block`: rows x columns stored together. `slice`: rows side by side (SELL), 0 none; `sigma`:
    window within which rows are sorted by length, 1 none. `by_length`: all rows are.
    `index_bytes`: of a stored column. `pieces`: tasks per thread in position space, 0 if the
    outermost sparse loop is parallel. `tiles_parallel`: the tiles of dense columns are the tasks
    instead.

    Raises: UsageError for an unknown schedule or a number out of range.
    """

    nest: LoopNest
    block: tuple[int, int] = (1, 1)
    slice: int = 0
    sigma: int = 1
    padded: bool = False
    by_length: bool = False
    index_bytes: int = 4
    schedule: str = "static"
    chunk: int = 0
    threads: int = 1
    pieces: int = 0
    tiles_parallel: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UsageError(f"schedule {self.schedule!r} is none of {', '.join(SCHEDULES)}")
        if not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(f"threads must be 1..{MAX_THREADS}, not {self.threads}")
        if min(*self.block, self.sigma) < 1 or min(self.slice, self.chunk, self.pieces) < 0:
            raise UsageError("block and sigma must be at least 1, slice, chunk and pieces 0")


def execution_of(
    platform: Platform,
    op: Op,
    config: Mapping[str, Any],
    *,
    pattern: Pattern,
    threads: int,
) -> tuple[Execution, tuple[str, ...]]:
    """Execution of a legal configuration of the cpu platform, or of one with its parameter names,
    with remarks on ignored properties. Parameters that only change the code inside a segment
    (unroll, lanes, seams) are irrelevant here.

    Raises: UsageError if the platform has no loop nest for this op.
    """
    nest = platform.loopnest(op, config, pattern.sizes)
    if nest is None:
        raise UsageError(
            f"platform {platform.id} has no loop nest for {op.name}",
            hint="omit the platform: rows in order, one thread per block of rows",
        )
    stored = config.get("format", "csr")
    if stored not in _FORMATS:
        raise UsageError(
            f"counters are not modelled for format = {stored}",
            hint=f"modelled are {', '.join(_FORMATS)}",
        )
    notes = []
    if config.get("reorder") == "rcm":
        notes.append("reorder = rcm: the rows are walked in the order of the file here")
    by_tiles = config.get("merge") == "tiles"
    if by_tiles:
        # The loop over tiles of dense columns is the outermost where tiles are the tasks.
        names = [name for name in nest.names if name != "k2"]
        nest = LoopNest(nest.splits, complete_order(("k2", *names)))
    sliced = stored in ("sell", "ell", "sell16")
    position, outer = "pieces" in config, "merge" in config
    return Execution(
        nest=nest,
        block=_block(config.get("block")) if stored == "bcsr" else (1, 1),
        slice=int(config.get("slice", 0)) if sliced else 0,
        sigma=int(config.get("sigma", 1)) if sliced else 1,
        padded=stored == "ell",
        by_length=config.get("reorder") == "length",
        index_bytes=2 if stored == "sell16" else 4,
        schedule="dynamic" if position else str(config.get("schedule", "static")),
        chunk=1 if position else 0 if outer else int(config.get("chunk", 0)),
        threads=1 if config.get("threads") == "one" else threads,
        pieces=int(config.get("pieces", 0)),
        tiles_parallel=by_tiles,
    ), tuple(notes)


def plain(threads: int) -> Execution:
    """Rows in order, whole dense rows, one block of rows per thread: OpenMP's default."""
    return Execution(LoopNest((1, 1, 1, 1), complete_order(("i2", "j2", "k2"))), threads=threads)


def _block(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})x(\d{1,3})", str(value))
    if not match:
        raise UsageError(f"block = {value} is not RxC")
    return int(match[1]), int(match[2])
