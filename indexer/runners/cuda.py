"""An NVIDIA GPU as a platform: CUDA kernels and cuSPARSE, timed in a child process."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, SpaceError, UsageError
from embeddb.core.extras import install_command
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.kernels.build import instance_of
from embeddb.kernels.cuda import nvrtc
from embeddb.kernels.cuda.plan import SIZES, identity_of, plan
from embeddb.platforms.platform import space_of
from indexer.runners.base import RunOptions
from indexer.runners.harness.matrix_runner import MatrixRunner, too_large
from indexer.runners.harness.worker_process import store_facts, stored_facts

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

_WORKER = "indexer.runners.cuda_kernels.worker"
#: Version of the probe of `indexer.runners.cuda_kernels.worker`.
_PROBE = "cuda 1"
#: The first start imports torch and makes the GPU's context.
_START_S, _COMPILE_S, _PROBE_S = 180.0, 120.0, 60.0
_MOST_ENTRIES = (1 << 31) - 1
#: Share of the GPU's memory that a matrix may take: torch and the context need some, too.
_MEMORY_SHARE = 0.8


@lru_cache(maxsize=1)
def has_driver() -> bool:
    """True if NVIDIA's driver can be loaded, which is checked before a process is started."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


#: Description of the GPU by the worker of a module; constant for the life of this process.
_REPORTED: dict[str, dict[str, Any]] = {}


class CudaRunner(MatrixRunner):
    """Runs SpMM, SpMV and SDDMM on this machine's first visible GPU.

    Torch and the driver are used in the worker only. A time is the mean of 3 to 20 products in one
    CUDA graph, caches warm; `RunOptions.repeats` is the number of its replays. `max_repeats`,
    `min_time_s` and `threads` do not apply.
    """

    name = "cuda"

    def __init__(self, worker: str = _WORKER) -> None:
        super().__init__(worker, {})
        self._worker = worker
        self._looks = worker == _WORKER  # other workers need no driver
        self._facts: dict[str, str] = {}

    def available(self) -> str | None:
        for package in ("torch", "cuda"):
            if find_spec(package) is None:
                return f"CUDA kernels need {package}: {install_command('cuda')}"
        if self._looks and not has_driver():
            return "no NVIDIA driver: libcuda.so.1 cannot be loaded (nvidia-smi shows it)"
        try:
            return self._gpu().get("missing")
        except RunnerUnavailable as error:
            return str(error)

    def platform(self, *, threads: int = 0) -> Platform:
        """Platform `cuda`; the instance is 8 hex digits of the digest of GPU, compute capability,
        driver, toolkit and generation of the kernels. The environment also has the facts that can
        be read, and those measured before.

        Raises: RunnerUnavailable without a GPU.
        """
        from embeddb.platforms.platform import load_platform

        identity = self._identity()
        facts = self._facts or stored_facts(identity, _PROBE)
        return load_platform("cuda").at(
            instance_of(identity), {**self._properties(), **facts, **identity}
        )

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Multiprocessors, sizes of caches and memory, and what a probe of a second measures unless
        it was measured before: copy bandwidth and the time of a launch.

        Raises: RunnerUnavailable without a GPU.
        """
        identity = self._identity()
        self._facts = self._facts or stored_facts(identity, _PROBE)
        if not self._facts and (figures := self._probe(0, short=False)):
            self._facts = store_facts(identity, _PROBE, figures)
        return {**self._properties(), **self._facts}

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Raises: UsageError for an operation without a kernel; RunnerUnavailable, also for
        failures of the machine in the middle of it."""
        from embeddb.platforms.platform import load_platform

        self._require(op)
        self._refused = None
        if options.max_bytes is None:
            memory = int(self._properties()["memory_bytes"])
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
        architecture = f"sm_{self._identity()['capability']}"

        def compiled(template: str) -> None:
            with suppress(nvrtc.CompileFailed, RunnerUnavailable):
                nvrtc.cubin(template, architecture)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, templates))

    def _gpu(self) -> dict[str, Any]:
        """Identity and properties of the GPU, or `missing`. Raises: RunnerUnavailable."""
        reported = _REPORTED.get(self._worker)
        if reported is None:
            reply = self._session.request({"do": "about"}, timeout_s=_START_S)
            if reply["status"] != "ok":
                raise RunnerUnavailable(f"the GPU cannot be used: {reply['error']}")
            reported = reply
            if self._looks:
                _REPORTED[self._worker] = reply
        return reported

    def _identity(self) -> dict[str, str]:
        self.require_available()
        return identity_of(self._gpu()["identity"])

    def _properties(self) -> dict[str, str]:
        return dict(self._gpu()["properties"])

    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        if self.available() is not None:
            return {}
        reply = self._session.request({"do": "probe", "short": short}, timeout_s=_PROBE_S)
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

    def _load(self, pattern: Pattern, op: Op, options: RunOptions) -> dict[str, Any]:
        if max(pattern.nnz, *pattern.shape) > _MOST_ENTRIES:
            reason = f"{pattern.shape[0]} x {pattern.shape[1]} with {pattern.nnz} entries"
            hint = f"the CUDA kernels take at most {_MOST_ENTRIES} rows, columns and entries"
            return {"status": "invalid", "error": f"{reason}: {hint}"}
        need = _bytes(pattern, op, options)
        return too_large(need, options) or self._sent(pattern, options, need, {"op": str(op)})


def _bytes(pattern: Pattern, op: Op, options: RunOptions) -> int:
    """Bytes on the GPU of CSR, the dense operands and the result, and of the reference with its sum
    of magnitudes, before any is allocated."""
    m, n = pattern.shape
    sampled = op.name == "sddmm"
    result = pattern.nnz if sampled else m * op.width
    dense = (n + m * sampled) * op.width + result
    matrix = pattern.nnz * (4 + SIZES[op.dtype]) + 4 * (m + 1)
    reference = result * 12 + (0 if sampled else pattern.nnz * 36)
    return dense * SIZES[op.dtype] + matrix + reference * options.check


def _measurement(reply: dict[str, Any], options: RunOptions) -> Measurement:
    context: dict[str, float | str] = {"cache": "warm"}
    if "graph_products" in reply:
        context["graph_products"] = reply["graph_products"]
    return Measurement(
        status=reply["status"],
        times_s=tuple(reply.get("times_s", ())),
        conversion_s=reply.get("conversion_s"),
        compile_s=reply.get("compile_s"),
        tolerance=reply.get("tolerance") if options.check else None,
        when=time.time(),
        error=reply.get("error", ""),
        context=context,
    )


PLUGIN = CudaRunner
