"""The child process that runs one nest and counts.

Counters are opened for the threads of OpenMP one by one, by their numbers of the system, once the
first parallel region has made them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import RunnerUnavailable
from embeddb.nests.nest import Nest
from indexer.runners.harness.serving import Reply, serve
from indexer.runners.harness.worker import Libraries
from indexer.runners.nest_code.job import NestJob
from indexer.runners.nest_code.sending import received
from indexer.runners.nest_counters.events import Event
from indexer.runners.nest_counters.perf import Kernel, Linux, count_threads, events_here

__all__ = ["count", "main"]

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
    """float64[threads,e]: what each thread counts of each event, in one call of a function of a
    shared object (`indexer.runners.nest_code.library`). Threads that the call does not use count 0.

    Raises: OSError where an event cannot be opened.
    """
    job, libraries = NestJob(nest, 0), Libraries()

    def call(function: int = which) -> None:
        libraries.call(library, function, job.arrays, threads)

    before = _threads()
    call()
    made = [os.getpid(), *sorted(_threads() - before)]
    moved = sum(array.bytes for array in nest.arrays)
    for _ in range(min(_MOST_WARM, _WARM_BYTES // moved)):
        call()
    counts = np.zeros((max(threads, len(made)), len(events)))
    counts[: len(made)] = count_threads(
        call,
        made,
        events,
        kernel=kernel,
        idle=lambda: call(-1),  # there is none: all but the nest itself
        prepare=lambda: job.restore(all=False),
    )
    return counts


def _threads() -> frozenset[int]:
    return frozenset(int(task.name) for task in _TASKS.iterdir())


def _answer(request: Reply, payload: bytes) -> Reply:
    events = events_here()
    assert events is not None, "asked for counters of a processor that has none"
    nest, told = received(payload), {key: request[key] for key in ("threads", "which")}
    try:
        counts = count(nest, request["library"], kernel=Linux(), events=events.events, **told)
    except OSError as error:
        return {"status": "machine", "error": f"counters cannot be read: {error.strerror}"}
    return {"status": "ok", "counts": [[float(x) for x in row] for row in counts]}


def main() -> None:
    """Serve until stdin ends."""
    serve(_answer, machine=(OSError, RunnerUnavailable))


if __name__ == "__main__":
    main()
