"""Counters by the processor: the canonical schedule, compiled as the runner compiles it, run by a
process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import COUNTERS, CounterVector
from embeddb.nests.nest import Nest
from indexer.runners.harness.session import Session
from indexer.runners.nest_code.job import bytes_needed
from indexer.runners.nest_code.library import build_all
from indexer.runners.nest_code.sending import parts_of
from indexer.runners.nest_counters.events import FLOPS, Events
from indexer.runners.nest_counters.perf import events_here

__all__ = ["by_counter", "perf_counts"]

_WORKER = "indexer.runners.nest_counters.perf_worker"
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
