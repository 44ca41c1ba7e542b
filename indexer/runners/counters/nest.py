"""Counters of loop nests: by the processor where it has counters, else by simulated caches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound, UsageError
from embeddb.nests.counters import COUNTERS, CounterVector
from embeddb.nests.nest import Nest
from embeddb.nests.rules import canonical_schedule
from indexer.runners.counters.caches import Caches, caches_here
from indexer.runners.counters.model import model_counts
from indexer.runners.counters.perf import FLOPS, Events, available, events_here
from indexer.runners.harness.session import Session
from indexer.runners.nest_code.job import bytes_needed
from indexer.runners.nest_code.library import build_all
from indexer.runners.nest_code.sending import parts_of

__all__ = ["by_counter", "count_nest", "perf_counts"]


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


_WORKER = "indexer.runners.counters.perf_worker"
_TIMEOUT_S = 120.0
_MOST_BYTES = 8 << 30


def perf_counts(nest: Nest, *, threads: int) -> CounterVector:
    """What each thread counts in a run with warm caches, the median of three.

    Raises: NothingFound where this processor or this nest cannot be counted; RunnerUnavailable
    without a compiler, or where events cannot be opened; NestError without its matrices.
    """
    nest.require_matrices()
    events = events_here()
    if events is None:
        raise NothingFound("the events of this processor are not known here")
    if bytes_needed(nest, check=False) > _MOST_BYTES:
        raise NothingFound(f"the arrays need more than {_MOST_BYTES} bytes")
    schedule = canonical_schedule(nest)
    env = {
        "OMP_WAIT_POLICY": "passive",
        "OMP_DYNAMIC": "false",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory(prefix="embeddb-") as name:
        built = build_all(nest, [schedule], Path(name))[schedule]
        if built.status != "ok":
            raise NothingFound(f"the nest cannot be counted: {built.error}")
        message = {"library": str(built.library), "which": built.which, "threads": threads}
        session = Session(_WORKER, env=env)
        try:
            session.ensure()
            reply = session.request(message, parts_of(nest), timeout_s=_TIMEOUT_S)
        finally:
            session.close()
    if reply["status"] != "ok":
        raise NothingFound(f"the nest cannot be counted: {reply.get('error', reply['status'])}")
    counts = by_counter(nest, events, np.array(reply["counts"], dtype=np.float64))
    about = f"{events.processor}, warm, median of 3" + (
        "" if schedule.parallel != "none" else ", no loop parallel"
    )
    return CounterVector.of_threads(counts, "perf", about=about)


def by_counter(nest: Nest, events: Events, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[threads,19] of what was counted by event, float64[threads,e]; nan for the counters
    that have no event. Floating operations whose type the processor does not tell are those of the
    nest's only floating type; of two, they are left out."""
    found = np.full((len(counts), len(COUNTERS)), np.nan)
    for event, column in zip(events.events, counts.T, strict=True):
        if event.counter != FLOPS:
            found[:, COUNTERS.index(event.counter)] = column
            continue
        types = _floating(nest)
        if len(types) < 2:
            for dtype in ("f32", "f64"):
                found[:, COUNTERS.index(f"{dtype}_scalar")] = column if dtype in types else 0
    return found


def _floating(nest: Nest) -> Sequence[str]:
    return sorted({a.dtype for a in nest.arrays} & {"f32", "f64"})
