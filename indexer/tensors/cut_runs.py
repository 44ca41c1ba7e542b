"""Cuts of one program measured on this machine, each kept with the kernels that it makes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import IN_A_ROW, Measurement, Run, in_context
from embeddb.core.timing import timings_of
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT, Cut
from embeddb.tensors.partition import Partition
from indexer.runners.base import HARDWARE_S, RunOptions

__all__ = ["CutRun", "CutRuns", "MeasuresPrograms", "config_of", "seconds_known"]

_FUSED, _FUSION = Op("fused"), Op("fusion")


class MeasuresPrograms(Protocol):
    """Times the partitions of one program (`indexer.runners.xla_code.measuring.ProgramTimes`)."""

    known: dict[str, float]
    fresh: list[tuple[Computation, Measurement]]

    def measure(self, partition: Partition, *, chained: bool = False) -> Any: ...


@dataclass(frozen=True, slots=True)
class CutRun:
    """What came out of a cut, and of those of its kernels that were timed for it. `in_a_row` are
    the processor's seconds of all its kernels run in a row, None where that was not asked for."""

    measurement: Measurement
    fresh: tuple[tuple[Computation, Measurement], ...]
    in_a_row: float | None

    @property
    def hardware_s(self) -> float:
        """Seconds that compiling and timing took."""
        return float(self.measurement.context[HARDWARE_S])


class CutRuns:
    """Measures into `db` with a runner of `xla-cpu` on `here`, the platform as this machine is."""

    def __init__(
        self, db: Lookup, runner: Any, here: Platform, program: Computation, options: RunOptions
    ) -> None:
        self.db, self.here, self.program = db, here, program
        self._runner = runner
        self._times: MeasuresPrograms = runner.program(program, options)
        self._state = state_now(runner, threads=1)

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
                self._keep(kernel, measured, campaign)
            raise
        took = time.perf_counter() - start
        before, self._state = self._state, state_now(self._runner, threads=1)
        facts = between(before, self._state)
        fresh = tuple((kernel, in_context(found, facts)) for kernel, found in told.fresh)
        for kernel, measured in fresh:
            self._keep(kernel, measured, campaign)
        found = in_context(told.measurement, {**facts, HARDWARE_S: took})
        in_a_row = float(np.median(told.chain_s)) if told.chain_s and found.ok else None
        if in_a_row is not None:
            found = in_context(found, {IN_A_ROW: in_a_row})
        run = Run(self.program.id, _FUSION, self.here.id, config_of(cut), found, campaign)
        self.db.record([run], self.program, self.here)
        return CutRun(found, fresh, in_a_row)

    def _remember(self, partition: Partition) -> None:
        known = self._times.known
        for placed in partition.kernels:
            if placed.kernel.id not in known:
                seconds = seconds_known(self.db, self.here, placed.kernel.id, in_program=True)
                if seconds is not None:
                    known[placed.kernel.id] = seconds

    def _keep(self, kernel: Computation, found: Measurement, campaign: str) -> None:
        run = Run(kernel.id, _FUSED, self.here.id, Config({}), found, campaign)
        self.db.record([run], kernel, self.here)


def seconds_known(
    db: Lookup, here: Platform, kernel_id: str, *, in_program: bool = False
) -> float | None:
    """Of a kernel that was timed on this machine before; infinite if it failed. With `in_program`,
    times that it took with drawn arrays are not known."""
    if db.store.pattern(kernel_id) is None:
        return None
    runs = list(db.store.runs(here.id, _FUSED, kernel_id))
    if not runs:
        return None
    timed = timings_of(runs)
    seconds = timed[Config({})].seconds if Config({}) in timed else math.inf
    drawn = math.isfinite(seconds) and not any(run.measurement.of_program for run in runs)
    return None if in_program and drawn else seconds


def config_of(cut: Cut) -> Config:
    """The configuration of op `fusion` that is this cut."""
    return Config({CUT: cut.text})
