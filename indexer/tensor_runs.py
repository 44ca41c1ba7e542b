"""Tiles of tensor kernels and cuts of tensor programs, measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.machine_state import between
from embeddb.core.records import IN_A_ROW, Measurement, Run, in_context
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import Workload
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import why_not
from indexer.measure import Design, Machine
from indexer.runners.base import HARDWARE_S

#: Kendall's tau of two rounds below which a third one is run.
TILE_AGREEMENT = 0.8
#: Prefix of the names that runs are stored under.
_PREFIX = "tiles:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileDesign(Design):
    """So many tiles of each kernel, so many rounds; `seed` is that of the tiles and their order.
    Tiles that ran in as many rounds under any such design, or failed, are not measured again."""

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


class MeasuresPrograms(Protocol):
    """Times the partitions of one program (`indexer.runners.xla_code.measuring.ProgramTimes`)."""

    known: dict[str, float]
    fresh: list[tuple[TensorGraph, Measurement]]

    def measure(self, partition: Partition, *, chained: bool = False) -> Any: ...


@dataclass(frozen=True, slots=True)
class CutRun:
    """What came out of a cut, and of those of its kernels that were timed for it. `in_a_row` are
    the processor's seconds of all its kernels run in a row, None where that was not asked for."""

    measurement: Measurement
    fresh: tuple[tuple[TensorGraph, Measurement], ...]
    in_a_row: float | None

    @property
    def hardware_s(self) -> float:
        """Seconds that compiling and timing took."""
        return float(self.measurement.context[HARDWARE_S])


class CutRuns:
    """Measures cuts of a program on a machine with a runner of `xla-cpu`."""

    def __init__(self, machine: Machine, program: TensorGraph) -> None:
        self.machine, self.program = machine, program
        self._times: MeasuresPrograms = machine.runner.program(program, machine.options)
        self._state = machine.state()

    def measure(
        self, cut: Cut, campaign: str, *, chained: bool = False, anew: bool = False
    ) -> CutRun:
        """Kernels that were timed before on this machine with what a program hands them, whichever
        that was, are not timed again unless `anew`. With `chained` all are also run in a row. Where
        it is stopped, the kernels that were timed are kept.

        Raises: TensorError for a cut that is not legal; RunnerUnavailable if the machine fails in
        the middle of it.
        """
        times, partition = self._times, Partition.of(self.program, cut)
        if anew:
            times.known.clear()
        else:
            self._remember(partition)
        start = time.perf_counter()
        try:
            told = times.measure(partition, chained=chained)
        except BaseException:
            for kernel, measured in times.fresh:
                self._store(kernel, _FUSED, Config({}), measured, campaign)
            raise
        took = time.perf_counter() - start
        before, self._state = self._state, self.machine.state()
        facts = between(before, self._state)
        fresh = tuple((kernel, in_context(found, facts)) for kernel, found in told.fresh)
        for kernel, measured in fresh:
            self._store(kernel, _FUSED, Config({}), measured, campaign)
        found = in_context(told.measurement, {**facts, HARDWARE_S: took})
        in_a_row = float(np.median(told.chain_s)) if told.chain_s and found.ok else None
        if in_a_row is not None:
            found = in_context(found, {IN_A_ROW: in_a_row})
        self._store(self.program, _FUSION, config_of(cut), found, campaign)
        return CutRun(found, fresh, in_a_row)

    def _remember(self, partition: Partition) -> None:
        known = self._times.known
        for placed in partition.kernels:
            if placed.kernel.id not in known:
                seconds = seconds_known(self.machine, placed.kernel.id, in_program=True)
                if seconds is not None:
                    known[placed.kernel.id] = seconds

    def _store(
        self, subject: TensorGraph, op: Op, config: Config, found: Measurement, campaign: str
    ) -> None:
        here = self.machine.here
        run = Run(subject.id, op, here.id, config, found, campaign)
        self.machine.db.record([run], subject, here)


def seconds_known(machine: Machine, kernel_id: str, *, in_program: bool = False) -> float | None:
    """Of a kernel that was timed on this machine before; infinite if it failed. With `in_program`,
    times that it took with drawn arrays are not known."""
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
    """The configuration of op `fusion` that is this cut."""
    return Config({CUT: cut.text})


