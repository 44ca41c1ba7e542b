"""Kernels of other libraries, timed in the same process as the generated ones.

docs/reference/baselines.md describes how they are run and why the comparison is fair.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels.forms import as_scipy
from indexer.runners.baselines import mkl as baseline_mkl
from indexer.runners.baselines import taco as baseline_taco
from indexer.runners.baselines.problem import Failed, Problem, Ready, problem_of

if TYPE_CHECKING:
    from indexer.runners.cpu_kernels.job import Loaded

Prepare = Callable[[Problem, int], AbstractContextManager[Ready]]


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A baseline: its kernels, the packages it needs, and its preparation."""

    kernels: tuple[str, ...]
    needs: tuple[str, ...]
    prepare: Prepare


def names(kernel: str) -> tuple[str, ...]:
    """All baselines of `spmm`, `spmv` or `sddmm`, installed or not."""
    return tuple(name for name, baseline in _BASELINES.items() if kernel in baseline.kernels)


def time_baseline(job: Loaded, request: dict[str, Any]) -> dict[str, Any]:
    """Reply of the worker for the baseline `request["name"]`; what a library raises is a status.

    `missing` names what is not installed. Otherwise `status` is `ok` with `times_s`, or `wrong`,
    `oom`, `invalid`, `build`, `timeout`, `crash` with `error`; `conversion_s`, `compile_s` and
    `threads` as in `Ready`. The effort (`threads`, `repeats`, `max_repeats`, `min_time_s`) is
    that of a configuration.

    Raises: RunnerUnavailable if the machine cannot compile or keep what a baseline needs.
    """
    baseline = _BASELINES.get(request["name"])
    if baseline is None or job.kernel not in baseline.kernels:
        return _failure("invalid", f"no baseline {request['name']} of {job.kernel}")
    for package in baseline.needs:
        if not _installed(package):
            return {"status": "invalid", "missing": package}
    try:
        with baseline.prepare(problem_of(job), int(request["threads"])) as ready:
            return _timed(job, ready, request)
    except Failed as error:
        return _failure(error.status, str(error))
    except MemoryError:
        return _failure("oom", "the system has no memory left")
    except RunnerUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 (another library may raise anything: a status)
        lines = str(error).strip().splitlines()[:1]
        return _failure("crash", ": ".join([type(error).__name__, *lines]))


def _failure(status: str, error: str) -> dict[str, Any]:
    return {"status": status, "error": error}


def _installed(package: str) -> bool:
    if package == "taco":
        return shutil.which("taco") is not None
    if package == "mkl":
        return baseline_mkl.library() is not None
    return importlib.util.find_spec(package) is not None


def _timed(job: Loaded, ready: Ready, request: dict[str, Any]) -> dict[str, Any]:
    """Check the first result, warm up, then repeat, as for a configuration."""
    reply: dict[str, Any] = {
        "conversion_s": ready.conversion_s,
        "compile_s": ready.compile_s,
        "threads": ready.threads,
    }
    start = time.perf_counter()
    result = ready.call()
    first = time.perf_counter() - start
    if error := job.wrong(result):
        return {**reply, "status": "wrong", "error": error}
    for _ in range(2 if first < 0.1 else 0):
        ready.call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    times: list[float] = []
    while len(times) < request["repeats"] or (
        sum(times) < request["min_time_s"] and len(times) < request["max_repeats"]
    ):
        start = time.perf_counter()
        ready.call()
        times.append(time.perf_counter() - start)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    return {**reply, "status": "ok", "times_s": times, "switches": switches}


@contextmanager
def _scipy(problem: Problem, _threads: int) -> Iterator[Ready]:
    """scipy's product on one thread, with a new result at every call, since it has no other
    form."""
    start = time.perf_counter()
    a, b = as_scipy(problem.csr), problem.b
    yield Ready(lambda: np.asarray(a @ b), 1, time.perf_counter() - start)


@contextmanager
def _torch(problem: Problem, threads: int) -> Iterator[Ready]:
    import torch

    torch.set_num_threads(threads)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR tensors are in beta state
        a = _torch_csr(torch, problem, problem.csr.val)
        call = _torch_call(torch, problem, a)
    yield Ready(call, threads, time.perf_counter() - start)


def _torch_csr(torch: Any, problem: Problem, values: NDArray[Any]) -> Any:
    # 32 bits: the MKL inside torch has no others and would have them converted at every call.
    ptr, idx = torch.from_numpy(problem.ptr32()), torch.from_numpy(problem.csr.idx.copy())
    return torch.sparse_csr_tensor(ptr, idx, torch.from_numpy(values), size=problem.csr.shape)


def _torch_call(torch: Any, problem: Problem, a: Any) -> Callable[[], NDArray[Any]]:
    b, out = torch.from_numpy(problem.b), torch.from_numpy(problem.out)

    def spmm() -> NDArray[Any]:
        torch.addmm(out, a, b, beta=0, out=out)
        return problem.out

    def spmv() -> NDArray[Any]:
        torch.mv(a, b, out=out)
        return problem.out

    if problem.c is None:
        return spmm if problem.kernel == "spmm" else spmv
    # It samples with the pattern of A alone, so the values of A are multiplied in afterwards.
    c, transposed = torch.from_numpy(problem.c), b.t()
    sampled = _torch_csr(torch, problem, np.zeros_like(problem.csr.val))

    def sddmm() -> NDArray[Any]:
        torch.sparse.sampled_addmm(sampled, c, transposed, beta=0, out=sampled)
        torch.mul(sampled.values(), a.values(), out=out)
        return problem.out

    return sddmm


def _numba(problem: Problem, threads: int) -> AbstractContextManager[Ready]:
    from indexer.runners.baselines import numba as baseline_numba

    return baseline_numba.prepare(problem, threads)


_PRODUCTS = ("spmm", "spmv")
_ALL = (*_PRODUCTS, "sddmm")
_BASELINES = {
    "scipy-csr": _Baseline(_PRODUCTS, (), _scipy),
    "torch-csr": _Baseline(_ALL, ("torch",), _torch),
    "numba-csr": _Baseline(_ALL, ("numba",), _numba),
    "mkl-csr": _Baseline(_PRODUCTS, ("mkl",), partial(baseline_mkl.prepare, optimize=False)),
    "mkl-csr-optimized": _Baseline(
        _PRODUCTS, ("mkl",), partial(baseline_mkl.prepare, optimize=True)
    ),
    "sparse-dot-mkl": _Baseline(_PRODUCTS, ("mkl", "sparse_dot_mkl"), baseline_mkl.wrapped),
    **{
        f"taco-{name}": _Baseline(
            tuple(per_kernel), ("taco",), partial(baseline_taco.prepare, schedule=name)
        )
        for name, per_kernel in baseline_taco.SCHEDULES.items()
    },
}
