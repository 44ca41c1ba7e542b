"""Many partitions of tensor programs measured on this machine, and through them many kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Measurement, Run, in_context
from embeddb.core.timing import timings_of
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.cuts import random_cut
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import Partition
from indexer.runners.base import RunOptions

__all__ = ["LONG_S", "FusionJob", "FusionRequest", "FusionTally", "MeasuresPrograms"]

_FUSED, _FUSION = Op("fused"), Op("fusion")
#: Shorter kernels are mostly calls: they say little of what is computed.
LONG_S = 50e-6
#: Draws for each cut that is wanted: small programs have few.
_DRAWS = 4


class MeasuresPrograms(Protocol):
    """Times the partitions of one program (`indexer.runners.xla_code.measuring.ProgramTimes`)."""

    known: dict[str, float]

    def measure(self, partition: Partition, *, chained: bool = False) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRequest:
    """So many cuts of each program, drawn by `seed`, beside `whole`, `single` and what the compiler
    does by itself. A share of `chained` are also run kernel by kernel in a row."""

    cuts: int = 60
    chained: float = 0.05
    seed: int = 0
    options: RunOptions = field(default_factory=lambda: RunOptions(threads=1))


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


@dataclass(frozen=True, slots=True)
class FusionJob:
    """Measures into `db` with a runner of `xla-cpu` on `here`, the platform as this machine is."""

    db: Lookup
    runner: Any
    here: Platform
    request: FusionRequest

    def programs(
        self,
        programs: Sequence[Computation],
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
                tally.failed[program.name or program.id[:12]] = error.reason
                continue
            if asked:
                self._program(program, asked, tally)
                tally.programs += 1
            else:
                tally.known += 1
        return tally

    def kernels(
        self,
        kernels: Sequence[Computation],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> FusionTally:
        """Every kernel by itself, checked; those that were done before are left out.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        tally = FusionTally()
        for at, kernel in enumerate(kernels):
            if progress is not None:
                progress(f"measure {kernel.name}", at, len(kernels))
            if self._timed(kernel.id) is not None:
                tally.known += 1
                continue
            before = state_now(self.runner, threads=1)
            ran = list(self.runner.run(kernel, _FUSED, [Config({})], options=self.request.options))
            facts = between(before, state_now(self.runner, threads=1))
            for _, found in ran:
                self._keep(kernel, in_context(found, facts), tally)
        return tally

    # -- one program -------------------------------------------------------------------------------

    def _program(self, program: Computation, cuts: Sequence[Cut], tally: FusionTally) -> None:
        times: MeasuresPrograms = self.runner.program(program, self.request.options)
        rng = np.random.default_rng([self.request.seed, 1])
        state = state_now(self.runner, threads=1)
        for cut in cuts:
            partition = Partition.of(program, cut)
            for placed in partition.kernels:
                if placed.kernel.id not in times.known:
                    seconds = self._timed(placed.kernel.id)
                    if seconds is not None:
                        times.known[placed.kernel.id] = seconds
            chained = bool(rng.random() < self.request.chained)
            told = times.measure(partition, chained=chained)
            before, state = state, state_now(self.runner, threads=1)
            facts = between(before, state)
            found = in_context(told.measurement, facts)
            for kernel, measured in told.fresh:
                self._keep(kernel, in_context(measured, facts), tally)
            if told.chain_s and found.ok:
                in_a_row = float(np.median(told.chain_s))
                found = in_context(found, {"chain_s": in_a_row})
                tally.ratios.append(in_a_row / found.seconds)
            run = Run(program.id, _FUSION, self.here.id, _config(cut), found, self._campaign())
            self.db.record([run], program, self.here)
            tally.partitions += 1
            if not found.ok:
                tally.failed.setdefault(program.name or program.id[:12], found.error)

    def _asked(self, program: Computation) -> list[Cut]:
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
        done = self._done(program)
        left = [cut for cut in asked if _config(cut) not in done]
        if not done:
            left.insert(0, self.runner.compiler_cut(program))
        return list(dict.fromkeys(left))

    def _done(self, program: Computation) -> frozenset[Config]:
        if self.db.store.tensor(program.id) is None:
            return frozenset()
        runs = self.db.store.runs(self.here.id, _FUSION, program.id)
        return frozenset(run.config for run in runs if run.campaign == self._campaign())

    # -- one kernel --------------------------------------------------------------------------------

    def _timed(self, kernel_id: str) -> float | None:
        """Seconds of a kernel that was timed on this machine before; infinite if it failed."""
        if self.db.store.pattern(kernel_id) is None:
            return None
        runs = list(self.db.store.runs(self.here.id, _FUSED, kernel_id))
        if not runs:
            return None
        timed = timings_of(runs)
        return timed[Config({})].seconds if Config({}) in timed else math.inf

    def _keep(self, kernel: Computation, found: Measurement, tally: FusionTally) -> None:
        run = Run(kernel.id, _FUSED, self.here.id, Config({}), found, self._campaign())
        self.db.record([run], kernel, self.here)
        tally.kernels += 1
        tally.long += found.ok and found.seconds >= LONG_S
        if not found.ok:
            tally.failed[kernel.name or kernel.id[:12]] = found.error

    def _campaign(self) -> str:
        return f"cuts:{self.request.cuts}/{self.request.seed}"


def _config(cut: Cut) -> Config:
    return Config({CUT: cut.text})
