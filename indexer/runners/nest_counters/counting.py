"""Counters of a nest, from whatever can count here."""

from __future__ import annotations

from embeddb.core.errors import NothingFound, UsageError
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import CounterVector
from embeddb.nests.nest import Nest
from indexer.runners.nest_counters.caches import Caches, caches_here
from indexer.runners.nest_counters.measured import perf_counts
from indexer.runners.nest_counters.model import model_counts
from indexer.runners.nest_counters.perf import available

__all__ = ["count_nest"]


def count_nest(
    nest: Nest, *, threads: int, source: str = "auto", caches: Caches | None = None
) -> CounterVector:
    """Counters of the canonical schedule of a nest, on so many threads. `source`: `perf`, `model`,
    or `auto` for `perf` where the machine has counters and `model` elsewhere; `caches` are those
    of the model, this machine's unless given.

    Raises: NothingFound where nothing can be counted; RunnerUnavailable without a compiler;
    UsageError for a source that is none; NestError for a nest whose matrices are not there.
    """
    if source not in ("auto", "perf", "model"):
        raise UsageError(f"source {source!r} is none of auto, perf, model")
    if threads < 1:
        raise UsageError(f"{threads} threads count nothing")
    why_not = available() if source != "model" else ""
    if source == "perf" and why_not:
        raise NothingFound(why_not, hint="--source model simulates the caches")
    if why_not is None:
        return perf_counts(nest, threads=threads)
    parallel = canonical_schedule(nest).parallel != "none"
    return model_counts(nest, threads=threads, caches=caches or caches_here(), parallel=parallel)
