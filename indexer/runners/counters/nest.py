"""Counters of loop nests: of the hardware where available, else of simulated caches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound, RunnerUnavailable, UsageError
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import COUNTERS, CounterVector
from embeddb.nests.nest import Nest
from indexer.runners.counters.caches import Caches, caches_here
from indexer.runners.counters.model import model_counts
from indexer.runners.counters.perf import (
    FLOPS,
    Event,
    Events,
    Kernel,
    Linux,
    available,
    count_threads,
    events_here,
)
from indexer.runners.harness.serving import Reply, serve
from indexer.runners.harness.worker import Libraries
from indexer.runners.harness.worker_process import WorkerProcess
from indexer.runners.nest_code.job import NestJob, build_all, bytes_needed, parts_of, received


def count_nest(
    nest: Nest, *, threads: int, source: str = "auto", caches: Caches | None = None
) -> CounterVector:
    """Counters of the canonical schedule of a nest, on so many threads.

    `source`: `perf`, `model`, or `auto` for `perf` where the machine has counters and `model`
    elsewhere; `caches` are those of the model, by default this machine's.

    Raises: NothingFound where nothing can be counted; RunnerUnavailable without a compiler;
    UsageError for an unknown source; NestError for a nest whose matrices are missing.
    """
    if source not in ("auto", "perf", "model"):
        raise UsageError(f"source {source!r} is none of auto, perf, model")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    why_not = available() if source != "model" else ""
    if source == "perf" and why_not:
        raise NothingFound(why_not, hint="--source model simulates the caches")
    if why_not is None:
        return perf_counts(nest, threads=threads)
    parallel = canonical_schedule(nest).parallel != "none"
    return model_counts(nest, threads=threads, caches=caches or caches_here(), parallel=parallel)


_WORKER = "indexer.runners.counters.nest"
_TIMEOUT_S = 120.0
_MOST_BYTES = 8 << 30


def perf_counts(nest: Nest, *, threads: int) -> CounterVector:
    """Counters of each thread in a run with warm caches, the median of three.

    Raises: NothingFound if this processor or this nest cannot be counted; RunnerUnavailable without
    a compiler, or if events cannot be opened; NestError without its matrices.
    """
    nest.require_matrices()
    events = events_here()
    if events is None:
        raise NothingFound("the counter events of this processor are unknown")
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
        session = WorkerProcess(_WORKER, env=env)
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
    """float64[threads,19] from counts by event, float64[threads,e]; nan for counters without an
    event. Floating operations of an event without a type are those of the nest's only floating
    type; with two types they are left out."""
    counters = np.full((len(counts), len(COUNTERS)), np.nan)
    for event, column in zip(events.events, counts.T, strict=True):
        if event.counter != FLOPS:
            counters[:, COUNTERS.index(event.counter)] = column
            continue
        types = _floating(nest)
        if len(types) < 2:
            for dtype in ("f32", "f64"):
                counters[:, COUNTERS.index(f"{dtype}_scalar")] = column if dtype in types else 0
    return counters


def _floating(nest: Nest) -> Sequence[str]:
    return sorted({a.dtype for a in nest.arrays} & {"f32", "f64"})


_TASKS = Path("/proc/self/task")
#: Bytes that the calls ahead of the counted ones move, and how many they are at most: twice the
#: second cache ("Performance Embeddings", Section 3.3).
_WARM_BYTES, _MOST_WARM = 2 << 20, 1000


def count(
    nest: Nest,
    library: str,
    *,
    threads: int,
    kernel: Kernel,
    events: Sequence[Event],
    which: int = 0,
) -> NDArray[np.float64]:
    """float64[threads,e]: counts of each thread and event in one call of a function of a shared
    object (`indexer.runners.nest_code.job`). Threads that the call does not use count 0.

    Raises: OSError if an event cannot be opened.
    """
    job, libraries = NestJob(nest, 0), Libraries()

    def call(function: int = which) -> None:
        libraries.call(library, function, job.arrays, threads)

    before = _threads()
    call()
    thread_ids = [os.getpid(), *sorted(_threads() - before)]
    moved = sum(array.bytes for array in nest.arrays)
    for _ in range(min(_MOST_WARM, _WARM_BYTES // moved)):
        call()
    counts = np.zeros((max(threads, len(thread_ids)), len(events)))
    counts[: len(thread_ids)] = count_threads(
        call,
        thread_ids,
        events,
        kernel=kernel,
        idle=lambda: call(-1),  # no such function: the overhead without the nest
        prepare=lambda: job.restore(all=False),
    )
    return counts


def _threads() -> frozenset[int]:
    return frozenset(int(task.name) for task in _TASKS.iterdir())


def _answer(request: Reply, payload: bytes) -> Reply:
    events = events_here()
    assert events is not None, "the processor has no known counters"
    nest, arguments = received(payload), {key: request[key] for key in ("threads", "which")}
    try:
        counts = count(nest, request["library"], kernel=Linux(), events=events.events, **arguments)
    except OSError as error:
        return {"status": "machine", "error": f"counters cannot be read: {error.strerror}"}
    return {"status": "ok", "counts": [[float(x) for x in row] for row in counts]}


def main() -> None:
    """Serve until stdin ends."""
    serve(_answer, machine=(OSError, RunnerUnavailable))


if __name__ == "__main__":
    main()
