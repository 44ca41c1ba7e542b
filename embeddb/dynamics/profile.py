"""Dynamic features without a run: from the pattern, the loop nest and the cache sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.errors import UsageError
from embeddb.dynamics.record import LINE_BYTES, TABLE_5, Cache, Counter, Dynamics, ReuseHistogram
from embeddb.dynamics.traffic import LEVELS, TYPES, VALUE_BYTES, Parts, assign, by_thread, reuse_of
from embeddb.dynamics.walk import (
    SCHEDULES,
    Execution,
    Tasks,
    Tiling,
    entries_of,
    tasks_of,
    tiling_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern

#: Number of accesses to dense rows above which a window of each thread's entries is sampled.
MAX_ACCESSES = 8_000_000
#: Largest pattern: the walk needs about 100 bytes per non-zero.
MAX_NNZ = 100_000_000
_RUN = "needs a run: --cachegrind or --perf"
_LANES = "the compiler chooses vector widths; only perf on a processor with such events counts them"


def profile(
    pattern: Pattern,
    op: Op,
    ex: Execution,
    *,
    caches: Sequence[Cache],
    max_accesses: int = MAX_ACCESSES,
) -> Dynamics:
    """All features that follow from the pattern, the loop nest and the cache sizes.

    The counters are for one call from cold caches, all threads together. The caches are fully
    associative LRU without prefetching; they are simulated for the dense rows, while the sparse
    matrix and SDDMM's result are streamed. A modified line is written back when it is evicted.

    Raises: UsageError for a pattern of more than `MAX_NNZ` non-zeros or an unknown value type;
    MissingDependency without numba.
    """
    if pattern.nnz > MAX_NNZ:
        raise UsageError(f"{pattern.nnz} non-zeros exceed the limit of {MAX_NNZ}")
    if op.dtype not in VALUE_BYTES:
        raise UsageError(f"the size of value type {op.dtype} is unknown")
    entries = entries_of(pattern, ex)
    tasks, tiling = tasks_of(entries, ex), tiling_of(ex, op.width)
    owner = assign(tasks.work, tasks.starts, ex)
    reuse = reuse_of(
        entries, owner[tasks.of], ex=ex, op=op, caches=caches, max_accesses=max_accesses
    )
    parts = Parts(pattern, op, ex, entries, tasks, owner, tiling, reuse, tuple(caches))
    threads = by_thread(parts)
    # The value type that an op does not have has no arithmetic.
    _, other = TYPES.get(op.dtype, ("", ""))
    names = [name for name in TABLE_5 if other and name.endswith(other)]
    counters = {name: Counter(0.0, "instructions", "model") for name in names} | _lines(threads)
    missing = {name: _reason(name) for name in TABLE_5 if name not in counters}
    counts = reuse.counts.sum(axis=0)
    top = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
    histogram = ReuseHistogram(
        tuple(round(x) for x in counts[:top]),
        round(float(reuse.cold.sum())),
        reuse.unit_bytes,
        reuse.share,
    )
    sampled = (
        f"more than {max_accesses} accesses: reuse is from a window of each thread's entries, "
        f"{100 * reuse.share:.3g} % of all, and its misses are an upper estimate"
    )
    notes = () if reuse.share == 1 else (sampled,)
    return Dynamics(counters, missing, _quantities(parts, counters), histogram, threads, notes)


def imbalance(tasks: Tasks, ex: Execution, tiling: Tiling) -> float:
    """Load of the busiest thread over the mean, in stored values, with the barriers between panels:
    1 is perfect, the number of threads the worst."""
    if ex.tiles_parallel:
        return -(-tiling.count // ex.threads) * ex.threads / tiling.count
    owner = assign(tasks.work, tasks.starts, ex)
    phase = np.repeat(np.arange(tasks.starts.size - 1), np.diff(tasks.starts))
    phases = max(tasks.starts.size - 1, 1)
    busy = np.bincount(
        phase * ex.threads + owner, weights=tasks.work, minlength=phases * ex.threads
    )
    longest = float(busy.reshape(phases, ex.threads).max(axis=1).sum())
    mean = float(tasks.work.sum()) / ex.threads
    return longest / mean if mean else 1.0


def _lines(counts: NDArray[np.float64]) -> dict[str, Counter]:
    """Lines into and out of each level, all threads together."""
    counters = {}
    for name in (name for names in LEVELS.values() for name in names):
        lines = counts[:, TABLE_5.index(name)].sum()
        if not np.isnan(lines):
            counters[name] = Counter(float(round(lines)), "lines", "simulated")
    return counters


def _quantities(p: Parts, counters: Mapping[str, Counter]) -> dict[str, Counter]:
    """Amounts and ratios. Data locality Q/D at each level is compulsory bytes over those that pass
    into and out of it, at most 1. ("Performance Embeddings", Section 4, has a lower bound of I/O in
    place of compulsory bytes, and main memory alone.)"""
    least, most = _bytes(p)
    quantities = {
        "flops": Counter(p.flops, "flops", "model"),
        "flops_stored": Counter(p.flops_stored, "flops", "model", "with the padding of the format"),
        "bytes_compulsory": Counter(least, "bytes", "model", "every operand once"),
        "bytes_no_reuse": Counter(most, "bytes", "model", "every access from memory"),
    }
    accesses = float(p.reuse.accesses.sum())
    for at, cache in enumerate(p.caches):
        ratio = float(p.reuse.misses[:, at].sum()) / accesses if accesses else 0.0
        name = f"miss_ratio_l{cache.level}"
        quantities[name] = Counter(ratio, "ratio", "simulated", "of accesses to dense rows")
    for name, value in _imbalances(p).items():
        quantities[name] = Counter(value, "ratio", "simulated", "busiest thread over mean")
    for cache in p.caches:
        moved = LINE_BYTES * sum(counters[name].value for name in LEVELS[cache.level])
        share = min(1.0, least / moved) if moved else 1.0
        name = f"locality_l{cache.level}"
        quantities[name] = Counter(share, "ratio", "simulated", "compulsory bytes over moved ones")
    return quantities


def _bytes(p: Parts) -> tuple[int, int]:
    """Bytes with every operand read once, and with every access to a dense row from memory."""
    row = p.op.width * p.value
    columns = int(np.unique(p.pattern.indices).size)
    rows = int(np.count_nonzero(np.diff(p.pattern.indptr))) if p.sampled else p.pattern.shape[0]
    result = p.entries.stored * p.value if p.sampled else 0
    least = p.matrix + (columns + rows) * row + result
    touched = p.reuse.accesses * p.tiling.columns * p.value
    again = 0.0 if p.sampled else max(0.0, float(touched[1]) - rows * row)
    most = (p.matrix + result) * p.tiling.count + float(touched.sum()) + again
    return least, max(least, round(most))


def _imbalances(p: Parts) -> dict[str, float]:
    """Imbalance of this execution, and of the same segments under each schedule."""
    ratios = {"imbalance": imbalance(p.tasks, p.ex, p.tiling)}
    base = replace(p.ex, pieces=0, tiles_parallel=False)
    tasks = tasks_of(p.entries, base)
    for schedule in SCHEDULES:
        chunk = p.ex.chunk if p.ex.schedule == schedule and not p.ex.pieces else 0
        ex = replace(base, schedule=schedule, chunk=chunk)
        ratios[f"imbalance_{schedule}"] = imbalance(tasks, ex, p.tiling)
    split = replace(base, pieces=max(p.ex.pieces, 1), schedule="dynamic", chunk=1)
    ratios["imbalance_position"] = imbalance(tasks_of(p.entries, split), split, p.tiling)
    return ratios


def _reason(name: str) -> str:
    if name.startswith("FP_ARITH"):
        return _LANES
    return "the size of this cache is unknown" if name.startswith(("L", "CAS")) else _RUN
