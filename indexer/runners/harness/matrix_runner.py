"""Shared by runners of matrices: a worker process that holds one matrix at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.pattern import Pattern
from indexer.runners.base import RunOptions
from indexer.runners.harness.worker_process import Closing, WorkerProcess

Reply = dict[str, Any]
_LOAD_S = 120.0


class MatrixRunner(Closing, ABC):
    """Base of these runners: one worker process serves all patterns until it crashes, hangs or
    `close` is called."""

    def __init__(self, worker: str, env: Mapping[str, str]) -> None:
        self._session = WorkerProcess(worker, env=env)
        self._loaded: tuple[int, Hashable] | None = None
        self._refused: tuple[Hashable, Reply] | None = None

    def close(self) -> None:
        """End the worker process."""
        self._session.close()

    @abstractmethod
    def available(self) -> str | None: ...

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Some of the measured facts again, in some milliseconds. Empty if the probe fails, since
        runs must not be lost because of it."""
        with suppress(RunnerUnavailable):
            return self._probe(threads, short=True)
        return {}

    @abstractmethod
    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        """Figures of the machine. Raises: RunnerUnavailable."""

    def _require_available(self) -> None:
        """Raises: RunnerUnavailable."""
        if (reason := self.available()) is not None:
            raise RunnerUnavailable(reason)

    def _ask(
        self, pattern: Pattern, op: Op, message: Reply, options: RunOptions, timeout_s: float
    ) -> Reply:
        """The worker's reply, with the pattern brought there first if it is not there yet, or why
        it cannot be: what was refused is not sent again in the same run. Raises: RunnerUnavailable
        as `WorkerProcess.request`."""
        key = (pattern.id, str(op), options.max_bytes, options.seed, options.check)
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
        """The worker's reply to a pattern that with its operands needs so many bytes."""
        whole = {
            "do": "load",
            "shape": pattern.shape,
            "left_bytes": options.max_bytes - need,
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
    """The refusal of a matrix whose bytes exceed what is allowed; None where they do not."""
    if need <= options.max_bytes:
        return None
    reason = f"matrix and dense operands need {need} bytes of {options.max_bytes}"
    return {"status": "oom", "error": reason}
