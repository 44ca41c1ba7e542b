"""Base of runners of matrices: a worker process with one matrix at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.pattern import Pattern
from indexer.runners.base import RunOptions
from indexer.runners.harness.worker_process import WorkerProcess, WorkingRunner

Reply = dict[str, Any]
_LOAD_S = 120.0


class MatrixRunner(WorkingRunner):
    """Base of runners of matrices: one worker process serves all patterns until it crashes, hangs
    or `close` is called."""

    def __init__(self, worker: str, env: Mapping[str, str]) -> None:
        self._session = WorkerProcess(worker, env=env)
        self._loaded: tuple[int, Hashable] | None = None
        self._refused: tuple[Hashable, Reply] | None = None

    def close(self) -> None:
        """End the worker process."""
        self._session.close()

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Some of the facts, measured again in milliseconds; empty if the probe fails, so that no
        runs are lost."""
        with suppress(RunnerUnavailable):
            return self._probe(threads, short=True)
        return {}

    @abstractmethod
    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        """Figures of the machine. Raises: RunnerUnavailable."""

    def _ask(
        self, pattern: Pattern, op: Op, message: Reply, options: RunOptions, timeout_s: float
    ) -> Reply:
        """The worker's reply, after sending it the pattern if it has another one; or the reason
        why the pattern is refused, which is not sent twice in a run. Raises: RunnerUnavailable as
        `WorkerProcess.request`."""
        key = (pattern.id, str(op), options.limit_bytes, options.seed, options.check)
        if self._loaded != (self._session.ensure(), key):
            if self._refused is not None and self._refused[0] == key:
                return self._refused[1]
            self._loaded = None
            reply = self._load(pattern, op, options)
            if reply["status"] != "ok":
                self._refused = key, reply
                return reply
            self._loaded = self._session.generation, key
        return self._session.request(message, timeout_s=timeout_s)

    @abstractmethod
    def _load(self, pattern: Pattern, op: Op, options: RunOptions) -> Reply:
        """Bring a pattern to the worker. Raises: RunnerUnavailable."""

    def _sent(self, pattern: Pattern, options: RunOptions, need: int, message: Reply) -> Reply:
        """The worker's reply to a pattern, which needs `need` bytes with its operands."""
        whole = {
            "do": "load",
            "shape": pattern.shape,
            "left_bytes": options.limit_bytes - need,
            "seed": options.seed,
            "check": options.check,
            **message,
        }
        arrays = (pattern.indptr, pattern.indices)
        reply = self._session.request(whole, arrays, timeout_s=_LOAD_S)
        if reply["status"] == "crash":  # no kernel has run yet
            raise RunnerUnavailable(f"the worker cannot take a matrix: {reply['error']}")
        return reply


def too_large(need: int, options: RunOptions) -> Reply | None:
    """The refusal of a matrix that needs more bytes than allowed; None if it fits."""
    if need <= options.limit_bytes:
        return None
    reason = f"matrix and dense operands need {need} bytes of {options.limit_bytes}"
    return {"status": "oom", "error": reason}
