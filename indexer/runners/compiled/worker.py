"""The child process that runs what was compiled. It may crash or hang; whoever started it judges
that from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from embeddb.core.errors import InputError, RunnerUnavailable
from indexer.runners.compiled.libraries import Libraries
from indexer.runners.cpu_kernels.serving import Reply, serve

__all__ = ["Job", "serve_jobs"]


class Job(Protocol):
    """What a worker holds: `arrays` are given to every call."""

    arrays: list[NDArray[Any]]

    def expect(self, folder: Path, reference: str, libraries: Libraries) -> None:
        """Compute the expected values, unless they lie in the folder. Raises: InputError for what
        has no values."""

    def restore(self, *, all: bool) -> None:
        """What the arrays held before, as far as it matters to a run; with `all` whatever a run
        writes to, so that nothing of the last one is taken for the next one's."""

    def wrong(self) -> str:
        """Empty if all that the last run wrote is right."""


class _Worker:
    """Answers requests; holds one job. `made` makes one of what was sent and a seed."""

    def __init__(self, made: Callable[[bytes, int], Job]) -> None:
        self._made = made
        self.job: Job | None = None
        self.libraries = Libraries()

    def answer(self, request: Reply, payload: bytes) -> Reply:
        if request["do"] == "load":
            return self.load(request, payload)
        reply: Reply = getattr(self, request["do"])(request)
        return reply

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        job = self._made(payload, request["seed"])
        if request["check"]:
            try:
                job.expect(Path(request["folder"]), request["reference"], self.libraries)
            except InputError as error:
                return {"status": "invalid", "error": error.reason}
        self.job = job
        return {"status": "ok"}

    def call(self, request: Reply) -> Reply:
        """Seconds of one run."""
        assert self.job is not None, "load comes before call"
        self.job.restore(all=request["first"])
        told = request["library"], request["which"], self.job.arrays, request["threads"]
        return {"status": "ok", "seconds": self.libraries.call(*told, request["times"])}

    def check(self, _: Reply) -> Reply:
        """Whether the last run's results are right."""
        assert self.job is not None, "load comes before check"
        error = self.job.wrong()
        return {"status": "wrong", "error": error} if error else {"status": "ok"}


def serve_jobs(made: Callable[[bytes, int], Job]) -> None:
    """Serve until stdin ends."""
    serve(_Worker(made).answer, machine=(OSError, RunnerUnavailable))
