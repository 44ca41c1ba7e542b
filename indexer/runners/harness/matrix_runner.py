"""Base of runners of matrices: a worker process with one matrix at a time."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.kernels.build import instance_of
from embeddb.platforms.platform import Platform, load_platform
from indexer.runners.base import RunOptions
from indexer.runners.harness.worker_process import WorkingRunner, store_facts, stored_facts

Reply = dict[str, Any]
_LOAD_S = 120.0


class MatrixRunner(WorkingRunner):
    """Base of runners of matrices, each of the platform of its name: one worker process serves all
    patterns, and probes the machine, until it crashes, hangs or `close` is called."""

    name = ""

    def __init__(self, worker: str, env: Mapping[str, str]) -> None:
        super().__init__(worker, env)
        self._loaded: tuple[int, Hashable] | None = None
        self._refused: tuple[Hashable, Reply] | None = None
        self._measured: dict[str, dict[str, str]] = {}

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform; the instance is 8 hex digits of the identity's digest. The environment also
        has facts beside the identity: those that can be read, and those measured before. Nothing is
        measured here.

        Raises: RunnerUnavailable without a compiler, or a GPU.
        """
        identity = self._identity(threads)
        instance = instance_of(identity)
        measured = self._measured.get(instance) or stored_facts(identity, self._probe_version())
        return load_platform(self.name).at(instance, {**self._still(), **measured, **identity})

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Facts of the machine by name, all as texts: those that can be read, and the results of a
        probe of a second or two, measured once. Without the latter if the probe fails.

        Raises: RunnerUnavailable as `platform`.
        """
        identity = self._identity(threads)
        instance = instance_of(identity)
        if instance not in self._measured:
            measured = stored_facts(identity, self._probe_version())
            if not measured and (figures := self._probe(threads, short=False)):
                measured = store_facts(identity, self._probe_version(), figures)
            self._measured[instance] = measured
        return {**self._still(), **self._measured[instance]}

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Some of the facts, measured again in milliseconds; empty if the probe fails, so that no
        runs are lost."""
        with suppress(RunnerUnavailable):
            self.require_available()
            return self._probe(threads, short=True)
        return {}

    @abstractmethod
    def _identity(self, threads: int) -> dict[str, str]:
        """Facts that name an instance. Raises: RunnerUnavailable."""

    @abstractmethod
    def _still(self) -> dict[str, str]:
        """Facts that need no measuring."""

    @abstractmethod
    def _probe_version(self) -> str:
        """Source or version of the probe."""

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
        if self._loaded != (self.session.ensure(), key):
            if self._refused is not None and self._refused[0] == key:
                return self._refused[1]
            self._loaded = None
            reply = self._load(pattern, op, options)
            if reply["status"] != "ok":
                self._refused = key, reply
                return reply
            self._loaded = self.session.generation, key
        return self.session.request(message, timeout_s=timeout_s)

    def _load(self, pattern: Pattern, op: Op, options: RunOptions) -> Reply:
        """The worker's reply to a pattern, or a refusal. Raises: RunnerUnavailable."""
        need = self._bytes(pattern, op, options)
        if need > options.limit_bytes:
            reason = f"matrix and dense operands need {need} bytes of {options.limit_bytes}"
            return {"status": "oom", "error": reason}
        message = {
            "do": "load",
            "shape": pattern.shape,
            "left_bytes": options.limit_bytes - need,
            "seed": options.seed,
            "check": options.check,
            **self._about(op),
        }
        arrays = (pattern.indptr, pattern.indices)
        reply = self.session.request(message, arrays, timeout_s=_LOAD_S)
        if reply["status"] == "crash":  # no kernel has run yet
            raise RunnerUnavailable(f"the worker cannot take a matrix: {reply['error']}")
        return reply

    @abstractmethod
    def _bytes(self, pattern: Pattern, op: Op, options: RunOptions) -> int:
        """Bytes of the matrix and its operands in the worker, before any is allocated."""

    @abstractmethod
    def _about(self, op: Op) -> Reply:
        """The operation as the worker takes it. Raises: RunnerUnavailable."""


def measurement_of(
    reply: Reply, tolerance: float | None, context: Mapping[str, float | str]
) -> Measurement:
    """The measurement that a worker's reply describes."""
    return Measurement(
        status=reply["status"],
        times_s=tuple(reply.get("times_s", ())),
        conversion_s=reply.get("conversion_s"),
        compile_s=reply.get("compile_s"),
        tolerance=tolerance,
        when=time.time(),
        error=reply.get("error", ""),
        cpu_max_s=tuple(reply.get("cpu_max_s", ())),
        cpu_sum_s=tuple(reply.get("cpu_sum_s", ())),
        context={"cache": "warm", **context},
    )
