"""The child process that runs compiled kernels: `python -m indexer.runners.cpu_worker`.

It may crash or hang; whoever started it judges that from outside. Requests arrive on stdin as one
line of JSON, followed by as many raw bytes as its `bytes` says; each is answered by one line on
what was stdout (everything else that prints goes to stderr). When stdin ends, the process ends,
even in the middle of a kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import threading
import traceback
from queue import SimpleQueue
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from indexer.runners.baselines import time_baseline
from indexer.runners.cpu_formats import Blocked, Converter, Fill, aligned

__all__ = ["main"]

Reply = dict[str, Any]
_PADDING = 15


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "strip")),
        *((name, ctypes.c_void_p) for name in ("ptr", "idx", "val", "b", "d")),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("threads", "schedule", "chunk")),
        *((name, ctypes.c_int64) for name in ("warmups", "repeats", "max_repeats")),
        ("min_time_s", ctypes.c_double),
    )


class Loaded:
    """One pattern with random values, its dense operands and the expected result."""

    def __init__(self, request: Reply, payload: bytes) -> None:
        self.m, self.n = request["shape"]
        self.width = request["width"]
        self.dtype: Any = {"f32": np.float32, "f64": np.float64}[request["dtype"]]
        self.tolerance = request["tolerance"]
        ptr = np.frombuffer(payload, dtype=np.int64, count=self.m + 1)
        idx = np.frombuffer(payload, dtype=np.int32, offset=ptr.nbytes)
        rng: Any = np.random.default_rng(request["seed"])
        val = rng.random(idx.size, dtype=self.dtype) - self.dtype(0.5)
        self.csr = Blocked(ptr, idx, val, 0.0)
        self.b = aligned((self.n + _PADDING, self.width), self.dtype)
        rng.random(out=self.b[: self.n], dtype=self.dtype)
        self.b[: self.n] -= self.dtype(0.5)
        self.d = aligned((self.m + _PADDING, self.width), self.dtype)
        self.forms: dict[tuple[int, int], Blocked | Fill] = {(1, 1): self.csr}
        self.left: int = request["left_bytes"]
        self.expected: NDArray[Any] | None = None
        if request["check"]:
            self._expect()

    def scipy(self) -> Any:
        from scipy.sparse import csr_array

        index = np.int32 if self.csr.idx.size < 2**31 - 1 else np.int64
        ptr = self.csr.ptr.astype(index)
        return csr_array((self.csr.val, self.csr.idx, ptr), shape=(self.m, self.n))

    def _expect(self) -> None:
        a, b = self.scipy(), self.b[: self.n]
        self.expected = np.asarray(a @ b)
        self.bound = np.asarray(abs(a) @ np.abs(b).max(axis=1)) * self.tolerance

    def wrong(self, result: NDArray[Any]) -> str:
        """Empty if |result - expected| <= tolerance * (|A| max_k |B|) everywhere.

        The scale is the largest sum of magnitudes a row can have: rounding grows with it.
        """
        if self.expected is None:
            return ""
        step = max(1, (1 << 18) // self.width)
        for low in range(0, self.m, step):
            part = slice(low, min(low + step, self.m))
            error = np.abs(result[part] - self.expected[part]).max(axis=1)
            bad = ~(error <= self.bound[part])
            if bad.any():
                row = int(bad.argmax())
                return f"row {low + row} is off by {error[row]:.3g}, more than rounding explains"
        return ""

    def form(self, block: tuple[int, int], converter: Converter) -> Blocked | Fill:
        """The matrix in blocks of that size, kept while memory lasts."""
        if block not in self.forms:
            kept = [f for f in self.forms.values() if isinstance(f, Blocked) and f is not self.csr]
            made = self._convert(block, converter, self.left - sum(f.nbytes for f in kept))
            if isinstance(made, Fill) and kept:
                self.forms = {(1, 1): self.csr}
                made = self._convert(block, converter, self.left)
            self.forms[block] = made
        return self.forms[block]

    def _convert(
        self, block: tuple[int, int], converter: Converter, max_bytes: int
    ) -> Blocked | Fill:
        return converter.blocked(self.csr, (self.m, self.n), block, max_bytes=max_bytes)


class Worker:
    """Answers requests; holds one loaded pattern and every kernel loaded so far."""

    def __init__(self) -> None:
        self.job: Loaded | None = None
        self.kernels: dict[str, Any] = {}
        self.converter: Converter | None = None

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        self.converter = self.converter or Converter(request["library"])
        self.job = Loaded(request, payload)
        return {"status": "ok"}

    def measure(self, request: Reply) -> Reply:
        job, converter = self.job, self.converter
        assert job is not None and converter is not None, "load comes before measure"
        form = job.form(tuple(request["block"]), converter)
        if isinstance(form, Fill):
            return {"status": "oom", "error": form.reason}
        kernel = self._kernel(request["library"])
        problem = _Problem(
            form.ptr.size - 1,
            job.width,
            max(1, request["itile"] // request["block"][0]),
            *(a.ctypes.data for a in (form.ptr, form.idx, form.val, job.b, job.d)),
        )
        job.d.fill(np.nan)
        first, _ = _timed(kernel, problem, _plan(request, (0, 1, 1)))
        reply: Reply = {"conversion_s": form.conversion_s}
        if error := job.wrong(job.d):
            return {**reply, "status": "wrong", "error": error}
        # The check has flushed the caches; a long kernel warms them within its first repeat.
        warmups = 2 if first["times_s"][0] < 0.1 else 0
        effort = (warmups, request["repeats"], request["max_repeats"])
        times, switches = _timed(kernel, problem, _plan(request, effort))
        return {**reply, "status": "ok", **times, "switches": switches}

    def baseline(self, request: Reply) -> Reply:
        assert self.job is not None, "load comes before baseline"
        return time_baseline(self.job, request)

    def _kernel(self, path: str) -> Any:
        if path not in self.kernels:
            function = ctypes.CDLL(path).embeddb_run
            function.restype = ctypes.c_int64
            self.kernels[path] = function
        return self.kernels[path]


def _plan(request: Reply, effort: tuple[int, int, int]) -> _Plan:
    how = (request["threads"], request["schedule"], request["chunk"])
    return _Plan(*how, *effort, request["min_time_s"])


def _timed(kernel: Any, problem: _Problem, plan: _Plan) -> tuple[Reply, int]:
    """Times of every repeat, and how often the system took a CPU away meanwhile."""
    out = np.zeros((3, plan.max_repeats))
    rows = [ctypes.c_void_p(row.ctypes.data) for row in out]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    done = kernel(ctypes.byref(problem), ctypes.byref(plan), *rows)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    names = ("times_s", "cpu_max_s", "cpu_sum_s")
    return {n: row[:done].tolist() for n, row in zip(names, out, strict=True)}, switches


def _listen(stream: BinaryIO, inbox: SimpleQueue[tuple[Reply, bytes]]) -> None:
    """Pass requests on; at the end of the stream end the process, whatever it is doing."""
    while line := stream.readline():
        request = json.loads(line)
        count = request.get("bytes", 0)
        payload = stream.read(count)
        if len(payload) < count:
            break
        inbox.put((request, payload))
    os._exit(0)


def _give_up(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """End at once: Python's own way out aborts on the lock of stdin, which the listener holds."""
    traceback.print_exception(kind, error, at)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Serve until stdin ends."""
    sys.excepthook = _give_up
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)
    inbox: SimpleQueue[tuple[Reply, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    worker = Worker()
    while True:
        request, payload = inbox.get()
        try:
            if request["do"] == "load":
                reply = worker.load(request, payload)
            else:
                reply = getattr(worker, request["do"])(request)
        except MemoryError:
            reply = {"status": "oom", "error": "the system has no memory left"}
        _write(answers, (json.dumps(reply) + "\n").encode())


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


if __name__ == "__main__":
    main()
