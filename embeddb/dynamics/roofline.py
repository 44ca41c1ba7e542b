"""Time of a configuration in seconds from a pattern and a machine's constants, without fitting: the
larger of transfer and compute time, as in the analytical model of "A Learned Performance Model for
Tensor Processing Units" (Appendix A), for the C that the cpu platform generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import positive
from embeddb.dynamics.record import LINE_BYTES
from embeddb.dynamics.traffic import VALUE_BYTES, assign, matrix_bytes
from embeddb.dynamics.walk import Execution, entries_of, execution_of, middle_of, plain, tiling_of
from embeddb.platforms.loopnest import LoopNest, complete_order
from embeddb.platforms.platform import Platform

#: Defaults for unknown facts: a core of a server of 2023, and two threads as on most machines here.
USUAL = {
    "threads": 2.0,
    "vector_bytes": 64.0,
    "l1_bytes": 32.0 * (1 << 10),
    "l2_bytes": 1.0 * (1 << 20),
    "l3_bytes": 32.0 * (1 << 20),
    "stream_l2_gb_s": 400.0,
    "stream_l3_gb_s": 200.0,
    "stream_memory_gb_s": 50.0,
    "multiply_add_gflop_s": 200.0,
    "wake_us": 5.0,
}
#: Vector multiply-adds per cycle, each two operations per lane.
_PER_CYCLE = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """`caches`: bytes of L1 and L2 of a core and of the whole L3. `bytes_s`: bytes per second that
    all threads together get from L2, L3 and memory. `wake_s`: seconds until all threads run."""

    threads: int
    vector_bytes: int
    hertz: float
    caches: tuple[float, float, float]
    bytes_s: tuple[float, float, float]
    wake_s: float

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Machine:
        """Machine from the environment of an instance (`embeddb.platforms.machines`); missing and
        invalid facts have the defaults `USUAL`."""
        values = {name: positive(facts.get(name)) or usual for name, usual in USUAL.items()}
        lanes = values["vector_bytes"] / 4
        return cls(
            max(1, int(values["threads"])),
            int(values["vector_bytes"]),
            values["multiply_add_gflop_s"] * 1e9 / (2 * _PER_CYCLE * lanes),
            (values["l1_bytes"], values["l2_bytes"], values["l3_bytes"]),
            (
                values["stream_l2_gb_s"] * 1e9,
                values["stream_l3_gb_s"] * 1e9,
                values["stream_memory_gb_s"] * 1e9,
            ),
            values["wake_us"] * 1e-6,
        )


_LOADS, _MULTIPLIES, _LATENCY, _IN_FLIGHT = 2, 2, 4.0, 256.0
#: Vector registers for accumulators, by vector size in bytes.
_REGISTERS = {64: 28}
_FEW_REGISTERS = 12
#: Cycles of starting and leaving a loop, with an occasional misprediction.
_LOOP = 8.0
#: Cycles of adding up the lanes of a vector, alone and for each of four vectors together.
_SUM, _SUM_OF_FOUR = 8.0, 3.0
#: Largest number of vectors of the row operand that SDDMM keeps in registers.
_HELD = 8


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of a stored entry or block, for all dense columns, and those of a segment beside."""

    each: float
    row: float


