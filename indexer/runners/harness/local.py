"""Runners of generated code on this machine: a worker process, and a platform with its facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from embeddb.core.config import Op
from embeddb.kernels.build import instance_of
from embeddb.platforms.platform import Platform, load_platform, space_of
from embeddb.platforms.space.space import ConfigSpace
from indexer.runners.cpu import CpuRunner
from indexer.runners.harness.worker_process import THREADS_ENV, WorkingRunner


class LocalRunner(WorkingRunner):
    """Base of runners that measure in a worker process. The compiler and the facts of the machine
    are those of runner `cpu`; the worker is replaced after `subjects` workloads, since it never
    frees compiled code."""

    #: Names of the worker's module, and of the platform.
    worker = platform_name = ""
    subjects = 128
    #: Threads that every run uses; 0 for as many as the caller asks for.
    fixed_threads = 0
    #: Facts of the machine whose digest names an instance, and what separates them in its text:
    #: instances are stored, so both stay what they are.
    identifying: tuple[str, ...] = ("cpu", "compiler", "threads")
    separator = "\\n"

    def __init__(self, env: Mapping[str, str] = THREADS_ENV, python: str = "") -> None:
        super().__init__(self.worker, env, python)
        self._machine = CpuRunner()
        self._seen = 0

    def close(self) -> None:
        """End the worker processes."""
        super().close()
        self._machine.close()

    def available(self) -> str | None:
        return self._machine.available()

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Facts of runner `cpu`."""
        return self._machine.facts(threads=self.fixed_threads or threads)

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """State by runner `cpu`."""
        return self._machine.state(threads=self.fixed_threads or threads)

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform; the instance is 8 hex digits of the digest of the runner's own identity and
        the `identifying` facts. The environment also has the machine's other facts.

        Raises: RunnerUnavailable without a compiler, or another program that it needs.
        """
        environment = self._machine.platform(threads=self.fixed_threads or threads).environment
        identity = {**{key: environment[key] for key in self.identifying}, **self._identity()}
        instance = instance_of(identity, separator=self.separator)
        return load_platform(self.platform_name).at(instance, {**environment, **identity})

    @abstractmethod
    def _identity(self) -> dict[str, str]:
        """Facts that name an instance, beside the `identifying` ones. Raises: RunnerUnavailable."""

    def space(self, op: Op, subject: Any) -> ConfigSpace:
        """The legal configurations for a subject."""
        return space_of(load_platform(self.platform_name), op, subject)

    def next_subject(self) -> None:
        """Call before each workload is measured."""
        self._seen += 1
        if self._seen % self.subjects == 0:
            self.session.close()
