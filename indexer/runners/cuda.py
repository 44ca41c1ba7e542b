"""An NVIDIA GPU as a platform: CUDA kernels and cuSPARSE, timed in a child process."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, SpaceError, UsageError
from embeddb.core.extras import install_command
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.kernels.cuda import nvrtc
from embeddb.kernels.cuda.plan import MOST_ENTRIES, SIZES, identity_of, plan
from embeddb.platforms.platform import load_platform, space_of
from indexer.runners.base import RunOptions
from indexer.runners.harness.matrix_runner import MatrixRunner, Reply, measurement_of

_WORKER = "indexer.runners.cuda_worker"
#: Version of the probe of `indexer.runners.cuda_worker`.
_PROBE = "cuda 1"
#: The first start imports torch and makes the GPU's context.
_START_S, _COMPILE_S, _PROBE_S = 180.0, 120.0, 60.0
#: Share of the GPU's memory that a matrix may take: torch and the context need some, too.
_MEMORY_SHARE = 0.8


#: Description of the GPU by the worker, once it is known; constant for the life of this process.
_REPORTED: dict[str, Any] = {}


class CudaRunner(MatrixRunner):
    """Runs SpMM, SpMV and SDDMM on this machine's first visible GPU.

    Torch and the driver are used in the worker only. A time is the mean of 3 to 20 products in one
    CUDA graph, caches warm; `RunOptions.repeats` is the number of its replays. `max_repeats`,
    `min_time_s` and `threads` do not apply.
    """

    name = "cuda"

    def __init__(self, worker: str = _WORKER) -> None:
        super().__init__(worker, {})
        self._looks = worker == _WORKER  # other workers need no driver

    def available(self) -> str | None:
        for package in ("torch", "cuda"):
            if find_spec(package) is None:
                return f"CUDA kernels need {package}: {install_command('cuda')}"
        try:
            if self._looks:  # before a process is started
                ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA driver: libcuda.so.1 cannot be loaded (nvidia-smi shows it)"
        try:
            return self._gpu().get("missing")
        except RunnerUnavailable as error:
            return str(error)

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Raises: UsageError for an operation without a kernel; RunnerUnavailable, also for
        failures of the machine in the middle of it."""
        self._require(op)
        self._refused = None
        if options.max_bytes is None:
            memory = int(self._still()["memory_bytes"])
            options = replace(options, max_bytes=int(memory * _MEMORY_SHARE))
        space = space_of(load_platform("cuda"), op, pattern)
        for config in configs:
            if (reason := space.reason(config)) is not None:
                yield config, Measurement("invalid", error=reason, when=time.time())
            else:
                yield config, self._measure(pattern, op, dict(space.numeric(config)), options)

    def prepare(self, op: Op, configs: Sequence[Config]) -> None:
        """Compile the kernels for `run`, on every processor; a failure here is a status there.

        Raises: UsageError, RunnerUnavailable as `run`.
        """
        self._require(op)
        templates: dict[str, None] = {}
        for config in configs:
            with suppress(SpaceError):
                templates[plan(config, op).template] = None
        templates.pop("", None)
        architecture = f"sm_{self._identity(0)['capability']}"

        def compiled(template: str) -> None:
            with suppress(nvrtc.CompileFailed, RunnerUnavailable):
                nvrtc.cubin(template, architecture)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, templates))

    def _gpu(self) -> dict[str, Any]:
        """Identity and properties of the GPU, or `missing`. Raises: RunnerUnavailable."""
        reported = _REPORTED if self._looks else {}
        if not reported:
            reply = self.session.request({"do": "about"}, timeout_s=_START_S)
            if reply["status"] != "ok":
                raise RunnerUnavailable(f"the GPU cannot be used: {reply['error']}")
            reported.update(reply)
        return reported

    def _identity(self, threads: int) -> dict[str, str]:
        self.require_available()
        return identity_of(self._gpu()["identity"])

    def _still(self) -> dict[str, str]:
        """Multiprocessors, sizes of caches and memory."""
        return dict(self._gpu()["properties"])

    def _probe_version(self) -> str:
        return _PROBE

    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        """Copy bandwidth, and the time of a launch unless `short`."""
        reply = self.session.request({"do": "probe", "short": short}, timeout_s=_PROBE_S)
        return dict(reply.get("figures", {}))

    def _require(self, op: Op) -> None:
        if op.name not in ("spmm", "spmv", "sddmm"):
            hint = "its operations are spmm, spmv and sddmm"
            raise UsageError(f"the cuda runner has no {op}", hint=hint)
        self.require_available()

    def _measure(
        self, pattern: Pattern, op: Op, config: dict[str, Any], options: RunOptions
    ) -> Measurement:
        """Compile and measure; the time limit is that of all but compiling and loading."""
        compiled = self._ask(pattern, op, {"do": "compile", "config": config}, options, _COMPILE_S)
        if compiled["status"] != "ok":
            return _measurement(compiled, options)
        message = {"do": "measure", "config": config, "repeats": options.repeats}
        reply = self._ask(pattern, op, message, options, options.timeout_s)
        return _measurement({**compiled, **reply}, options)

    def _load(self, pattern: Pattern, op: Op, options: RunOptions) -> Reply:
        if max(pattern.nnz, *pattern.shape) > MOST_ENTRIES:
            reason = f"{pattern.shape[0]} x {pattern.shape[1]} with {pattern.nnz} entries"
            hint = f"the CUDA kernels take at most {MOST_ENTRIES} rows, columns and entries"
            return {"status": "invalid", "error": f"{reason}: {hint}"}
        return super()._load(pattern, op, options)

    def _bytes(self, pattern: Pattern, op: Op, options: RunOptions) -> int:
        """Bytes on the GPU of CSR, the dense operands and the result, and of the reference with its
        sum of magnitudes."""
        m, n = pattern.shape
        sampled = op.name == "sddmm"
        result = pattern.nnz if sampled else m * op.width
        dense = (n + m * sampled) * op.width + result
        matrix = pattern.nnz * (4 + SIZES[op.dtype]) + 4 * (m + 1)
        reference = result * 12 + (0 if sampled else pattern.nnz * 36)
        return dense * SIZES[op.dtype] + matrix + reference * options.check

    def _about(self, op: Op) -> Reply:
        return {"op": str(op)}


def _measurement(reply: Reply, options: RunOptions) -> Measurement:
    context = {name: reply[name] for name in ("graph_products",) if name in reply}
    return measurement_of(reply, reply.get("tolerance") if options.check else None, context)


PLUGIN = CudaRunner
