"""The child process that runs compiled kernels: `python -m indexer.runners.tile_code.worker`."""

from __future__ import annotations

from embeddb.tensors.tensor_text import tensor_from_text
from indexer.runners.harness.worker import serve_jobs
from indexer.runners.tile_code.job import KernelJob

__all__ = ["main"]


def _job(payload: bytes, seed: int) -> KernelJob:
    """Of the bytes of scratch memory, and the kernel's text behind them."""
    scratch, _, text = payload.partition(b"\n")
    return KernelJob(tensor_from_text(text), int(scratch), seed)


def main() -> None:
    """Serve until stdin ends."""
    serve_jobs(_job)


if __name__ == "__main__":
    main()
