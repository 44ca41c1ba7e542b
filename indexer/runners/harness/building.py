"""Shared objects, each with several variants of one workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Any, TypeVar

from embeddb.core.errors import InputError, RunnerUnavailable
from embeddb.kernels import build as cpu_build
from embeddb.kernels.build import compile_to

#: Variants per file, which share the headers and the start of the compiler; a file that fails
#: costs this many compilations.
TOGETHER = 8
#: Without start files: with -ffast-math one of them would make the loading process lose subnormals.
LIBRARIES = ("-lm", "-nostartfiles")
_SHARED = ("-fPIC", "-shared", "-w", "-std=gnu11")

_CALL = """
#include <stdint.h>
#include <time.h>
%s
static void one(int64_t which, void *const *a)
{
    switch (which) {
%s
    }
}

/* Seconds that one of so many calls takes. */
double embeddb_call(int64_t which, void *const *arrays, int64_t threads, int64_t times)
{
    struct timespec from, to;
    %s
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int64_t n = 0; n < times; n++) {
        one(which, arrays);
        /* Else a short function that reads nothing it wrote is run once for all of them. */
        __asm__ volatile("" ::: "memory");
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec)) /
           (double)times;
}
"""
_THREADS = "#include <omp.h>\n", "omp_set_dynamic(0);\n    omp_set_num_threads((int)threads);"

V = TypeVar("V", bound=Hashable)
#: C with a variant as a function of a given name, and its arguments, out of `a`.
Source = Callable[[V, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Built:
    """The shared object of a variant and its number there, or the reason for a failure."""

    library: Path
    which: int
    compile_s: float
    status: str = "ok"
    error: str = ""


def command(*flags: str) -> list[str]:
    """The compiler with flags. Raises: RunnerUnavailable without one."""
    compiler = cpu_build.compiler()
    if compiler is None:
        raise RunnerUnavailable(cpu_build.no_compiler())
    # No part of the instance: it changes quotients alone, and those not measurably.
    exact = cpu_build.exact_division(compiler[0])
    return [compiler[0], *flags, *exact, cpu_build.flags()[1], *_SHARED]


def build_one(
    path: Path,
    functions: Sequence[tuple[str, str]],
    *,
    prelude: str,
    compiler: Sequence[str],
    openmp: bool = False,
) -> str:
    """Compile functions, each with its arguments, that are called by number; the n-th is called
    `v<n>`. Returns the error, empty if they compile.

    Raises: RunnerUnavailable if the machine could not compile.
    """
    head, set_threads = _THREADS if openmp else ("", "(void)threads;")
    cases = [
        f"    case {n}:\n        v{n}({arguments});\n        break;"
        for n, (_, arguments) in enumerate(functions)
    ]
    call = _CALL % (head, "\n".join(cases), set_threads)
    text = "\n".join([prelude, *(text for text, _ in functions), call])
    return compile_to(path, text, compiler, LIBRARIES)


def build_all(
    variants: Sequence[V],
    source: Source[V],
    folder: Path,
    **how: Any,
) -> dict[V, Built]:
    """Compile variants, several per file, on all processors; `how` as for `build_one`. A variant
    whose `source` raises an InputError is `invalid`.

    Raises: RunnerUnavailable if the machine could not compile.
    """

    def build(group: Sequence[V], path: Path) -> dict[V, Built]:
        able: dict[V, tuple[str, str]] = {}
        built: dict[V, Built] = {}
        for variant in group:
            try:
                able[variant] = source(variant, f"v{len(able)}")
            except InputError as error:
                built[variant] = Built(path, -1, 0.0, "invalid", str(error))
        if not able:
            return built
        start = time.perf_counter()
        problem = build_one(path, [*able.values()], **how)
        each = (time.perf_counter() - start) / len(able)
        for which, variant in enumerate(able):
            if not problem:
                built[variant] = Built(path, which, each)
            elif len(able) == 1:
                built[variant] = Built(path, -1, each, "build", problem)
            else:  # find the failing one
                built |= build([variant], path.with_suffix(f".{which}.so"))
        return built

    fresh = list(dict.fromkeys(variants))
    groups = [fresh[at : at + TOGETHER] for at in range(0, len(fresh), TOGETHER)]
    start = sum(1 for _ in folder.iterdir())
    paths = [folder / f"{start}-{n}.so" for n in range(len(groups))]
    with ThreadPoolExecutor(cpu_count()) as pool:
        done = pool.map(build, groups, paths)
        return {variant: built for group in done for variant, built in group.items()}
