"""Counters of loop nests: of the hardware where available, else of the canonical nest,
instrumented, in simulated caches.

Not modelled: prefetching, vectors (arithmetic, loads and stores are those of scalar code), address
translation, lines that threads take from one another.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound, RunnerUnavailable, UsageError
from embeddb.kernels.build import compile_to, compiler, no_compiler
from embeddb.kernels.machine_failures import Deadline
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import COUNTERS, GIVEN, CounterVector
from embeddb.nests.nest import Nest, iterations
from embeddb.nests.parts import Loop
from indexer.runners.command_programs import run_once
from indexer.runners.counters.perf import (
    FLOPS,
    Event,
    Events,
    Linux,
    available,
    count_threads,
    events_here,
)
from indexer.runners.counters.source import (
    KINDS,
    Caches,
    Pass,
    addresses,
    caches_here,
    deciding,
    source,
    work_of,
)
from indexer.runners.harness.serving import Reply, serve
from indexer.runners.harness.worker import Libraries
from indexer.runners.harness.worker_process import THREADS_ENV, WorkerProcess
from indexer.runners.nest_code.fill import contents
from indexer.runners.nest_code.job import MeasuredNest, NestJob, received
from indexer.runners.nest_code.reference import Evaluation

#: Counted accesses and iterations of the innermost loop; about as many more warm the caches.
#: A nest takes up to a second then.
MOST_STEPS = 10_000_000
_FLAGS = ("-O2", "-std=gnu11", "-w")
_MODEL_TIMEOUT_S = 30.0
_MOST_OUTPUT = 1 << 20
#: A pass is cut at so many times its expected steps.
_ROOM = 4
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Share:
    """Work of one thread: `turns` of the outermost loop, the passes that represent them, and the
    iterations of the body in all turns if they are known."""

    turns: int
    passes: tuple[Pass, ...]
    points: float | None = None

    @property
    def sampled(self) -> bool:
        return any(p.last - p.first < self.turns for p in self.passes)


def model_counts(
    nest: Nest,
    *,
    threads: int,
    caches: Caches,
    parallel: bool = True,
    most: int = MOST_STEPS,
) -> CounterVector:
    """Counters of each thread in a run with warm caches.

    The outermost loop is divided into equal parts, one per thread, where it is `parallel`; else the
    first thread runs it all, and the others count 0. Nests of more than `most` steps are sampled:
    some of the first, middle and last iterations of each thread, each after iterations that warm
    its caches; their counts are scaled by the iterations of the body.

    Raises: NothingFound for a nest that cannot be counted; RunnerUnavailable without a compiler.
    """
    values = deciding_values(nest)
    workers = threads if parallel else 1
    turns, steps = outer_turns(nest, values), work_of(nest).accesses(nest.trips) + nest.points
    per_turn = steps / nest.trips[0]
    # As in Simpson's rule, the middle has the weight of four ends where turns differ in work.
    middle = 4 if any(b.affine.coef(0) for loop in nest.loops for b in loop.bounds) else 1
    shares, first = [], 0
    for worker in range(workers):
        last = first + turns // workers + (worker < turns % workers)
        share = share_of(first, last, per_turn, most / workers, middle)
        points = _points(nest, first, last) if share.sampled else None
        shares.append(replace(share, points=points))
        first = last
    sliced = caches.sliced(workers)
    text = source(
        nest,
        sliced,
        [p for s in shares for p in (Pass("THREAD"), *_filled(nest, s, sliced), *s.passes)],
    )
    counts = np.zeros((threads, len(COUNTERS)))
    for at, row in enumerate(_printed(text, values, workers)):
        counts[at] = _counters(row) * _scale(shares[at], row, per_turn)
    counts[:, [name not in GIVEN["model"] for name in COUNTERS]] = np.nan
    remarks = [f"simulated caches {caches}, warm", *([] if parallel else ["no loop parallel"])]
    remarks += ["sampled"] if any(s.sampled for s in shares) else []
    return CounterVector.of_threads(counts, "model", about=", ".join(remarks))


def _points(nest: Nest, first: int, last: int) -> float | None:
    """Iterations of the body in these of the outermost loop; from a part of them, at even
    distances, where all are too many to enumerate. None where bounds come from arrays."""
    outer, every = nest.loops[0], 1
    while every <= last - first:
        start, end = (outer.lower + n * outer.step for n in (first + every // 2, last))
        totals = iterations((Loop(start, end, every * outer.step), *nest.loops[1:]))
        if totals is not None:
            return totals[-1] * (last - first) / totals[0]
        every *= 3
    return None


def share_of(first: int, last: int, per_turn: float, most: float, middle: int = 1) -> Share:
    """The passes over iterations `first` to `last` of the outermost loop, of `per_turn` steps each,
    that count about `most` steps, `middle` times as many in the middle as at either end."""
    turns = last - first
    if turns <= 0:
        return Share(0, ())
    if turns * per_turn <= most:
        return Share(turns, _pair((first, last), (first, last), int(most)))
    if per_turn > most:
        return Share(turns, (Pass("INSIDE", first + (turns - 1) // 2, last, int(most)),))
    windows = 3 if 3 * per_turn <= most else 1
    parts = middle + 2 if windows == 3 else 1
    some = max(1, int(most / parts / per_turn))
    more = min(middle * some, turns - 2 * some) if windows == 3 else some
    start = first + (turns - more) // 2
    before = max(first, start - more)
    quota = max(int(most / parts), int(some * per_turn))
    passes = _pair((before, before + more), (start, start + more), quota * more // some)
    if windows == 3:
        end = last - some
        # The first turns follow the last ones, in a run after another: these warm the caches.
        ends = _pair((end - some, end), (end, last), quota)
        passes = (*ends, Pass("COUNT", first, first + some, _ROOM * quota), *passes)
    return Share(turns, passes)


def _filled(nest: Nest, share: Share, caches: Caches) -> tuple[Pass, ...]:
    """A pass that loads all arrays, if iterations are left out and all arrays fit in the caches."""
    first, last = addresses(nest)[0], addresses(nest)[-1] + nest.arrays[-1].bytes
    fits = last - first <= caches.last_bytes
    return (Pass("FILL", first, last),) if share.sampled and fits else ()


def _pair(warm: tuple[int, int], counted: tuple[int, int], most: int) -> tuple[Pass, ...]:
    return Pass("WARM", *warm, _ROOM * most), Pass("COUNT", *counted, _ROOM * most)


def _printed(text: str, values: Values, threads: int) -> list[dict[str, int]]:
    """The numbers of each thread by name. Raises: NothingFound, RunnerUnavailable."""
    compiler_found = compiler()
    if compiler_found is None:
        raise RunnerUnavailable(no_compiler())
    with tempfile.TemporaryDirectory(prefix="embeddb-") as name:
        folder = Path(name)
        wrong = compile_to(folder / "model", text, [compiler_found[0], *_FLAGS], ("-lm",))
        if wrong:
            raise NothingFound(f"the nest cannot be counted: {wrong}")
        with (folder / "arrays").open("wb") as out:
            for at in sorted(values):
                out.write(np.ascontiguousarray(values[at]).data)
        ended = run_once(
            [str(folder / "model"), str(folder / "arrays")],
            folder=folder,
            env={"LC_ALL": "C"},
            deadline=Deadline(_MODEL_TIMEOUT_S),
            max_bytes=_MOST_OUTPUT,
            max_memory=_MEMORY_BYTES,
        )
    rows = [line.split() for line in ended.stdout.decode("ascii", "replace").splitlines()]
    names = (*KINDS, "turns", "cut")
    if ended.problem or ended.code or [len(row) for row in rows] != [len(names)] * threads:
        raise NothingFound(f"the nest cannot be counted: {ended.problem or f'ended {ended.code}'}")
    return [dict(zip(names, map(int, row), strict=True)) for row in rows]


def _counters(row: dict[str, int]) -> NDArray[np.float64]:
    """float64[19]: one thread's printed counts, by counter."""
    done = ("loads", "stores", "f32", "f64", "other", "branches")
    values = {name: row[name] for name in ("branches", "mispredictions", "loads", "stores")} | {
        "instructions": sum(row[name] for name in done),
        "f32_scalar": row["f32"],
        "f64_scalar": row["f64"],
        "memory_reads": row["reads"],
        "memory_writes": row["writes"],
        "l2_lines_in": row["l2_in"],
        "l2_writebacks": row["l2_out"],
        "l1_lines_in": row["l1_in"],
        "l1_modified_evictions": row["l1_out"],
    }
    return np.array([values.get(name, 0) for name in COUNTERS], dtype=np.float64)


