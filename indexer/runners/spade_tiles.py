"""Tiles of a pattern, rows in another order cut at the borders of column panels, and the simulation
loop of SPADE's timing model: elements take tiles, tiles touch caches, phases end.

Importing this imports numba. Caches hold slices, which are the elements of one dense row in one
split of the dense columns: an element fetches them whole. Tags are 2 slice + dirty, or -1; the
newest first in each set. Three groups of arguments are passed together:

- `segments`: `row`, `start`, `length` and `tiles` of a `Tiling`;
- `dense`: the slice of B's row by entry, int32[nnz]; which rows were begun, bool[m]; the first
  slice of the row operand; how many of its rows share a slice;
- `machine`: tags of the elements' caches int64[elements, slices], of the shared cache
  int64[slices], ways of both int64[2], slices moved past either of them so far int64[2], and
  costs in cycles float64[11], see the constants below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.dynamics.traffic import compiled


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


def similar_first(pattern: Pattern) -> NDArray[np.int64]:
    """int64[m]: an order of the rows in which rows that share columns are close to each other.
    Breadth first over the bipartite graph of rows and columns, from rows of least degree: Cuthill
    and McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969), for any shape. Columns
    keep their numbers, because the rows of B belong to the caller. O(nnz)."""
    by_degree = np.argsort(np.diff(pattern.indptr), kind="stable")
    # The rows of each column come in order of degree, and need no sorting later.
    columns = pattern.to_scipy(np.bool_)[by_degree].tocsc()
    members = by_degree[columns.indices]
    order: NDArray[np.int64] = _breadth_first(
        pattern.indptr, pattern.indices, by_degree, columns.indptr, members
    )
    return order


def tiling_of(
    pattern: Pattern, order: NDArray[np.int64], row_panel: int, column_panel: int
) -> Tiling:
    """Tiles of `row_panel` rows of the order int64[m] x `column_panel` columns."""
    m, n = pattern.shape
    column_panel = max(1, min(column_panel, n))
    row_of = np.repeat(np.arange(m, dtype=np.int32), np.diff(pattern.indptr))
    panel_of = pattern.indices // np.int32(column_panel)
    cuts = _cuts((np.diff(row_of) != 0) | (np.diff(panel_of) != 0), row_of.size)
    start, length = cuts[:-1], np.diff(cuts).astype(np.int32)
    place = np.empty(m, dtype=np.int32)
    place[order] = np.arange(m, dtype=np.int32)
    row, column = place[row_of[start]], panel_of[start]
    # One key for row panel, column panel and row is sorted in half the time of three.
    key = (row // row_panel).astype(np.int64) * -(-n // column_panel) + column
    at = np.argsort(key * row_panel + row % row_panel, kind="stable")
    row, column, start, length = row[at], column[at], start[at], length[at]
    panel = row // row_panel
    tiles = _cuts((np.diff(panel) != 0) | (np.diff(column) != 0), row.size)
    first = tiles[:-1]
    columnwise = np.argsort(column[first], kind="stable")
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


@compiled
def _breadth_first(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    by_degree: NDArray[np.int64],
    heads: NDArray[np.int32],
    members: NDArray[np.int64],
) -> NDArray[np.int64]:
    m, n = indptr.size - 1, heads.size - 1
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


_fast = partial(compiled, error_model="numpy")
#: Entries an element works through before the next element has its turn at the shared cache.
_TURN = 256
#: Counted: slices through the shared cache, slices from and to memory.
_CHIP, _RAM = 0, 1
#: Indices of costs. First the wait for a slice in the element's cache, the shared one, memory;
#: then work per entry and per segment; per tile; what memory and shared cache need to move one.
_NEAR, _SHARED, _MEMORY, _ENTRY, _SEGMENT, _START, _DISPATCH = range(7)
_MOVE_SLICE, _MOVE_ENTRY, _MOVE_SHARED, _BARRIER = range(7, 11)

_Segments = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]
_Plan = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
_Dense = tuple[NDArray[np.int32], NDArray[np.bool_], int, int]
_Machine = tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]
]


@_fast
def _touch(
    tags: NDArray[np.int64], base: int, ways: int, unit: int, dirty: int
) -> tuple[bool, int]:
    """Use a slice in the set at `base`. Returns whether it was there, else the evicted tag."""
    moved = 2 * unit + dirty
    for w in range(base, base + ways):
        tag = tags[w]
        tags[w] = moved
        if tag >> 1 == unit:
            tags[base] |= tag & 1
            return True, -1
        moved = tag
    return False, moved


@_fast
def _share(machine: _Machine, unit: int, dirty: int) -> bool:
    """Use a slice in the shared cache. True if it was there; an evicted dirty slice is written."""
    _, shared, ways, counts, _ = machine
    counts[_CHIP] += 1
    sets = shared.size // ways[1]
    hit, out = _touch(shared, (unit % sets) * ways[1], ways[1], unit, dirty)
    if out >= 0 and out & 1:
        counts[_RAM] += 1
    return hit  # type: ignore[no-any-return]  # numba's functions have no type


@_fast
def _reach(machine: _Machine, element: int, unit: int, dirty: int, whole: bool) -> int:
    """Index in the costs of the wait for a slice, by where the element finds it. It is written if
    `dirty`, without reading it if `whole`."""
    private, _, ways, counts, _ = machine
    sets = private.shape[1] // ways[0]
    hit, out = _touch(private[element], (unit % sets) * ways[0], ways[0], unit, dirty)
    if hit:
        return _NEAR
    if out >= 0 and out & 1:
        _share(machine, out >> 1, 1)
    if _share(machine, unit, 0) or whole:
        return _SHARED
    counts[_RAM] += 1
    return _MEMORY


@_fast
def _turn(
    segments: _Segments,
    dense: _Dense,
    machine: _Machine,
    flags: tuple[bool, bool, bool],
    at: NDArray[np.int64],
    element: int,
) -> tuple[float, int]:
    """Let an element do segments of its tile, at[element, 0] up to at[element, 1]: the cycles that
    takes, as waiting for slices and working on others overlap, and the entries done."""
    row, start, length, _ = segments
    columns, seen, first_row, per_slice = dense
    counts, costs = machine[3], machine[4]
    output, bypass = flags[0], flags[1]
    done, work, waiting = 0, 0.0, 0.0
    while at[element, 0] < at[element, 1] and done < _TURN:
        s = at[element, 0]
        at[element, 0] += 1
        fresh = output and not seen[row[s]]
        seen[row[s]] = True
        if bypass:
            counts[_RAM] += (0 if fresh else 1) + (1 if output else 0)
            waiting += 0.0 if fresh else costs[_MEMORY]
        else:
            unit = first_row + row[s] // per_slice
            waiting += costs[_reach(machine, element, unit, 1 if output else 0, fresh)]
        for p in range(start[s], start[s] + length[s]):
            waiting += costs[_reach(machine, element, columns[p], 0, False)]
        work += costs[_SEGMENT] + costs[_ENTRY] * length[s]
        done += length[s]
    return max(work, waiting), done


@_fast
def _phase(
    segments: _Segments,
    plan: _Plan,
    phase: int,
    dense: _Dense,
    machine: _Machine,
    flags: tuple[bool, bool, bool],
) -> tuple[float, int]:
    """The slowest element's cycles in a phase, and the entries done in it. The element whose clock
    is least goes on with its tile, else its task; else it takes the next task of the phase."""
    order, tasks, phases = plan
    tiles, costs, elements = segments[3], machine[4], machine[0].shape[0]
    clock = np.zeros(elements)
    at = np.zeros((elements, 4), dtype=np.int64)  # segment and their end, place and its end
    task, dispatched, slowest, entries = phases[phase], 0.0, 0.0, 0
    while True:
        e = 0
        for other in range(1, elements):
            if clock[other] < clock[e]:
                e = other
        if clock[e] == np.inf:
            return slowest, entries
        if at[e, 0] == at[e, 1]:
            if at[e, 2] == at[e, 3]:
                if task == phases[phase + 1]:
                    slowest = max(slowest, clock[e])
                    clock[e] = np.inf
                    continue
                at[e, 2], at[e, 3] = tasks[task], tasks[task + 1]
                task += 1
            tile = order[at[e, 2]]
            at[e, 2] += 1
            at[e, 0], at[e, 1] = tiles[tile], tiles[tile + 1]
            # One control element serves them all.
            dispatched = max(dispatched, clock[e]) + costs[_DISPATCH]
            clock[e] = dispatched + costs[_START]
        cycles, done = _turn(segments, dense, machine, flags, at, e)
        clock[e] += cycles
        entries += done


@_fast
def _flush(machine: _Machine) -> None:
    """Empty the elements' caches; what was written goes to the shared one."""
    private = machine[0]
    for e in range(private.shape[0]):
        for w in range(private.shape[1]):
            tag = private[e, w]
            if tag >= 0 and tag & 1:
                _share(machine, tag >> 1, 1)
            private[e, w] = -1


