"""Measure configurations of workloads on this machine and write the runs back.

`MeasureJob` applies a `Design` to many workloads, resumably; `measure_sample` runs a sample, or
given configurations, of one workload.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.records import Measurement, Run, failure_kinds
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.core.workload import Workload
from embeddb.index.recorder import Machine, Recorder
from embeddb.platforms.platform import Platform, default_of, space_of
from embeddb.platforms.space.space import ConfigSpace
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.campaign.agreement import compare
from indexer.campaign.plan import choose_configs

#: Configurations that two rounds must share before their rank correlation is used.
_FEWEST_SHARED = 3


# -- many workloads --------------------------------------------------------------------------------


class Design(Protocol):
    """Choice of the configurations measured of each workload."""

    @property
    def op(self) -> Op: ...

    @property
    def campaign(self) -> str:
        """Name that runs are stored under: a workload with runs of that name is done."""

    @property
    def seed(self) -> int:
        """Seed of random choices and of the order of rounds."""

    def configs(
        self, here: Platform, workload: Workload, stored: Sequence[Run], rng: np.random.Generator
    ) -> list[Config]:
        """Configurations still to measure, given the `stored` runs; empty if the workload is done.

        Raises: TensorError for a workload that cannot be measured.
        """

    def follow_up(self, recorder: Recorder) -> None:
        """Measure more, chosen by the recorder's runs so far; by default nothing."""
        return


@dataclass(slots=True)
class MeasureTally:
    """Workloads measured `earlier` or `measured` now, their configurations and runs.
    `again`: workloads whose rounds disagreed and were repeated; `skipped`: reason by name; `taus`:
    Kendall's tau of the first two rounds of each measured workload, nan if there was one round."""

    earlier: int = 0
    measured: int = 0
    configs: int = 0
    runs: int = 0
    again: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    taus: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Measures workloads by a `design` in so many `rounds`, in another order each; one more if
    Kendall's tau of the first two is below `agreement`.

    The runs of a workload are stored together when it is finished, or not at all, so an interrupted
    job resumes with the next workload.
    """

    machine: Machine
    design: Design
    rounds: int = 1
    agreement: float = -math.inf

    def run(
        self, workloads: Sequence[Workload], progress: Progress = ignore_progress
    ) -> MeasureTally:
        """Measure one workload after the other. Raises: RunnerUnavailable if the machine fails."""
        tally = MeasureTally()
        for at, workload in enumerate(workloads):
            progress(f"measure {workload.name}", at, len(workloads))
            self._visit(workload, tally)
        return tally

    def _visit(self, workload: Workload, tally: MeasureTally) -> None:
        design = self.design
        stored = self.machine.stored(workload, design.op)
        rng = np.random.default_rng(design.seed)
        configs: list[Config] = []
        if not any(run.campaign == design.campaign for run in stored):
            try:
                configs = design.configs(self.machine.here, workload, stored, rng)
            except TensorError as error:
                tally.skipped[_label(workload, tally.skipped)] = error.reason
                return
        if configs:
            self._measure(workload, configs, rng, tally)
        else:
            tally.earlier += 1

    def _measure(
        self,
        workload: Workload,
        configs: Sequence[Config],
        rng: np.random.Generator,
        tally: MeasureTally,
    ) -> None:
        recorder = Recorder(self.machine, workload, self.design.op, self.design.campaign)
        rounds: list[list[Run]] = []

        def measure(chosen: Sequence[Config]) -> None:
            # In a job with rounds, runs have the number of theirs, from 1, in their contexts.
            several = math.isfinite(self.agreement)
            facts = {"round": len(rounds) + 1.0} if several else {}
            rounds.append(list(recorder.measure(chosen, facts=facts)))

        measure(configs)
        while len(rounds) < self.rounds:
            measure(_succeeded(rounds[0], rng))
        tau = _kendall(*rounds[:2]) if len(rounds) > 1 else math.nan
        if tau < self.agreement:
            measure(_succeeded(rounds[0], rng))
            tally.again += 1
        self.design.follow_up(recorder)
        facts = {} if math.isnan(tau) else {"agreement": round(tau, 4)}
        tally.runs += len(recorder.keep(facts))
        tally.measured += 1
        tally.configs += len(configs)
        tally.taus.append(tau)


def _label(workload: Workload, taken: Mapping[str, str]) -> str:
    return workload.label(taken) if isinstance(workload, TensorGraph) else workload.name


def _succeeded(runs: Sequence[Run], rng: np.random.Generator) -> list[Config]:
    """Configurations that ran, shuffled; those that failed once are not tried again."""
    configs = [run.config for run in runs if run.measurement.ok]
    return [configs[at] for at in rng.permutation(len(configs))]


def _kendall(first: Sequence[Run], second: Sequence[Run]) -> float:
    """Kendall's tau-b over the configurations that succeeded in both rounds; nan for too few."""
    one, other = ({r.config: r.seconds for r in runs} for runs in (first, second))
    both = [c for c in one if math.isfinite(one[c]) and math.isfinite(other.get(c, math.inf))]
    if len(both) < _FEWEST_SHARED:
        return math.nan
    times = (np.array([seconds[c] for c in both]) for seconds in (one, other))
    return compare(*times).kendall


