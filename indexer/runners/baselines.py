"""What others would use: SpMM of scipy and torch, timed in the process that times our kernels."""

from __future__ import annotations

import importlib.util
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from indexer.runners.cpu_worker import Loaded

__all__ = ["NAMES", "time_baseline"]

NAMES = ("scipy-csr", "torch-csr")


def time_baseline(job: Loaded, request: dict[str, Any]) -> dict[str, Any]:
    """Reply of the worker for one of `NAMES`; `missing` names a package that is not installed.

    scipy runs on one thread and allocates its result, as every user's call does; torch uses the
    threads asked for and writes into a given result.
    """
    make = {"scipy-csr": _scipy, "torch-csr": _torch}[request["name"]]
    if make is _torch and importlib.util.find_spec("torch") is None:
        return {"status": "invalid", "missing": "torch"}
    start = time.perf_counter()
    call = make(job, int(request["threads"]))
    reply: dict[str, Any] = {"conversion_s": time.perf_counter() - start}
    if error := job.wrong(call()):
        return {**reply, "status": "wrong", "error": error}
    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    times: list[float] = []
    while len(times) < request["repeats"] or (
        sum(times) < request["min_time_s"] and len(times) < request["max_repeats"]
    ):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    return {**reply, "status": "ok", "times_s": times, "switches": switches}


def _scipy(job: Loaded, threads: int) -> Callable[[], Any]:
    a, b = job.scipy(), job.b[: job.n]
    return lambda: a @ b


def _torch(job: Loaded, threads: int) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads)
    ptr, idx = (torch.from_numpy(np.array(x, dtype=np.int64)) for x in (job.csr.ptr, job.csr.idx))
    values = torch.from_numpy(job.csr.val)
    a = torch.sparse_csr_tensor(ptr, idx, values, size=(job.m, job.n))
    b, out = torch.from_numpy(job.b[: job.n]), torch.from_numpy(job.d[: job.m])

    def call() -> Any:
        torch.mm(a, b, out=out)
        return out.numpy()

    return call
