"""Shared objects with several schedules of one nest each, and the one that is the reference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import cpu_count
from pathlib import Path

from embeddb.core.errors import NestError, RunnerUnavailable
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.runners.cpu_kernels import build as cpu_build
from indexer.runners.cpu_kernels.compiling import compile_to
from indexer.runners.nest_code.generate import PRELUDE, c_function

__all__ = ["Built", "build_all", "build_reference", "flags"]

#: Schedules a file: the headers and the start of the compiler are shared, and a file that fails
#: costs this many compilations.
TOGETHER = 8
#: Vector functions are told apart by -ffast-math, without which sums stay in the order of the text.
_FAST = ("-O3", "-ffast-math")
_EXACT = ("-O2", "-ffp-contract=off")
_REST = ("-fopenmp", "-std=gnu11", "-fPIC", "-shared", "-w")
#: Without start files: with -ffast-math one of them would make the loading process lose subnormals.
_LIBRARIES = ("-lm", "-nostartfiles")

_CALL = """
#include <omp.h>
#include <time.h>

static void one(int64_t which, void *const *a)
{
    switch (which) {
%s
    }
}

/* Seconds that one call takes. */
double embeddb_call(int64_t which, void *const *arrays, int64_t threads)
{
    struct timespec from, to;
    omp_set_dynamic(0);
    omp_set_num_threads((int)threads);
    clock_gettime(CLOCK_MONOTONIC, &from);
    one(which, arrays);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}
"""


@dataclass(frozen=True, slots=True)
class Built:
    """Where a schedule was compiled to: a shared object and its number there; or why not."""

    library: Path
    which: int
    compile_s: float
    status: str = "ok"
    error: str = ""


def flags(*, exact: bool = False) -> tuple[str, ...]:
    """What the compiler is called with; `exact` for the reference."""
    return (*(_EXACT if exact else _FAST), cpu_build.flags()[1], *_REST)


def build_all(nest: Nest, schedules: Sequence[Schedule], folder: Path) -> dict[Schedule, Built]:
    """All of them, several a file, on all processors.

    Raises: RunnerUnavailable if the machine could not compile.
    """
    fresh = list(dict.fromkeys(schedules))
    groups = [fresh[at : at + TOGETHER] for at in range(0, len(fresh), TOGETHER)]
    named = [(group, folder / f"{_count(folder)}-{n}.so") for n, group in enumerate(groups)]
    with ThreadPoolExecutor(cpu_count()) as pool:
        done = pool.map(lambda told: _build(nest, *told), named)
        return {schedule: built for group in done for schedule, built in group.items()}


def build_reference(nest: Nest, folder: Path) -> Path:
    """The nest in the order of its text, without any reordering of sums.

    Raises: RunnerUnavailable, NestError if it does not compile.
    """
    depth = nest.depth
    plain = Schedule(tuple(range(depth)), (0,) * depth)
    path = folder / "reference.so"
    if problem := compile_to(path, _source(nest, [plain]), _command(exact=True), _LIBRARIES):
        raise NestError(f"its reference does not compile: {problem}")
    return path


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _build(nest: Nest, group: Sequence[Schedule], path: Path) -> dict[Schedule, Built]:
    able: list[Schedule] = []
    found: dict[Schedule, Built] = {}
    for schedule in group:
        try:
            c_function(nest, schedule, "v")
            able.append(schedule)
        except NestError as error:
            found[schedule] = Built(path, -1, 0.0, "invalid", str(error))
    if not able:
        return found
    start = time.perf_counter()
    problem = compile_to(path, _source(nest, able), _command(), _LIBRARIES)
    each = (time.perf_counter() - start) / len(able)
    if not problem:
        return found | {s: Built(path, which, each) for which, s in enumerate(able)}
    if len(able) == 1:
        return found | {able[0]: Built(path, -1, each, "build", problem)}
    for n, schedule in enumerate(able):  # which one it is
        found |= _build(nest, [schedule], path.with_suffix(f".{n}.so"))
    return found


def _command(*, exact: bool = False) -> list[str]:
    found = cpu_build.compiler()
    if found is None:
        raise RunnerUnavailable(cpu_build.no_compiler())
    return [found[0], *flags(exact=exact)]


def _source(nest: Nest, schedules: Sequence[Schedule]) -> str:
    nest = replace(nest, loop_names=(), array_names=())  # a stranger's may be macros somewhere
    arrays = ", ".join(f"a[{at}]" for at in range(len(nest.arrays)))
    cases = [
        f"    case {n}:\n        v{n}({arrays});\n        break;" for n in range(len(schedules))
    ]
    functions = [c_function(nest, schedule, f"v{n}") for n, schedule in enumerate(schedules)]
    return "\n".join([PRELUDE, *functions, _CALL % "\n".join(cases)])