@_fast
def simulate(
    segments: _Segments,
    plan: _Plan,
    dense: _Dense,
    machine: _Machine,
    flags: tuple[bool, bool, bool],
) -> tuple[float, float, float, float]:
    """Cycles of one pass over the matrix, and the sums over its phases of what each bound alone
    would take: the slowest element, the memory, the shared cache. A phase takes the largest.

    `plan`: the order of the tiles, its cuts into tasks (one element does one), the tasks' cuts
    into phases. `flags`: the row operand is an output; it goes past the caches; phases end in a
    barrier.
    """
    counts, costs = machine[3], machine[4]
    phases = plan[2]
    total = np.zeros(4)
    for phase in range(phases.size - 1):
        counts[:] = 0
        slowest, entries = _phase(segments, plan, phase, dense, machine, flags)
        last = phase == phases.size - 2
        if flags[2] or last:
            _flush(machine)
        if last:
            for tag in machine[1]:
                counts[_RAM] += 1 if tag >= 0 and tag & 1 else 0
        memory = counts[_RAM] * costs[_MOVE_SLICE] + entries * costs[_MOVE_ENTRY]
        on_chip = counts[_CHIP] * costs[_MOVE_SHARED]
        total[0] += max(slowest, memory, on_chip) + (costs[_BARRIER] if flags[2] else 0.0)
        total[1] += slowest
        total[2] += memory
        total[3] += on_chip
    return total[0], total[1], total[2], total[3]
