"""The worker process that runs compiled code: its libraries, expected values, requests."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError, RunnerUnavailable
from indexer.runners.harness.serving import Answering, Reply, serve

#: Values compared together: they stay in the cache.
_CHUNK = 1 << 15
#: Share of elements that may differ where rounding can turn a decision.
_TURNED = 1e-4
#: Errors of a program, not of the machine.
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
#: A result by its number, and float64[elements] each: its expected values and tolerances.
Expected = tuple[int, NDArray[np.float64], NDArray[np.float64]]


class Job(ABC):
    """A workload in a worker: `arrays` are passed to every call, and those of `numbers` are its
    results, flat. Their expected values are computed once and stored in a folder for the next
    process; where the job `may_jump`, rounding can turn a decision, and a few are ignored."""

    arrays: list[NDArray[Any]]
    numbers: list[int]
    may_jump: bool
    _expected: dict[int, Any]

    def expect(self, folder: Path, reference: str, libraries: Libraries) -> None:
        """Compute the expected values, unless the folder has them. Raises: InputError for a
        workload without a reference."""
        paths = {number: folder / f"expected-{number}.npy" for number in self.numbers}
        if not all(path.exists() for path in paths.values()):
            for number, *values in self.computed(reference, libraries):
                np.save(paths[number], np.stack(values))
        self._expected = {n: np.load(path, mmap_mode="r") for n, path in paths.items()}

    def wrong(self) -> str:
        """Empty if all results of the last run are right, else the first violation."""
        for number, (expected, off) in self._expected.items():
            results, bad = self.arrays[number], 0
            for low in range(0, expected.size, _CHUNK):
                part = slice(low, low + _CHUNK)
                error = np.abs(results[part].astype(np.float64) - expected[part])
                missed = ~(error <= off[part]) & (off[part] < np.inf)
                bad += int(np.count_nonzero(missed))
                if bad and not (self.may_jump and bad <= max(1, _TURNED * expected.size)):
                    at = int(missed.argmax())
                    where = self.element(number, low + at)
                    return f"{where} is off by {error[at]:.3g}, more than rounding explains"
        return ""

    @abstractmethod
    def computed(self, reference: str, libraries: Libraries) -> Iterator[Expected]:
        """The expected values, by the shared object of a reference if one is named."""

    @abstractmethod
    def element(self, number: int, place: int) -> str:
        """The element at a place of a result, in words."""

    @abstractmethod
    def restore(self, *, all: bool) -> None:
        """Restore the arrays that a run reads; with `all` also those that it only writes, so that
        results of the last run cannot pass for the next one's."""


class _Worker(Answering):
    """Answer requests about one job. `create` builds it from the received bytes and a seed."""

    def __init__(self, create: Callable[[bytes, int], Job]) -> None:
        self._create = create
        self.job: Job | None = None
        self.libraries = Libraries()

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        job = self._create(payload, request["seed"])
        if request["check"]:
            try:
                job.expect(Path(request["folder"]), request["reference"], self.libraries)
            except InputError as error:
                return {"status": "invalid", "error": error.reason}
            except _FAULTS as error:  # of this reference: it ends no campaign
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                return {"status": "invalid", "error": f"its reference fails with {reason}"}
        self.job = job
        return {"status": "ok"}

    def call(self, request: Reply) -> Reply:
        """Seconds of one run."""
        assert self.job is not None, "load comes before call"
        self.job.restore(all=request["first"])
        target = request["library"], request["which"], self.job.arrays, request["threads"]
        return {"status": "ok", "seconds": self.libraries.call(*target, request["times"])}

    def check(self, _: Reply) -> Reply:
        """Check the last run's results."""
        assert self.job is not None, "load comes before check"
        error = self.job.wrong()
        return {"status": "wrong", "error": error} if error else {"status": "ok"}


def serve_jobs(create: Callable[[bytes, int], Job]) -> None:
    """Serve until stdin ends."""
    serve(_Worker(create).answer, machine=(OSError, RunnerUnavailable))


class Libraries:
    """Loaded shared objects, by path."""

    def __init__(self) -> None:
        self._calls: dict[str, Any] = {}

    def call(
        self, path: str, which: int, arrays: list[NDArray[Any]], threads: int, times: int = 1
    ) -> float:
        """Mean seconds of `times` calls of a function in it, with these arrays."""
        if path not in self._calls:
            function = ctypes.CDLL(path).embeddb_call
            function.restype = ctypes.c_double
            self._calls[path] = function
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        numbers = (ctypes.c_int64(n) for n in (threads, times))
        return float(self._calls[path](ctypes.c_int64(which), pointers, *numbers))
