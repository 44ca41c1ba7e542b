"""The CPU as a platform: generated loop nests, compiled by gcc, timed in a child process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, SpaceError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.forms import PADDING
from indexer.runners.base import RunOptions
from indexer.runners.baselines import baselines
from indexer.runners.cpu_kernels import probe as cpu_probe
from indexer.runners.harness.matrix_runner import MatrixRunner, Reply, measurement_of
from indexer.runners.harness.worker_process import THREADS_ENV

if TYPE_CHECKING:
    from embeddb.kernels.bodies import Variant
    from embeddb.kernels.codegen import Launch

_WORKER = "indexer.runners.cpu_kernels.worker"
_PROBE_TIMEOUT_S = 60.0
_TOLERANCES = {"f32": 1e-5, "f64": 1e-13}


class CpuRunner(MatrixRunner):
    """Run SpMM, SpMV and SDDMM, f32 and f64, on this machine's processors.

    Threads are not pinned and sleep while they wait; caches are warm in every timed repeat.
    """

    name = "cpu"

    def __init__(self) -> None:
        threads = str(cpu_build.threads_used(0))
        super().__init__(_WORKER, {**THREADS_ENV, "OMP_NUM_THREADS": threads})
        self._built: dict[Variant | None, cpu_build.Built] = {}

    def available(self) -> str | None:
        return None if cpu_build.compiler() else cpu_build.no_compiler()

    def _identity(self, threads: int) -> dict[str, str]:
        """Facts that name an instance. Another key here makes every machine a new one."""
        self.require_available()
        compiler = cpu_build.compiler()
        assert compiler is not None
        return {
            "cpu": cpu_build.cpu_model(),
            "compiler": compiler[1],
            "flags": " ".join(cpu_build.flags()),
            "kernels": str(cpu_codegen.GENERATION),
            "threads": str(cpu_build.threads_used(threads)),
            "wait_policy": "passive",
            "proc_bind": "false",
        }

    def _still(self) -> dict[str, str]:
        """Vector width, processors and caches."""
        return {"vector_bytes": str(cpu_build.vector_bytes()), **cpu_probe.static_facts()}

    def _probe_version(self) -> str:
        return cpu_probe.source(cpu_build.vector_bytes())

    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        built = cpu_build.build(self._probe_version())
        if built.error:
            return {}
        request = {
            "do": "probe",
            "library": str(built.path),
            "threads": cpu_build.threads_used(threads),
            "short": short,
        }
        reply = self.session.request(request, timeout_s=_PROBE_TIMEOUT_S)
        return dict(reply.get("figures", {}))

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure configurations. Raises: UsageError for an operation without a matrix, or another
        value type than f32 or f64; RunnerUnavailable, also for failures of the machine in the
        middle of it."""
        self._require(op)
        self._refused = None
        for config in configs:
            yield config, self._measure(pattern, op, config, options)

    def prepare(self, op: Op, configs: Sequence[Config]) -> None:
        """Compile the kernels for `run`, on every processor; a failure here is a status there. Not
        while measuring. Compilers that share the machine make each `compile_s` longer.

        Raises: UsageError, RunnerUnavailable as `run`.
        """
        self._require(op)
        variants: dict[Variant | None, None] = {None: None}
        for config in configs:
            with suppress(SpaceError):
                variants[self._plan(op, config)[0]] = None
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._build, variants))

    def baselines(
        self, pattern: Pattern, op: Op, *, options: RunOptions, only: Collection[str] = ()
    ) -> dict[str, Measurement]:
        """Measurements of other libraries' kernels (of `only` those, if any are named), by name;
        those not installed are absent.

        May be called between two configurations of `run`, so that both see the same machine.

        Raises: UsageError, RunnerUnavailable as `run`.
        """
        self._require(op)
        measurements = {}
        threads = cpu_build.threads_used(options.threads)
        for name in (n for n in baselines.names(op.name) if not only or n in only):
            request = {"do": "baseline", "name": name, "threads": threads, **options.effort}
            reply = self._ask(pattern, op, request, options, options.timeout_s)
            if "missing" not in reply:
                measurements[name] = _measurement(reply, op, options, threads)
        return measurements

    def _require(self, op: Op) -> None:
        if op.kind != "matrix":
            raise UsageError(f"the cpu runner has no {op}", hint="its operations run on matrices")
        if op.dtype not in _TOLERANCES:
            raise UsageError(f"the cpu runner has no {op}", hint="its value types are f32 and f64")
        self.require_available()

    def _measure(
        self, pattern: Pattern, op: Op, config: Config, options: RunOptions
    ) -> Measurement:
        try:
            variant, launch = self._plan(op, config)
        except SpaceError as error:
            return Measurement(status="invalid", error=str(error), when=time.time())
        built = self._build(variant)
        if built.error:
            return Measurement(
                "build", error=built.error, compile_s=built.compile_s, when=time.time()
            )
        threads = 1 if launch.threads == "one" else cpu_build.threads_used(options.threads)
        request = {
            "do": "measure",
            "library": str(built.path),
            "form": asdict(launch.form),
            "schedule": cpu_codegen.SCHEDULES[launch.schedule],
            "chunk": launch.chunk,
            "strip": launch.strip,
            "pieces": launch.pieces,
            "scratch": launch.scratch,
            "threads": threads,
            **options.effort,
        }
        reply = self._ask(pattern, op, request, options, options.timeout_s)
        return _measurement({**reply, "compile_s": built.compile_s}, op, options, threads)

    def _plan(self, op: Op, config: Config) -> tuple[Variant, Launch]:
        return cpu_codegen.plan(config, op, vector_bytes=cpu_build.vector_bytes())

    def _build(self, variant: Variant | None) -> cpu_build.Built:
        """The kernel of a variant (None: the conversions), verified once and then remembered."""
        built = self._built.get(variant)
        if built is None or not built.path.exists():
            built = cpu_build.build(
                cpu_codegen.source(variant) if variant else cpu_codegen.conversions()
            )
            if not built.error:
                self._built[variant] = built
        return built

    def _bytes(self, pattern: Pattern, op: Op, options: RunOptions) -> int:
        """Bytes of CSR, the dense operands, the result and the expected one. SDDMM has two dense
        operands, a result as long as CSR, and to check it a bound of each value."""
        m, n = pattern.shape
        size = 8 if op.dtype == "f64" else 4
        results = 1 + options.check
        rows, beside = (n + PADDING + (m + PADDING) * results), 0
        if op.name == "sddmm":
            rows, beside = n + m + 2 * PADDING, pattern.nnz * (results + options.check)
        matrix = pattern.nnz * (4 + size * (1 + options.check)) + 8 * (m + 1)
        return (rows * op.width + beside) * size + matrix

    def _about(self, op: Op) -> Reply:
        built = self._build(None)
        if built.error:  # what every configuration needs is the fault of none
            raise RunnerUnavailable(f"the conversions of formats do not compile: {built.error}")
        return {
            "library": str(built.path),
            "kernel": op.name,
            "width": op.width,
            "dtype": op.dtype,
            "tolerance": _TOLERANCES[op.dtype],
        }


def _measurement(reply: Reply, op: Op, options: RunOptions, threads: int) -> Measurement:
    context: dict[str, float | str] = {
        "load1": round(os.getloadavg()[0], 2),
        "threads": reply.get("threads", threads),
    }
    if "switches" in reply:
        context["involuntary_switches"] = reply["switches"]
    return measurement_of(reply, _TOLERANCES[op.dtype] if options.check else None, context)


PLUGIN = CpuRunner
