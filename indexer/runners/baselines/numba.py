"""Plain row loops compiled by numba. Importing this imports numba."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numba
from numba import prange
from numpy.typing import NDArray

from indexer.runners.baselines.problem import Failed, Problem, Ready


@contextmanager
def prepare(problem: Problem, threads: int) -> Iterator[Ready]:
    """The loop over rows in parallel; compiled before the first call, once per kind of array."""
    if threads > numba.config.NUMBA_NUM_THREADS:
        limit = numba.config.NUMBA_NUM_THREADS
        raise Failed("invalid", f"{threads} threads: numba has {limit}, set NUMBA_NUM_THREADS")
    # The pool of libgomp that our kernels use, not a second one on the same processors.
    numba.config.THREADING_LAYER = "omp"
    dense = (problem.b,) if problem.c is None else (problem.b, problem.c)
    arguments = (problem.csr.ptr, problem.csr.idx, problem.csr.val, *dense, problem.out)
    function, seconds = _compiled(problem.kernel, tuple(numba.typeof(a) for a in arguments))
    numba.set_num_threads(threads)

    def call() -> NDArray[Any]:
        function(*arguments)
        return problem.out

    yield Ready(call, threads, 0.0, seconds)


@cache
def _compiled(kernel: str, kinds: tuple[Any, ...]) -> tuple[Callable[..., None], float]:
    """The compiled loop and the seconds it took, the first time."""
    start = time.perf_counter()
    # Only the sum over k of SDDMM gains from being reordered: vectorised along the few non-zeros
    # of a row, the gathers of SpMV were three times slower.
    function = numba.njit(parallel=True, fastmath=kernel == "sddmm")(_LOOPS[kernel])
    function.compile(kinds)
    return function, time.perf_counter() - start


def _spmm(ptr: Any, idx: Any, val: Any, b: Any, d: Any) -> None:
    for i in prange(ptr.size - 1):
        for k in range(b.shape[1]):
            d[i, k] = 0
        for p in range(ptr[i], ptr[i + 1]):
            a, j = val[p], idx[p]
            for k in range(b.shape[1]):
                d[i, k] += a * b[j, k]


def _spmv(ptr: Any, idx: Any, val: Any, x: Any, y: Any) -> None:
    for i in prange(ptr.size - 1):
        total = val.dtype.type(0)
        for p in range(ptr[i], ptr[i + 1]):
            total += val[p] * x[idx[p]]
        y[i] = total


def _sddmm(ptr: Any, idx: Any, val: Any, b: Any, c: Any, e: Any) -> None:
    for i in prange(ptr.size - 1):
        for p in range(ptr[i], ptr[i + 1]):
            j = idx[p]
            total = val.dtype.type(0)
            for k in range(b.shape[1]):
                total += c[i, k] * b[j, k]
            e[p] = val[p] * total


_LOOPS = {"spmm": _spmm, "spmv": _spmv, "sddmm": _sddmm}
