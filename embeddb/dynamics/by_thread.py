"""The counters that are simulated thread by thread: what each thread's caches move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embeddb.dynamics.caches import LINE_BYTES, Cache
from embeddb.dynamics.record import TABLE_5
from embeddb.dynamics.traffic import VALUE_BYTES, Reuse, matrix_bytes, tile_shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.dynamics.execution import Execution
    from embeddb.dynamics.walk import Entries, Tasks, Tiling

__all__ = ["LEVELS", "TYPES", "Parts", "by_thread"]

#: By level, the counters of lines into it and out of it.
LEVELS = {
    1: ("L1D_REPLACEMENT", "L1D_M_EVICT"),
    2: ("L2_LINES_IN_ALL", "L2_TRANS_L2_WB"),
    3: ("CAS_COUNT_RD", "CAS_COUNT_WR"),
}
#: By value type, the counter of its scalar arithmetic, and what those of the other type end with.
TYPES = {
    "f32": ("FP_ARITH_INST_RETIRED_SCALAR_SINGLE", "DOUBLE"),
    "f64": ("FP_ARITH_INST_RETIRED_SCALAR_DOUBLE", "SINGLE"),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """One execution, walked over and simulated."""

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
        """SDDMM: the result lies beside the sparse matrix."""
        return self.op.kernel == "sddmm"


def by_thread(p: Parts) -> NDArray[np.float64]:
    """float64[threads, 19], nan where nothing is known: lines of 64 bytes that enter and leave each
    level, and arithmetic, which is told as scalar because its width is the compiler's choice."""
    found = np.full((p.ex.threads, len(TABLE_5)), np.nan)
    own, scalar, other = _work_shares(p), *TYPES.get(p.op.dtype, ("", ""))
    for at, name in enumerate(TABLE_5):
        if other and name.endswith(other):
            found[:, at] = 0.0
        elif name == scalar:
            found[:, at] = own * p.flops_stored
    # A row without entries is not walked over, but its part of the result is written.
    empty = p.pattern.shape[0] - int(np.count_nonzero(np.diff(p.pattern.indptr)))
    zeros = 0.0 if p.sampled else empty * p.op.width * p.value / LINE_BYTES
    for at, cache in enumerate(p.caches):
        columns, rows = p.reuse.by_thread[:, :, at].T * p.reuse.unit_lines
        rows = rows + zeros * _task_shares(p)
        passes = _passes(p, cache)
        result = own * passes * p.entries.stored * p.value / LINE_BYTES * p.sampled
        read = columns + rows + own * passes * p.matrix / LINE_BYTES + result
        written = result if p.sampled else rows
        for name, lines in zip(LEVELS[cache.level], (read, written), strict=True):
            found[:, TABLE_5.index(name)] = lines
    return found


def _work_shares(p: Parts) -> NDArray[np.float64]:
    """float64[threads]: of the stored values, what each thread computes with."""
    if p.ex.tiles_parallel:
        return tile_shares(p.tiling, p.ex.threads)
    work = np.bincount(p.owner, weights=p.tasks.work, minlength=p.ex.threads)
    return work / max(float(work.sum()), 1.0)


def _task_shares(p: Parts) -> NDArray[np.float64]:
    """float64[threads]: of the tasks, what each thread gets."""
    if p.ex.tiles_parallel:
        return tile_shares(p.tiling, p.ex.threads)
    tasks = np.bincount(p.owner, minlength=p.ex.threads).astype(np.float64)
    return tasks / max(float(tasks.sum()), 1.0)


def _passes(p: Parts, cache: Cache) -> int:
    """How often the sparse matrix comes from behind a cache: once per tile of dense columns,
    unless what one thread touches between two tiles stays in the cache."""
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