#: Shorter kernels are mostly calls: they say little of what is computed.
LONG_S = 50e-6
#: Draws for each cut that is wanted: small programs have few.
_DRAWS = 4
#: How the names begin under which runs are kept.
_NAME = "cuts:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRequest:
    """So many cuts of each program, drawn by `seed`, beside `whole`, `single` and what the compiler
    does by itself. A share of `chained` are also run kernel by kernel in a row."""

    cuts: int = 60
    chained: float = 0.05
    seed: int = 0


@dataclass(slots=True)
class FusionTally:
    """Programs and kernels that were done before or now; partitions measured now; kernels of at
    least `LONG_S`; by name why a program or kernel has no time. `ratios` are, of partitions run in
    a row too, those seconds of the processor over the sum of their kernels'."""

    known: int = 0
    programs: int = 0
    partitions: int = 0
    kernels: int = 0
    long: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)

    def add(self, kernel: TensorGraph, found: Measurement) -> None:
        """A kernel that was measured now, or failed."""
        if not found.ok:
            self.failed[kernel.label(self.failed)] = found.error
            return
        self.kernels += 1
        self.long += found.least >= LONG_S


@dataclass(frozen=True, slots=True)
class FusionJob:
    """Measures programs and kernels on a machine with a runner of `xla-cpu`."""

    machine: Machine
    request: FusionRequest

    def programs(
        self,
        programs: Sequence[TensorGraph],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> FusionTally:
        """Every program, its partitions one after the other, each written back with its kernels
        when it is done; those that were done before are left out, and kernels that were timed
        before, in whatever program, are not timed again.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        tally = FusionTally()
        for at, program in enumerate(programs):
            if progress is not None:
                progress(f"measure {program.name}", at, len(programs))
            try:
                asked = self._asked(program)
            except TensorError as error:
                tally.failed[program.label(tally.failed)] = error.reason
                continue
            if asked:
                self._program(program, asked, tally)
                tally.programs += 1
            else:
                tally.known += 1
        return tally

    def kernels(
        self,
        kernels: Sequence[TensorGraph],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> FusionTally:
        """Every kernel by itself, checked, some of them in turns and kept together; those that were
        done before are left out.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        machine = self.machine
        asked = [one for one in kernels if seconds_known(machine, one.id) is None]
        tally = FusionTally(known=len(kernels) - len(asked))
        state, done = machine.state(), 0
        for some in machine.runner.kernels(asked, machine.options):
            before, state = state, machine.state()
            facts = between(before, state)
            for kernel, found in some:
                told = in_context(found, facts)
                run = Run(kernel.id, _FUSED, machine.here.id, Config({}), told, self._campaign())
                machine.db.record([run], kernel, machine.here)
                tally.add(kernel, told)
            done += len(some)
            if progress is not None:
                progress("measure kernels", done, len(asked))
        return tally

    # -- one program -------------------------------------------------------------------------------

    def _program(self, program: TensorGraph, cuts: Sequence[Cut], tally: FusionTally) -> None:
        runs = CutRuns(self.machine, program)
        rng = np.random.default_rng([self.request.seed, 1])
        for cut in cuts:
            chained = bool(rng.random() < self.request.chained)
            told = runs.measure(cut, self._campaign(), chained=chained)
            for kernel, found in told.fresh:
                tally.add(kernel, found)
            if told.in_a_row is not None:
                tally.ratios.append(told.in_a_row / told.measurement.seconds)
            tally.partitions += 1
            if not told.measurement.ok:
                tally.failed.setdefault(program.name or program.id[:12], told.measurement.error)

    def _asked(self, program: TensorGraph) -> list[Cut]:
        """The cuts that are still to be measured. Raises: TensorError for a program without."""
        edges = edges_of(program)
        if len(edges.pairs) > MOST_EDGES:
            raise TensorError(f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut")
        rng = np.random.default_rng(self.request.seed)
        asked = dict.fromkeys([edges.whole, edges.single])
        for _ in range(_DRAWS * self.request.cuts):
            if len(asked) >= self.request.cuts + 2:
                break
            asked[random_cut(program, rng)] = None
        # Whatever they ran for: a cut is the sum of its kernels, none of which is timed again.
        ran = self.machine.stored(program, _FUSION)
        if not any(run.campaign.startswith(_NAME) for run in ran):
            asked = {self.machine.runner.compiler_cut(program): None, **asked}
        done = {run.config for run in ran}
        return [cut for cut in asked if config_of(cut) not in done]

    def _campaign(self) -> str:
        return f"{_NAME}{self.request.cuts}/{self.request.seed}"
