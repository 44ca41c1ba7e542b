"""Measurement of tiles of tensor kernels and of fusion plans of tensor programs on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.records import HARDWARE_S, IN_A_ROW, Measurement, Run, in_context
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import between, summarise_runs
from embeddb.core.workload import Workload
from embeddb.index.recorder import Machine
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.platform import Platform, default_of, space_of
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import why_not
from indexer.measure import Design

if TYPE_CHECKING:
    from indexer.runners.xla_code.measuring import ProgramTimes

#: Kendall's tau of two rounds below which a third one is run.
TILE_AGREEMENT = 0.8
#: Prefix of the names that runs are stored under.
_PREFIX = "tiles:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileDesign(Design):
    """A number of `tiles` of each kernel in a number of `rounds`; `seed` is that of the tiles and
    their order. Tiles that ran in as many rounds under any such design, or failed, are not measured
    again."""

    tiles: int = 80
    rounds: int = 2
    seed: int = 0

    @property
    def op(self) -> Op:
        return Op("tile")

    @property
    def campaign(self) -> str:
        return f"{_PREFIX}{self.tiles}x{self.rounds}/{self.seed}"

    def configs(
        self, here: Platform, workload: Workload, stored: Sequence[Run], rng: np.random.Generator
    ) -> list[Config]:
        """The untiled form and the tiles that are left; empty if none is left.

        Raises: TensorError for a kernel without tiles.
        """
        assert isinstance(workload, TensorGraph)
        if reason := why_not(workload):
            raise TensorError(reason)
        default = default_of(here, self.op, workload)
        space = space_of(here, self.op, workload)
        tiles = designed_tiles(space, default, self.tiles, rng=rng)
        done = self._done([run for run in stored if run.campaign.startswith(_PREFIX)])
        left = [tile for tile in tiles if tile not in done]
        return list(dict.fromkeys([default, *left])) if left else []

    def _done(self, runs: Sequence[Run]) -> set[Config]:
        rounds: dict[Config, set[object]] = {}
        for run in runs:
            rounds.setdefault(run.config, set()).add(run.measurement.context.get("round"))
        failed = {run.config for run in runs if not run.measurement.ok}
        return failed | {tile for tile, ran in rounds.items() if len(ran) >= self.rounds}


_FUSED, _FUSION = Op("fused"), Op("fusion")


class CutRuns:
    """Measure fusion plans of a program on a machine with a runner of `xla-cpu`."""

    def __init__(self, machine: Machine, program: TensorGraph) -> None:
        self.machine, self.program = machine, program
        self._times: ProgramTimes = machine.runner.program(program, machine.options)
        self._state = machine.state()

    def measure(
        self, cut: Cut, campaign: str, *, chained: bool = False, anew: bool = False
    ) -> tuple[Measurement, list[tuple[TensorGraph, Measurement]]]:
        """Measure a fusion plan; returns its measurement and those of the kernels timed for it.

        Kernels that were timed before on this machine with the inputs that a program passes them,
        in whatever program, are not timed again unless `anew`. With `chained` all are also run in
        sequence, and their CPU seconds are stored as `IN_A_ROW`. If interrupted, the kernels timed
        so far are stored.

        Raises: TensorError for an illegal plan; RunnerUnavailable if the machine fails in the
        middle.
        """
        times, partition = self._times, Partition.of(self.program, cut)
        if anew:
            times.seconds.clear()
        else:
            self._remember(partition)
        start = time.perf_counter()
        try:
            timing = times.measure(partition, chained=chained)
        except BaseException:
            for kernel, measured in times.fresh:
                _store(self.machine, kernel, measured, campaign)
            raise
        context = {HARDWARE_S: time.perf_counter() - start}
        before, self._state = self._state, self.machine.state()
        facts = between(before, self._state)
        fresh = [(kernel, in_context(measured, facts)) for kernel, measured in timing.fresh]
        for kernel, measured in fresh:
            _store(self.machine, kernel, measured, campaign)
        if timing.chain_s and timing.measurement.ok:
            context[IN_A_ROW] = float(np.median(timing.chain_s))
        measurement = in_context(timing.measurement, {**facts, **context})
        _store(self.machine, self.program, measurement, campaign, cut)
        return measurement, fresh

    def _remember(self, partition: Partition) -> None:
        by_kernel = self._times.seconds
        for kernel_id in (placed.kernel.id for placed in partition.kernels):
            if kernel_id not in by_kernel:
                seconds = stored_seconds(self.machine, kernel_id, in_program=True)
                if seconds is not None:
                    by_kernel[kernel_id] = seconds


def _store(
    machine: Machine,
    subject: TensorGraph,
    measurement: Measurement,
    campaign: str,
    cut: Cut | None = None,
) -> None:
    """Store a run of a kernel, or of a `cut` of a program."""
    op, config = (_FUSED, Config({})) if cut is None else (_FUSION, config_of(cut))
    run = Run(subject.id, op, machine.here.id, config, measurement, campaign)
    machine.db.record([run], subject, machine.here)


def stored_seconds(machine: Machine, kernel_id: str, *, in_program: bool = False) -> float | None:
    """Stored seconds of a kernel on this machine, infinite if it failed, None if it never ran. With
    `in_program` runs with random inputs do not count."""
    store = machine.db.store
    if store.pattern(kernel_id) is None:
        return None
    runs = list(store.runs(machine.here.id, _FUSED, kernel_id))
    if not runs:
        return None
    timed = summarise_runs(runs)
    seconds = timed[Config({})].seconds if Config({}) in timed else math.inf
    drawn = math.isfinite(seconds) and not any(run.measurement.of_program for run in runs)
    return None if in_program and drawn else seconds


def config_of(cut: Cut) -> Config:
    """The configuration of op `fusion` for a fusion plan."""
    return Config({CUT: cut.text})


#: Shorter kernels are mostly call overhead.
LONG_S = 50e-6
#: Draws per requested plan: small programs have few distinct ones.
_DRAWS = 4
#: Prefix of the names that runs are stored under.
_NAME = "cuts:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRequest:
    """The number of `cuts` of each program, drawn by `seed`, beside `whole`, `single` and the
    compiler's own. A share of `chained` also runs its kernels in sequence."""

    cuts: int = 60
    chained: float = 0.05
    seed: int = 0