def _scale(share: Share, row: dict[str, int], per_turn: float) -> float:
    """Factor of the counts that makes up for omitted iterations."""
    if share.points and row["points"]:
        return share.points / row["points"]
    inside = any(p.kind == "INSIDE" for p in share.passes)
    if not inside and not row["cut"]:
        return share.turns / row["turns"] if row["turns"] else 1.0
    counted = row["loads"] + row["stores"] + row["points"]
    return share.turns * per_turn / counted if counted else 1.0


#: By number of the array, flat.
Values = Mapping[int, NDArray[Any]]
MOST_BYTES = 1 << 30


def deciding_values(nest: Nest) -> Values:
    """Values of the arrays that decide the accesses. Raises: NothingFound if they are too large."""
    wanted = sorted(deciding(nest))
    if sum(nest.arrays[at].bytes for at in wanted) > MOST_BYTES:
        raise NothingFound(f"the arrays that decide have more than {MOST_BYTES} bytes")
    return {at: contents(nest, at) for at in wanted}


def outer_turns(nest: Nest, values: Values) -> int:
    """Iterations of the outermost loop."""
    loop, outside = nest.loops[0], Evaluation(nest, dict(values))
    low, high = (int(outside.bound(b, {}, 1)[0]) for b in (loop.lower, loop.upper))
    return max(0, -((low - high) // loop.step))


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
    measured = MeasuredNest(nest)
    if measured.bytes_needed(check=False) > _MOST_BYTES:
        raise NothingFound(f"the arrays need more than {_MOST_BYTES} bytes")
    schedule = canonical_schedule(nest)
    with tempfile.TemporaryDirectory(prefix="embeddb-") as name:
        built = measured.build([schedule], Path(name))[schedule]
        if built.status != "ok":
            raise NothingFound(f"the nest cannot be counted: {built.error}")
        message = {"library": str(built.library), "which": built.which, "threads": threads}
        session = WorkerProcess(_WORKER, env={**THREADS_ENV, "OMP_NUM_THREADS": str(threads)})
        try:
            session.ensure()
            reply = session.request(message, measured.parts, timeout_s=_TIMEOUT_S)
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
        types = {a.dtype for a in nest.arrays} & {"f32", "f64"}
        if len(types) < 2:
            for dtype in ("f32", "f64"):
                counters[:, COUNTERS.index(f"{dtype}_scalar")] = column if dtype in types else 0
    return counters


_TASKS = Path("/proc/self/task")
#: Bytes that the calls ahead of the counted ones move, and how many they are at most: twice the
#: second cache of the paper's processor ("Performance Embeddings", Section 3.3).
_WARM_BYTES, _MOST_WARM = 2 << 20, 1000


def count(
    nest: Nest,
    library: str,
    *,
    threads: int,
    kernel: Linux,
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
