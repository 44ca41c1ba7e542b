"""Runners of generated code on this machine: a worker process, and a platform with its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from embeddb.kernels.build import instance_of
from indexer.runners.cpu import CpuRunner
from indexer.runners.harness.worker_process import WorkerProcess, WorkingRunner

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

_ENV = {
    "OMP_WAIT_POLICY": "passive",
    "OMP_DYNAMIC": "false",
    "OMP_PROC_BIND": "false",
    "OPENBLAS_NUM_THREADS": "1",
}


class LocalRunner(WorkingRunner):
    """Base of runners that measure in a worker process. The compiler and the facts of the machine
    are those of runner `cpu`; the worker is replaced after `subjects` workloads, since it never
    frees compiled code."""

    subjects = 128
    #: Threads that every run uses; 0 for as many as the caller asks for.
    fixed_threads = 0
    #: Facts of the machine whose digest names an instance, and what separates them in its text:
    #: instances are stored, so both stay what they are.
    identifying: tuple[str, ...] = ("cpu", "compiler", "threads")
    separator = "\\n"

    def __init__(
        self, worker: str, platform: str, *, env: Mapping[str, str] = _ENV, python: str = ""
    ) -> None:
        self._machine = CpuRunner()
        self._platform = platform
        self.session = WorkerProcess(worker, env=env, python=python)
        self._seen = 0

    def close(self) -> None:
        """End the worker processes."""
        self.session.close()
        self._machine.close()

    def available(self) -> str | None:
        return self._machine.available()

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Facts of runner `cpu`."""
        return self._machine.facts(threads=self.fixed_threads or threads)

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """State by runner `cpu`."""
        return self._machine.state(threads=self.fixed_threads or threads)

    def platform_as(self, identity: Mapping[str, str], *, threads: int) -> Platform:
        """The platform, for an instance named by the first 8 hex digits of a digest of `identity`
        and the `identifying` facts; its environment also has the machine's other facts.

        Raises: RunnerUnavailable without a compiler.
        """
        from embeddb.platforms.platform import load_platform

        environment = self._machine.platform(threads=self.fixed_threads or threads).environment
        identity = {**{key: environment[key] for key in self.identifying}, **identity}
        instance = instance_of(identity, separator=self.separator)
        return load_platform(self._platform).at(instance, {**environment, **identity})

    def next_subject(self) -> None:
        """Call before each workload is measured."""
        self._seen += 1
        if self._seen % self.subjects == 0:
            self.session.close()
