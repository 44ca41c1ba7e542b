"""Seconds of a configuration on a pattern: the larger of what the busiest thread computes and what
it moves between the levels of memory, and what waking threads and handing out work costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.dynamics.caches import LINE_BYTES
from embeddb.dynamics.counting import assign
from embeddb.dynamics.execution import Execution, execution_of
from embeddb.dynamics.roofline.cycles import cycles_of
from embeddb.dynamics.roofline.machine import Machine
from embeddb.dynamics.roofline.walks import Walk, Walks, by_columns
from embeddb.dynamics.traffic import VALUE_BYTES
from embeddb.dynamics.walk import tiling_of
from embeddb.platforms.platform import Platform

__all__ = ["Roofline"]

#: Handing out a chunk of work; a piece of a row takes that, and an addition to a shared sum.
_CHUNK_S = 5e-8


class Roofline:
    """The model of one pattern: orders of visits are kept, so that many configurations cost little.

    What it leaves out: conflicts in caches, prefetching, translation of addresses, reordering by
    RCM (rows are taken in their own order), and which thread's data lie where.
    """

    def __init__(self, pattern: Pattern, machine: Machine) -> None:
        self._pattern, self._machine = pattern, machine
        self._walks = Walks(pattern)
        self._shares: dict[tuple[Any, ...], float] = {}

    def seconds(
        self, platform: Platform, op: Op, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c], of one call with warm caches.

        Raises: UsageError for a platform without a loop nest for this op; MissingDependency without
        numba.
        """
        return np.array([self._of(platform, op, config) for config in configs], dtype=np.float64)

    def _of(self, platform: Platform, op: Op, config: Mapping[str, Any]) -> float:
        threads = self._machine.threads
        ex, _ = execution_of(platform, op, config, pattern=self._pattern, threads=threads)
        walk, nnz = self._walks.of(ex, op), self._pattern.nnz
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
        transfer = share * self._transfer(ex, op, config, walk)
        return max(compute, transfer) + self._overhead(ex, config, walk)

    # -- what threads share out --------------------------------------------------------------------

    def _busiest(self, ex: Execution, op: Op) -> float:
        """The share of the work that the busiest thread has, tasks being rows or columns."""
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
            starts = np.array([0, work.size])
            owner = assign(
                np.ascontiguousarray(work),
                starts,
                schedule=ex.schedule,
                chunk=ex.chunk,
                threads=ex.threads,
            )
            total = max(float(work.sum()), 1.0)
            busy = np.bincount(owner, weights=work, minlength=ex.threads)
            self._shares[key] = max(float(busy.max()) / total, 1.0 / ex.threads)
        return self._shares[key]

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """An entry, and what a row costs besides: about as much."""
        found: NDArray[np.int64] = np.diff(self._pattern.indptr).astype(np.int64) + 1
        return found

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        return np.bincount(self._pattern.indices, minlength=self._pattern.shape[1]) + 1

    def _overhead(self, ex: Execution, config: Mapping[str, Any], walk: Walk) -> float:
        if ex.threads == 1:
            return 0.0
        found = self._machine.wake_s * walk.phases
        if config.get("merge") == "private":
            found += self._machine.wake_s
        if ex.pieces:
            found += 2 * _CHUNK_S * ex.pieces
        elif ex.schedule == "dynamic":
            tasks = self._pattern.nnz * walk.segments / max(ex.nest.splits[0], 1)
            found += _CHUNK_S * tasks / max(ex.chunk, 1)
        elif ex.schedule == "guided":
            found += _CHUNK_S * 20 * ex.threads
        return found

    # -- what moves --------------------------------------------------------------------------------

    def _transfer(self, ex: Execution, op: Op, config: Mapping[str, Any], walk: Walk) -> float:
        """Seconds if one thread did everything, at its part of the rate of all: the misses that a
        core can wait for at a time bound what it gets from memory, too, when it is alone."""
        found = 0.0
        levels = zip(
            self._machine.caches, self._machine.bytes_s, (ex.threads, ex.threads, 1), strict=True
        )
        for size, rate, apart in levels:
            moved = self._moved(ex, op, config, walk, size, apart)
            found = max(found, moved * self._machine.threads / rate)
        return found

    def _moved(
        self,
        ex: Execution,
        op: Op,
        config: Mapping[str, Any],
        walk: Walk,
        size: float,
        apart: int,
    ) -> float:
        """Bytes that come from behind a cache of `size` bytes, of which there are as many as
        threads work `apart`; none where everything stays in it from call to call."""
        value, (m, n) = VALUE_BYTES[op.dtype], self._pattern.shape
        row, nnz = op.width * value, self._pattern.nnz
        matrix = walk.matrix_bytes * nnz
        scattered = config.get("format") == "csc"
        reached, streamed = (m, n) if scattered else (min(n, nnz), m)
        result = nnz * walk.stored * value if op.kernel == "sddmm" else 0.0
        kept = (matrix + result + streamed * row) / apart + reached * row
        if kept <= size:
            return 0.0
        tiling = tiling_of(ex, op.width)
        passes = tiling.count if tiling.outside else 1
        again = matrix * passes if matrix / apart > size else matrix
        # The operand that is met row by row: once for each segment that it is met in.
        met = max(walk.segments * nnz, streamed) if walk.phases > 1 else streamed
        written = 2.0 if op.kernel != "sddmm" and not scattered else 1.0
        missed = self._missed(ex, op, walk, size, reached)
        other = 2.0 if scattered and op.kernel != "sddmm" else 1.0
        found = again + 2 * result + met * row * written + missed * other
        if config.get("merge") == "private":
            found += 3.0 * ex.threads * m * row
        return float(found)

    def _missed(self, ex: Execution, op: Op, walk: Walk, size: float, reached: int) -> float:
        """Bytes of the operand that is reached by index: first accesses, and those after too much
        else was touched. Tiles of dense columns inside of all rows make units narrow."""
        value = VALUE_BYTES[op.dtype]
        row, tiling = max(op.width * value, 1), tiling_of(ex, op.width)
        scale = self._pattern.nnz * walk.blocks / max(walk.curve.length, 1)
        whole = max(row * ex.block[1], LINE_BYTES)
        narrow = max(tiling.columns * value * ex.block[1], LINE_BYTES)
        room = size / 2  # the other half is what streams past
        if tiling.outside:
            # Every tile is a pass of its own over all rows.
            again = walk.curve.misses(room / narrow) * tiling.count * narrow
        elif tiling.count > 1 and ex.nest.splits[0] > 1:
            # Within a strip of rows one tile of every column is met, then the next.
            strip = int(ex.nest.splits[0] * walk.segment_length)
            near = walk.curve.misses(room / narrow) - walk.curve.misses(room / narrow, beyond=strip)
            again = (near + walk.curve.misses(room / whole, beyond=strip)) * whole
        else:
            again = walk.curve.misses(room / whole) * whole
        return float(again * scale + reached * row)