@dataclass(slots=True)
class FusionTally:
    """Programs and kernels measured `earlier` or now; partitions measured now; kernels of at least
    `LONG_S`; the reason by name for each that failed. `ratios`: for partitions also run in
    sequence, those CPU seconds over the sum of the kernels' seconds."""

    earlier: int = 0
    programs: int = 0
    partitions: int = 0
    kernels: int = 0
    long: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)

    def add(self, kernel: TensorGraph, measurement: Measurement) -> None:
        """Count a kernel that was measured now, or failed."""
        if not measurement.ok:
            self.failed[kernel.label(self.failed)] = measurement.error
            return
        self.kernels += 1
        self.long += measurement.least >= LONG_S


@dataclass(frozen=True, slots=True)
class FusionJob:
    """Measure programs and kernels on a machine with a runner of `xla-cpu`."""

    machine: Machine
    request: FusionRequest

    def programs(
        self,
        programs: Sequence[TensorGraph],
        progress: Progress = ignore_progress,
    ) -> FusionTally:
        """Measure every program, its partitions one after the other, each stored with its kernels
        when it is finished. Programs measured before are left out, and kernels timed before, in
        whatever program, are not timed again.

        Raises: RunnerUnavailable if the machine fails in the middle.
        """
        tally = FusionTally()
        for at, program in enumerate(programs):
            progress(f"measure {program.name}", at, len(programs))
            try:
                plans = self._unmeasured(program)
            except TensorError as error:
                tally.failed[program.label(tally.failed)] = error.reason
                continue
            if plans:
                self._program(program, plans, tally)
                tally.programs += 1
            else:
                tally.earlier += 1
        return tally

    def kernels(
        self,
        kernels: Sequence[TensorGraph],
        progress: Progress = ignore_progress,
    ) -> FusionTally:
        """Measure every kernel by itself, with its results checked, some of them in turns and
        stored together; those measured before are left out.

        Raises: RunnerUnavailable if the machine fails in the middle.
        """
        machine = self.machine
        missing = [one for one in kernels if stored_seconds(machine, one.id) is None]
        tally = FusionTally(earlier=len(kernels) - len(missing))
        state, done = machine.state(), 0
        for some in machine.runner.kernels(missing, machine.options):
            before, state = state, machine.state()
            facts = between(before, state)
            for kernel, measured in some:
                measurement = in_context(measured, facts)
                _store(machine, kernel, measurement, self._campaign())
                tally.add(kernel, measurement)
            done += len(some)
            progress("measure kernels", done, len(missing))
        return tally

    # -- one program -------------------------------------------------------------------------------

    def _program(self, program: TensorGraph, cuts: Sequence[Cut], tally: FusionTally) -> None:
        runs = CutRuns(self.machine, program)
        rng = np.random.default_rng([self.request.seed, 1])
        for cut in cuts:
            chained = bool(rng.random() < self.request.chained)
            ran, fresh = runs.measure(cut, self._campaign(), chained=chained)
            for kernel, measurement in fresh:
                tally.add(kernel, measurement)
            if IN_A_ROW in ran.context:
                tally.ratios.append(float(ran.context[IN_A_ROW]) / ran.seconds)
            tally.partitions += 1
            if not ran.ok:
                tally.failed.setdefault(program.name or program.id[:12], ran.error)

    def _unmeasured(self, program: TensorGraph) -> list[Cut]:
        """Fusion plans still to be measured. Raises: TensorError for a program without any."""
        edges = edges_of(program)
        if len(edges.pairs) > MOST_EDGES:
            raise TensorError(f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut")
        rng = np.random.default_rng(self.request.seed)
        plans = dict.fromkeys([edges.whole, edges.single])
        for _ in range(_DRAWS * self.request.cuts):
            if len(plans) >= self.request.cuts + 2:
                break
            plans[random_cut(program, rng)] = None
        # Of any request: a plan is the sum of its kernels, none of which is timed again.
        ran = self.machine.stored(program, _FUSION)
        if not any(run.campaign.startswith(_NAME) for run in ran):
            plans = {self.machine.runner.compiler_cut(program): None, **plans}
        done = {run.config for run in ran}
        return [cut for cut in plans if config_of(cut) not in done]

    def _campaign(self) -> str:
        return f"{_NAME}{self.request.cuts}/{self.request.seed}"