def cycles_of(
    op: Op, config: Mapping[str, Any], ex: Execution, *, vector_bytes: int, length: float
) -> Cycles:
    """Cycles of a configuration of the cpu platform; `length`: mean number of entries or blocks of
    a segment."""
    lanes = max(1, vector_bytes // (8 if op.dtype == "f64" else 4))
    if op.name == "spmv":
        return _spmv(config, ex, lanes, length)
    tile = min(int(config.get("ktile", op.width)), op.width)
    widths = [tile] * (op.width // tile) + ([op.width % tile] if op.width % tile else [])
    parts = [_vectors(width, lanes) for width in widths]
    if config.get("order") == "ijk":
        return _plain(op, parts[0])
    unroll = int(config.get("unroll", 1))
    registers = _REGISTERS.get(vector_bytes, _FEW_REGISTERS)
    if op.name == "sddmm":
        tiles = [_dots(ex, part, unroll, several=len(parts) > 1) for part in parts]
    elif config.get("format") == "csc":
        tiles = [Cycles(part + 1.5, part / _LOADS + _LOOP) for part in parts]
    else:
        tiles = [_tile(ex, part, unroll, registers, length) for part in parts]
    return Cycles(sum(f.each for f in tiles), sum(f.row for f in tiles))


def _vectors(width: int, lanes: int) -> int:
    """Number of whole vectors, and of those of halving widths for the remainder."""
    return width // lanes + (width % lanes).bit_count()


def _plain(op: Op, parts: int) -> Cycles:
    """The compiler's own loop over the dense columns, started for every entry. SpMM stores the row
    of the result each time; the dot products of SDDMM are independent."""
    if op.name == "sddmm":
        return Cycles(max(1.0 * parts, 2.0) + _SUM + _LOOP / 2, _LOOP)
    return Cycles(1.0 * parts + _LOOP, parts + _LOOP)


def _waiting(cycles: float, operations: float, length: float) -> float:
    """Latency per step not hidden by later segments: `cycles` that each step of a segment waits for
    the previous one, with so many operations."""
    return cycles * min(1.0, length * operations / _IN_FLIGHT)


def _tile(ex: Execution, parts: int, unroll: int, registers: int, length: float) -> Cycles:
    """SpMM with a tile of dense columns in registers: one sum per row of a block and vector."""
    r, c = ex.block
    sums = r * parts
    sets = unroll if unroll * sums <= registers // 2 + 2 else 1
    loads, multiplies = c * parts + r * c, r * c * parts
    waiting = _waiting(_LATENCY * c / sets, loads + multiplies + 2, length)
    work = max(loads / _LOADS, multiplies / _MULTIPLIES, waiting)
    if sums > registers:
        work += (sums - registers) * c
    return Cycles(work + 2.0 / unroll, _LOOP + 1.5 * sums * sets)


def _dots(ex: Execution, parts: int, unroll: int, *, several: bool) -> Cycles:
    """SDDMM: a sum per value of a block; with several tiles, results are accumulated."""
    r, c = ex.block
    in_registers = r * parts <= _HELD
    loads = (c + (0 if in_registers else r)) * parts
    cells = r * c * unroll
    fours = cells // 4 * 4
    sums = (fours * _SUM_OF_FOUR + (cells - fours) * _SUM) / unroll
    work = max(loads / _LOADS, r * c * parts / _MULTIPLIES)
    return Cycles(work + sums + (1.0 * r * c if several else 0.0), _LOOP + r * parts / _LOADS)


def _spmv(config: Mapping[str, Any], ex: Execution, lanes: int, length: float) -> Cycles:
    r, c = ex.block
    if ex.slice:
        # Every lane is loaded separately and inserted.
        return Cycles(1.6, _LOOP + 1.5 * ex.slice)
    if r * c > 1:
        wide = c if c > 1 else r
        steps = r * c / min(wide, lanes)
        sums = r * _SUM / 2 if c > 1 else 0.0
        waiting = _waiting(_LATENCY, 2 * steps + 3, length)
        return Cycles(max(steps, waiting) + 1.0, _LOOP + sums + r)
    if config.get("format") == "csc":
        return Cycles(2.0, _LOOP)
    side = int(config.get("lanes", 1))
    ways = side * int(config.get("unroll", 1))
    waiting = _waiting(_LATENCY, 4, length)
    each = max(1.6 if side > 1 else 1.5, waiting / ways)
    # The remainder of a row is added one by one, each addition waiting for the last.
    left = min(length, (ways - 1) / 2) * max(waiting - each, 0.0)
    return Cycles(each, _LOOP + (_SUM if side > 1 else 0.0) + left)


#: Seconds for scheduling a chunk of work; a piece of a row costs two: an addition to a shared sum
#: too.
_CHUNK_S = 5e-8


class Roofline:
    """The model of one pattern: visiting orders are cached, so that many configurations are cheap.

    Not modelled: cache conflicts, prefetching, address translation, reordering by RCM (rows are
    taken in their own order), and NUMA placement.
    """

    def __init__(self, pattern: Pattern, machine: Machine) -> None:
        self._pattern, self._machine = pattern, machine
        self._part = middle_of(pattern, _LOOKED_AT)
        self._walks: dict[tuple[Execution, bool], Walk] = {}
        self._shares: dict[tuple[Any, ...], float] = {}

    def seconds(
        self, platform: Platform, op: Op, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c], of one call with warm caches. Raises: UsageError for a platform without a
        loop nest for this op; MissingDependency without numba."""
        return np.array([self._of(platform, op, config) for config in configs], dtype=np.float64)

    def _of(self, platform: Platform, op: Op, config: Mapping[str, Any]) -> float:
        threads = self._machine.threads
        ex, _ = execution_of(platform, op, config, pattern=self._pattern, threads=threads)
        walk, nnz = self.walk(ex, op), self._pattern.nnz
        cycles = cycles_of(
            op,
            config,
            ex,
            vector_bytes=self._machine.vector_bytes,
            length=walk.segment_length,
        )
        share = self._busiest(ex, op)
        visited = nnz * (walk.stored if ex.slice else walk.blocks) * cycles.each
        visited += nnz * walk.segments * cycles.row
        compute = share * visited / self._machine.hertz
        # Transfers as if one thread did everything, at its part of the total rate: the number of
        # outstanding misses of a core limits its memory rate even when it is alone.
        levels = (self._machine.caches, self._machine.bytes_s, (ex.threads, ex.threads, 1))
        transfer = share * max(
            self._moved(ex, op, config, walk, size, apart) * threads / rate
            for size, rate, apart in zip(*levels, strict=True)
        )
        return max(compute, transfer) + self._overhead(ex, config, walk)

    def walk(self, ex: Execution, op: Op) -> Walk:
        """Walk of an execution, cached, whatever its tiles of dense columns, strips, schedule."""
        key = _bare(ex), op.width == 1
        if key not in self._walks:
            self._walks[key] = walk_of(self._part, key[0], scalar=key[1])
        return self._walks[key]

    # -- what threads share out --------------------------------------------------------------------

    def _busiest(self, ex: Execution, op: Op) -> float:
        """Fraction of the work of the busiest thread, tasks being rows or columns."""
        if ex.threads == 1:
            return 1.0
        if ex.tiles_parallel:
            count = tiling_of(ex, op.width).count
            return -(-count // ex.threads) / count
        if ex.pieces:
            return max(1.0 / ex.threads, 1.0 / max(self._pattern.nnz, 1))
        columns = by_columns(ex)
        together = max(1 if columns else ex.nest.splits[0], ex.block[0], ex.slice)
        key = (ex.by_length, columns, together, ex.schedule, ex.chunk, ex.threads)
        if key not in self._shares:
            work = self._columns if columns else self._rows
            work = np.sort(work)[::-1] if ex.by_length else work
            work = np.add.reduceat(work, np.arange(0, work.size, together)) if work.size else work
            owner = assign(np.ascontiguousarray(work), np.array([0, work.size]), ex)
            total = max(float(work.sum()), 1.0)
            busy = np.bincount(owner, weights=work, minlength=ex.threads)
            self._shares[key] = max(float(busy.max()) / total, 1.0 / ex.threads)
        return self._shares[key]

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """Work of each row: its entries, and about one more for the row itself."""
        work: NDArray[np.int64] = np.diff(self._pattern.indptr).astype(np.int64) + 1
        return work

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        return np.bincount(self._pattern.indices, minlength=self._pattern.shape[1]) + 1

    def _overhead(self, ex: Execution, config: Mapping[str, Any], walk: Walk) -> float:
        if ex.threads == 1:
            return 0.0
        seconds = self._machine.wake_s * walk.phases
        if config.get("merge") == "private":
            seconds += self._machine.wake_s
        if ex.pieces:
            seconds += 2 * _CHUNK_S * ex.pieces
        elif ex.schedule == "dynamic":
            tasks = self._pattern.nnz * walk.segments / max(ex.nest.splits[0], 1)
            seconds += _CHUNK_S * tasks / max(ex.chunk, 1)
        elif ex.schedule == "guided":
            seconds += _CHUNK_S * 20 * ex.threads
        return seconds

    # -- what moves --------------------------------------------------------------------------------

    def _moved(
        self,
        ex: Execution,
        op: Op,
        config: Mapping[str, Any],
        walk: Walk,
        size: float,
        apart: int,
    ) -> float:
        """Bytes from behind a cache of `size` bytes, one per group of `apart` threads; none where
        everything stays in it between calls."""
        value, (m, n) = VALUE_BYTES[op.dtype], self._pattern.shape
        row, nnz = op.width * value, self._pattern.nnz
        matrix = walk.matrix_bytes * nnz
        scattered = config.get("format") == "csc"
        reached, streamed = (m, n) if scattered else (min(n, nnz), m)
        result = nnz * walk.stored * value if op.name == "sddmm" else 0.0
        footprint = (matrix + result + streamed * row) / apart + reached * row
        if footprint <= size:
            return 0.0
        tiling = tiling_of(ex, op.width)
        passes = tiling.count if tiling.outside else 1
        again = matrix * passes if matrix / apart > size else matrix
        # The operand that is read row by row: once for each segment that needs it.
        met = max(walk.segments * nnz, streamed) if walk.phases > 1 else streamed
        written = 2.0 if op.name != "sddmm" and not scattered else 1.0
        missed = self._missed(ex, op, walk, size, reached)
        other = 2.0 if scattered and op.name != "sddmm" else 1.0
        moved = again + 2 * result + met * row * written + missed * other
        if config.get("merge") == "private":
            moved += 3.0 * ex.threads * m * row
        return float(moved)

    def _missed(self, ex: Execution, op: Op, walk: Walk, size: float, reached: int) -> float:
        """Bytes of the operand that is reached by index: first accesses, and those after too many
        other units. Tiles of dense columns inside all rows make units narrow."""
        value = VALUE_BYTES[op.dtype]
        row, tiling = max(op.width * value, 1), tiling_of(ex, op.width)
        scale = self._pattern.nnz * walk.blocks / max(walk.curve.length, 1)
        whole = max(row * ex.block[1], LINE_BYTES)
        narrow = max(tiling.columns * value * ex.block[1], LINE_BYTES)
        room = size / 2  # the other half is streamed data
        if tiling.outside:
            # Every tile is a separate pass over all rows.
            again = walk.curve.misses(room / narrow) * tiling.count * narrow
        elif tiling.count > 1 and ex.nest.splits[0] > 1:
            # Within a strip of rows one tile of every column is visited, then the next.
            strip = int(ex.nest.splits[0] * walk.segment_length)
            near = walk.curve.misses(room / narrow) - walk.curve.misses(room / narrow, beyond=strip)
            again = (near + walk.curve.misses(room / whole, beyond=strip)) * whole
        else:
            again = walk.curve.misses(room / whole) * whole
        return float(again * scale + reached * row)


# -- Accesses of a walk over a pattern, and the misses in a cache of any size ---------------------


@dataclass(frozen=True, eq=False)
class ReuseCurve:
    """Average footprint of a trace of `length` accesses to `units` distinct units.

    Shapes: `times` int64[length - units], ascending: accesses between two of one unit, the later
    one included. `gaps` int64[length + units], ascending: these, and from the ends of the trace to
    each unit's first and last access.

    Source: Xiang, Ding, Luo, Bao, "HOTL: a higher order theory of locality", ASPLOS 2013, Section
    2.2: O(t log t) without a tree; `embeddb.dynamics.traffic.reuse` is exact.
    """

    length: int
    units: int
    times: NDArray[np.int64]
    gaps: NDArray[np.int64]

    @classmethod
    def of(cls, trace: NDArray[np.int64]) -> ReuseCurve:
        """Curve of units int64[t] in the order of access."""
        at = np.argsort(trace, kind="stable")
        ordered, steps = trace[at], np.diff(at)
        same = ordered[1:] == ordered[:-1]
        edge = np.flatnonzero(~same)
        ends = [at[-1:], at[edge]] if trace.size else []
        starts = [at[:1], at[edge + 1]] if trace.size else []
        first = np.concatenate([np.zeros(0, np.int64), *starts]) + 1
        last = trace.size - np.concatenate([np.zeros(0, np.int64), *ends])
        times = np.sort(steps[same])
        return cls(trace.size, first.size, times, np.sort(np.concatenate([times, first, last])))

    def footprint(self, window: int) -> float:
        """Mean number of distinct units in windows of so many accesses."""
        if window >= self.length:
            return float(self.units)
        longer = self.gaps[np.searchsorted(self.gaps, window, side="right") :]
        missed = float(longer.sum()) - window * longer.size
        return self.units - missed / (self.length - window + 1)

    def window(self, units: float) -> int:
        """The longest window whose mean footprint is at most so many units."""
        if units >= self.units:
            return self.length
        low, high = 0, self.length
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.footprint(middle) <= units else (low, middle)
        return low

    def misses(self, units: float, *, beyond: int = 0) -> int:
        """Repeated accesses that miss an LRU cache of so many units, with more than `beyond`
        accesses between; first accesses are not counted."""
        longest = max(self.window(units), beyond)
        return int(self.times.size - np.searchsorted(self.times, longest, side="right"))


#: Number of entries whose visiting order is analysed; beyond, rows in the middle are taken.
_LOOKED_AT = 1 << 17
#: Size in bytes of a value of the matrix and of a vector of one dense column.
_VALUE = 4


@dataclass(frozen=True, eq=False)
class Walk:
    """Reuse of the operand that is reached by index; a unit is one of its rows (of a block of them;
    a cache line where a row is one value). `stored` values, `blocks` (entries where there are
    none), `segments` and `matrix_bytes` are per non-zero; `phases` have barriers between them."""

    curve: ReuseCurve
    stored: float
    blocks: float
    segments: float
    matrix_bytes: float
    phases: int

    @property
    def segment_length(self) -> float:
        """Mean number of blocks of a segment."""
        return self.blocks / max(self.segments, 1e-9)


def walk_of(part: Pattern, ex: Execution, *, scalar: bool) -> Walk:
    """Walk over a pattern; `scalar`: a row of the operand is one value."""
    entries = entries_of(part, ex)
    trace = entries.rows if by_columns(ex) else entries.columns
    if scalar:
        trace = trace * ex.block[1] * _VALUE // LINE_BYTES
    nnz = max(part.nnz, 1)
    return Walk(
        ReuseCurve.of(trace),
        entries.stored / nnz,
        entries.rows.size / nnz,
        entries.work.size / nnz,
        matrix_bytes(entries, ex, _VALUE) / nnz,
        max(1, entries.starts.size - 1),
    )


def by_columns(ex: Execution) -> bool:
    """Return true if whole columns of the matrix are outermost, rather than rows or panels."""
    outer = next(name for name in ex.nest.names if name[0] in "ij")
    return outer == "j2" and ex.nest.splits[1] == 1


def _bare(ex: Execution) -> Execution:
    """The execution reduced to the properties that decide the order of rows and columns."""
    outer = next(name for name in ex.nest.names if name[0] in "ij")
    bare = plain(1)
    if outer == "j2":
        panel = ex.nest.splits[1]
        loops = ("j2", "i2", "k2") if panel == 1 else ("j2", "i2", "k2", "j1")
        bare = replace(bare, nest=LoopNest((1, panel, 1, 1), complete_order(loops)))
    fields = ("block", "slice", "sigma", "padded", "by_length", "index_bytes")
    return replace(bare, **{name: getattr(ex, name) for name in fields})
