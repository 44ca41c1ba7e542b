"""Tensor kernels, and programs cut into kernels, by XLA on one of this machine's processors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, TensorError, UsageError
from embeddb.core.extras import install_command
from embeddb.core.records import Measurement
from embeddb.tensors.edges import CUT
from embeddb.tensors.partition import Partition
from indexer.frontends.hlo.printer import hlo_text
from indexer.runners.base import RunOptions
from indexer.runners.harness.local import LocalRunner
from indexer.runners.xla_code.measuring import KernelTimes, ProgramTimes, cut_of, together

if TYPE_CHECKING:
    from embeddb.tensors.edges import Cut
    from embeddb.tensors.tensor_graph import TensorGraph

#: Names the interpreter that has jax, where it is not this one.
VARIABLE = "EMBEDDB_JAX_PYTHON"
_START_S, _OPTIMISE_S = 120.0, 300.0
_FLAGS = "--xla_cpu_multi_thread_eigen=false"
#: One thread. Freed memory is kept for reuse, or every call pays for fresh pages; arrays of more
#: than 32 MiB do unless glibc maps none at all, however high its threshold.
_ENV = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": _FLAGS,
    "NPROC": "1",
    "PJRT_NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
#: Kernels that take turns, and how often they do before the worker is replaced.
_IN_TURNS, _TURNS_A_WORKER = 16, 32


class XlaRunner(LocalRunner):
    """Compile each kernel by itself, so that nothing is fused across kernels, and time it: the
    fastest call of each of several rounds, after two warm-up calls, with arrays created once.

    The time of a program under a fusion plan is the sum of its kernels'. Each is timed once for all
    partitions of a program; run in sequence, their results are compared with those of the program
    compiled as one. Jax is never imported here: the worker's interpreter is named by `VARIABLE`, or
    is this one.
    """

    name = "xla"
    subjects = 8
    fixed_threads = 1
    worker, platform_name = "indexer.runners.xla_code.worker", "xla-cpu"
    identifying, separator = ("cpu", "threads"), "\n"

    def __init__(self) -> None:
        self._python = os.environ.get(VARIABLE, "")
        super().__init__(_ENV, self._python)
        self._about: dict[str, str] = {}

    def available(self) -> str | None:
        if self._python:
            named = Path(self._python)
            return None if named.is_file() else f"{VARIABLE} names {named}, which is no file"
        if find_spec("jax") is None:
            return f"jax is not installed: {install_command('jax')}, or name a Python in {VARIABLE}"
        return None

    def _identity(self) -> dict[str, str]:
        """Flags, and versions of jax. Raises: RunnerUnavailable without jax."""
        if not self._about:
            self.require_available()
            reply = self.session.request({"do": "about"}, timeout_s=_START_S)
            if reply["status"] != "ok":
                raise RunnerUnavailable(f"jax cannot be started: {reply['error']}")
            self._about = {name: str(reply[name]) for name in ("jax", "jaxlib")}
        return {"flags": _FLAGS, **self._about}

    def run(
        self, subject: TensorGraph, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure a kernel under `fused`, or a program under `fusion`; kernels of an earlier
        program are timed again. With `options.check` a kernel's results are compared with those of
        the same kernel, compiled without optimisation.

        Raises: UsageError for another operation; RunnerUnavailable, also for failures of the
        machine in the middle of it.
        """
        if op.name not in ("fused", "fusion"):
            raise UsageError(f"the xla runner has no {op}", hint="it has fused and fusion")
        self.require_available()
        space = self.space(op, subject)
        times = self.program(subject, options) if op.name == "fusion" else None
        for config in configs:
            if (refused := space.reason(config)) is not None:
                yield config, Measurement("invalid", error=refused, when=time.time())
            elif times is not None:
                partition = Partition.of(subject, str(config[CUT]))
                yield config, times.measure(partition).measurement
            else:
                ((_, measurement),) = KernelTimes(self.session, options).in_turns([subject])
                yield config, measurement

    def kernels(
        self, kernels: Sequence[TensorGraph], options: RunOptions
    ) -> Iterator[list[tuple[TensorGraph, Measurement]]]:
        """Measure kernels by themselves, some at a time, in turns, so that noise of the machine is
        spread over several kernels.

        Raises: RunnerUnavailable, also for failures of the machine in the middle of it.
        """
        self.require_available()
        for number, some in enumerate(together(kernels, _IN_TURNS), start=1):
            yield KernelTimes(self.session, options).in_turns(some)
            if number % _TURNS_A_WORKER == 0:
                self.session.close()

    def program(self, program: TensorGraph, options: RunOptions) -> ProgramTimes:
        """The timer of partitions of a program, in the worker, which has one program at a time."""
        self.next_subject()
        return ProgramTimes(program, self.session, options)

    def compiler_cut(self, program: TensorGraph) -> Cut:
        """The fusion plan nearest to XLA's own.

        Raises: TensorError for a program that XLA does not compile; RunnerUnavailable.
        """
        self.require_available()
        text = hlo_text(program).encode()
        reply = self.session.request({"do": "optimised"}, [text], timeout_s=_OPTIMISE_S)
        if reply["status"] != "ok":
            raise TensorError(f"XLA does not compile the program: {reply['error']}")
        return cut_of(program, reply["text"])


PLUGIN = XlaRunner
