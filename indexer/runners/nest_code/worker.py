"""The child process that runs compiled nests: `python -m indexer.runners.nest_code.worker`."""

from __future__ import annotations

from indexer.runners.harness.worker import serve_jobs
from indexer.runners.nest_code.job import NestJob
from indexer.runners.nest_code.sending import received

__all__ = ["main"]


def main() -> None:
    """Serve until stdin ends."""
    serve_jobs(lambda payload, seed: NestJob(received(payload), seed))


if __name__ == "__main__":
    main()
