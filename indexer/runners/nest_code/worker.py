"""The child process that runs compiled nests: `python -m indexer.runners.nest_code.worker`.

It may crash or hang; whoever started it judges that from outside.
"""

from __future__ import annotations

from pathlib import Path

from indexer.runners.cpu_kernels.serving import Reply, serve
from indexer.runners.nest_code.job import Libraries, NestJob
from indexer.runners.nest_code.sending import received

__all__ = ["main"]


class _Worker:
    """Answers requests; holds one nest."""

    def __init__(self) -> None:
        self.job: NestJob | None = None
        self.libraries = Libraries()

    def answer(self, request: Reply, payload: bytes) -> Reply:
        if request["do"] == "load":
            return self.load(request, payload)
        reply: Reply = getattr(self, request["do"])(request)
        return reply

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        job = NestJob(received(payload), request["seed"])
        if request["check"]:
            job.expect(Path(request["folder"]), request["reference"], self.libraries)
        self.job = job
        return {"status": "ok"}

    def call(self, request: Reply) -> Reply:
        """Seconds of one run."""
        assert self.job is not None, "load comes before call"
        self.job.restore(all=request["first"])
        told = request["library"], request["which"], self.job.arrays, request["threads"]
        return {"status": "ok", "seconds": self.libraries.call(*told)}

    def check(self, _: Reply) -> Reply:
        """Whether the last run's results are right."""
        assert self.job is not None, "load comes before check"
        error = self.job.wrong()
        return {"status": "wrong", "error": error} if error else {"status": "ok"}


def main() -> None:
    """Serve until stdin ends."""
    serve(_Worker().answer)


if __name__ == "__main__":
    main()
