"""What runners of generated C are on this machine: a worker, and the platform with its facts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from indexer.runners.compiled.closing import Closing
from indexer.runners.cpu import CpuRunner
from indexer.runners.cpu_kernels.session import Session

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

__all__ = ["CompiledHere"]

_ENV = {
    "OMP_WAIT_POLICY": "passive",
    "OMP_DYNAMIC": "false",
    "OMP_PROC_BIND": "false",
    "OPENBLAS_NUM_THREADS": "1",
}


class CompiledHere(Closing):
    """The part that such runners share. The worker process, the compiler and the facts of the
    machine are those of runner `cpu`; after `subjects` subjects the worker is replaced, for it
    keeps every shared object that it loaded."""

    subjects = 128

    def __init__(self, worker: str, platform: str) -> None:
        self._machine = CpuRunner()
        self._platform = platform
        self.session = Session(worker, env=_ENV)
        self._seen = 0

    def close(self) -> None:
        """End the worker processes."""
        self.session.close()
        self._machine.close()

    def available(self) -> str | None:
        return self._machine.available()

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Those of runner `cpu`."""
        return self._machine.facts(threads=threads)

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Those of runner `cpu`."""
        return self._machine.state(threads=threads)

    def platform_as(self, identity: Mapping[str, str], *, threads: int) -> Platform:
        """The platform; its instance is 8 hex digits of the digest of what decides on the code and
        its speed: the processor, the compiler, threads, and `identity`. The environment tells the
        facts of the machine beside.

        Raises: RunnerUnavailable without a compiler.
        """
        from embeddb.platforms.platform import load_platform

        known = self._machine.platform(threads=threads).environment
        told = {**{key: known[key] for key in ("cpu", "compiler", "threads")}, **identity}
        text = "\\n".join(f"{key}={told[key]}" for key in sorted(told))
        instance = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return load_platform(self._platform).at(instance, {**known, **told})

    def next_subject(self) -> None:
        """To be called before one is measured."""
        self._seen += 1
        if self._seen % self.subjects == 0:
            self.session.close()
