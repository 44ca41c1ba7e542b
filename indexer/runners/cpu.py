"""The CPU as a platform: generated loop nests, compiled by gcc, timed in a child process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, SpaceError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.build import instance_of
from embeddb.kernels.forms import PADDING
from indexer.runners.base import RunOptions
from indexer.runners.baselines import baselines
from indexer.runners.cpu_kernels import probe as cpu_probe
from indexer.runners.harness.matrix_runner import MatrixRunner, too_large

if TYPE_CHECKING:
    from embeddb.kernels.bodies import Variant
    from embeddb.kernels.codegen import Launch
    from embeddb.platforms.platform import Platform

_WORKER = "indexer.runners.cpu_kernels.worker"
_PROBE_TIMEOUT_S = 60.0
_TOLERANCES = {"f32": 1e-5, "f64": 1e-13}


class CpuRunner(MatrixRunner):
    """Run SpMM, SpMV and SDDMM, f32 and f64, on this machine's processors.

    Threads are not pinned and sleep while they wait; caches are warm in every timed repeat.
    """

    name = "cpu"

    def __init__(self) -> None:
        env = {
            "OMP_WAIT_POLICY": "passive",
            "OMP_NUM_THREADS": str(cpu_build.threads_used(0)),
            "OMP_DYNAMIC": "false",
            "OMP_PROC_BIND": "false",
            "OPENBLAS_NUM_THREADS": "1",
        }
        super().__init__(_WORKER, env)
        self._built: dict[Variant | None, cpu_build.Built] = {}
        self._probing: cpu_build.Built | None = None
        self._facts: dict[str, dict[str, str]] = {}

    def available(self) -> str | None:
        return None if cpu_build.compiler() else cpu_build.no_compiler()

    def platform(self, *, threads: int = 0) -> Platform:
        """Platform `cpu`; the instance is 8 hex digits of the identity's digest. The environment
        also has facts beside the identity: those that can be read, and those measured before.
        Nothing is measured here.

        Raises: RunnerUnavailable without a compiler.
        """
        from embeddb.platforms.platform import load_platform

        identity = self._identity(threads)
        instance = instance_of(identity)
        facts = {**self._still(), **(self._facts.get(instance) or cpu_probe.stored(identity))}
        return load_platform("cpu").at(instance, {**facts, **identity})

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Facts of this machine by name, all as texts: vector width, processors, caches, and the
        results of a probe of a second or two, measured once. Without the latter if the probe fails.

        Raises: RunnerUnavailable without a compiler.
        """
        here = self.platform(threads=threads)
        if here.instance not in self._facts:
            identity = self._identity(threads)
            facts = cpu_probe.stored(identity)
            if not facts and (figures := self._probe(threads, short=False)):
                facts = cpu_probe.store(identity, figures)
            self._facts[here.instance] = facts
        return {**self._still(), **self._facts[here.instance]}

    def _probe(self, threads: int, *, short: bool) -> dict[str, float]:
        if self.available() is not None:
            return {}
        if self._probing is None or not self._probing.path.exists():
            self._probing = cpu_build.build(cpu_probe.source(cpu_build.vector_bytes()))
        if self._probing.error:
            return {}
        library = str(self._probing.path)
        request = {
            "do": "probe",
            "library": library,
            "threads": cpu_build.threads_used(threads),
            "short": short,
        }
        reply = self._session.request(request, timeout_s=_PROBE_TIMEOUT_S)
        return dict(reply.get("figures", {}))

    def _still(self) -> dict[str, str]:
        return {"vector_bytes": str(cpu_build.vector_bytes()), **cpu_probe.static_facts()}

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
            try:
                variants[self._plan(op, config)[0]] = None
            except SpaceError:
                continue
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
            request = {"do": "baseline", "name": name, "threads": threads}
            reply = self._timed(pattern, op, request, options)
            if "missing" not in reply:
                measurements[name] = _measurement(reply, op, options, threads)
        return measurements

    def _identity(self, threads: int) -> dict[str, str]:
        """Facts that name an instance. Another key here makes every machine a new one."""
        compiler = cpu_build.compiler()
        if compiler is None:
            raise RunnerUnavailable(cpu_build.no_compiler())
        return {
            "cpu": cpu_build.cpu_model(),
            "compiler": compiler[1],
            "flags": " ".join(cpu_build.flags()),
            "kernels": str(cpu_codegen.GENERATION),
            "threads": str(cpu_build.threads_used(threads)),
            "wait_policy": "passive",
            "proc_bind": "false",
        }

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
            return _failed("build", built.error, compile_s=built.compile_s)
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
        }
        reply = self._timed(pattern, op, request, options)
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

    def _timed(
        self, pattern: Pattern, op: Op, request: dict[str, Any], options: RunOptions
    ) -> dict[str, Any]:
        return self._ask(pattern, op, {**request, **options.effort}, options, options.timeout_s)

    def _load(self, pattern: Pattern, op: Op, options: RunOptions) -> dict[str, Any]:
        need = _bytes(pattern, op, options)
        if refusal := too_large(need, options):
            return refusal
        built = self._build(None)
        if built.error:  # what every configuration needs is the fault of none
            raise RunnerUnavailable(f"the conversions of formats do not compile: {built.error}")
        message = {
            "library": str(built.path),
            "kernel": op.name,
            "width": op.width,
            "dtype": op.dtype,
            "tolerance": _TOLERANCES[op.dtype],
        }
        return self._sent(pattern, options, need, message)


def _bytes(pattern: Pattern, op: Op, options: RunOptions) -> int:
    """Bytes of CSR, the dense operands, the result and the expected one, before any is allocated.

    SDDMM has two dense operands, a result as long as CSR, and to check it a bound of each value.
    """
    m, n = pattern.shape
    size = 8 if op.dtype == "f64" else 4
    results = 1 + options.check
    rows, beside = (n + PADDING + (m + PADDING) * results), 0
    if op.name == "sddmm":
        rows, beside = n + m + 2 * PADDING, pattern.nnz * (results + options.check)
    matrix = pattern.nnz * (4 + size * (1 + options.check)) + 8 * (m + 1)
    return (rows * op.width + beside) * size + matrix


def _failed(status: str, error: str, *, compile_s: float | None = None) -> Measurement:
    return Measurement(status=status, error=error, compile_s=compile_s, when=time.time())


def _measurement(reply: dict[str, Any], op: Op, options: RunOptions, threads: int) -> Measurement:
    context: dict[str, float | str] = {
        "cache": "warm",
        "load1": round(os.getloadavg()[0], 2),
        "threads": reply.get("threads", threads),
    }
    if "switches" in reply:
        context["involuntary_switches"] = reply["switches"]
    return Measurement(
        status=reply["status"],
        times_s=tuple(reply.get("times_s", ())),
        conversion_s=reply.get("conversion_s"),
        compile_s=reply.get("compile_s"),
        tolerance=_TOLERANCES[op.dtype] if options.check else None,
        when=time.time(),
        error=reply.get("error", ""),
        cpu_max_s=tuple(reply.get("cpu_max_s", ())),
        cpu_sum_s=tuple(reply.get("cpu_sum_s", ())),
        context=context,
    )


PLUGIN = CpuRunner