# -- a sample of one workload ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """Configurations to run beside the default: these `texts`, else a sample of so many
    `configs`; `seed` is that of the sample and of the order. With `baselines` other libraries are
    timed too."""

    op: Op
    texts: Sequence[str] = ()
    configs: int = 10
    seed: int = 0
    baselines: bool = False

    def order(self, here: Platform, workload: Workload, default: Config) -> list[Config]:
        """Every configuration to run, the default among them, shuffled.

        Raises: SpaceError, UsageError for one that is not legal.
        """
        rng = np.random.default_rng(self.seed)
        space = space_of(here, self.op, workload)
        if self.texts:
            chosen = list(dict.fromkeys([default, *_legal(space, self.texts)]))
        else:
            chosen = choose_configs(space, default, self.configs + 1, rng=rng)
        return [chosen[i] for i in rng.permutation(len(chosen))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Timings of one workload by configuration, and of `baselines` by the name of a library.
    `errors` are the reasons of the configurations that failed, `earlier` counts those that were
    measured before, on a simulated platform."""

    pattern: Workload
    platform: Platform
    op: Op
    default: Config
    timings: dict[Config, TimingSummary]
    errors: dict[Config, str]
    baselines: dict[str, Measurement]
    earlier: int

    def document(self) -> dict[str, Any]:
        """JSON form, the fastest configuration first; `gain` is over the default. `failures` counts
        the failed configurations by status and reason, the most frequent first."""
        base = self.timings[self.default].seconds if self.default in self.timings else math.inf
        ranked = sorted(self.timings.items(), key=lambda pair: (pair[1].seconds, pair[0].json))
        return {
            "pattern_id": self.pattern.id,
            "name": self.pattern.name,
            "platform": self.platform.id,
            "op": str(self.op),
            "time_unit": self.platform.time_unit,
            "default": {"config": dict(self.default), **_outcome(base, "")},
            "earlier": self.earlier,
            "configs": [
                {
                    "config": dict(config),
                    **_outcome(timing.seconds, timing.status, self.errors.get(config, "")),
                    "gain": base / timing.seconds if base < math.inf else None,
                }
                for config, timing in ranked
            ],
            "failures": self._failures(),
            "baselines": {
                name: {
                    **_outcome(m.seconds, m.status),
                    "conversion_s": m.conversion_s,
                    "compile_s": m.compile_s,
                }
                for name, m in self.baselines.items()
            },
        }

    def _failures(self) -> list[dict[str, Any]]:
        failed = Counter(
            (timing.status, self.errors.get(config, ""))
            for config, timing in self.timings.items()
            if not math.isfinite(timing.seconds)
        )
        return [
            {"status": status, "error": error, "configs": count}
            for (status, error), count in failure_kinds(failed).most_common()
        ]


def _outcome(seconds: float, status: str, error: str = "") -> dict[str, Any]:
    outcome: dict[str, Any] = {"seconds": seconds if math.isfinite(seconds) else None}
    words = {"status": status, "error": error}
    return {**outcome, **{name: text for name, text in words.items() if text}}


def measure_sample(
    machine: Machine,
    request: MeasureRequest,
    workload: Workload,
    progress: Progress = ignore_progress,
) -> Measured:
    """Run the requested configurations of one workload, on a simulated platform those that did not
    run before; runs are stored even if interrupted.

    Raises: SpaceError, UsageError for a configuration that is not legal here; RunnerUnavailable if
    the machine fails in the middle.
    """
    here, op = machine.here, request.op
    default = default_of(here, op, workload)
    configs = request.order(here, workload, default)
    stored = machine.known(workload, op)
    runs = [stored[config] for config in configs if config in stored]
    fresh, earlier = [config for config in configs if config not in stored], len(runs)
    recorder = Recorder(machine, workload, op, "measure")
    try:
        for _ in recorder.measure(fresh):
            progress(f"measure {workload.name}", len(recorder.runs), len(fresh))
    finally:
        runs += recorder.keep()
    timed = request.baselines and has_baselines(machine)
    return Measured(
        pattern=workload,
        platform=here,
        op=op,
        default=default,
        timings=summarise_runs(runs),
        errors={r.config: r.measurement.error for r in runs if not r.measurement.ok},
        baselines=(
            machine.runner.baselines(workload, op, options=machine.options) if timed else {}
        ),
        earlier=earlier,
    )


def has_baselines(machine: Machine) -> bool:
    """True if the runner times other libraries."""
    return hasattr(machine.runner, "baselines")


def _legal(space: ConfigSpace, texts: Sequence[str]) -> list[Config]:
    """Canonical configurations of these texts. Raises: SpaceError, UsageError for an illegal
    one."""
    configs = [space.canonical(Config.parse(text)) for text in texts]
    for config in configs:
        space.check(config)
    return configs
