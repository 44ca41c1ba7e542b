"""Many partitions of tensor programs measured on this machine, and through them many kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Measurement, Run, in_context
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import random_cut
from indexer.runners.base import RunOptions
from indexer.tensors.cut_runs import CutRuns, config_of, seconds_known

__all__ = ["LONG_S", "FusionJob", "FusionRequest", "FusionTally"]

_FUSED, _FUSION = Op("fused"), Op("fusion")
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

    def add(self, kernel: Computation, found: Measurement) -> None:
        """A kernel that was measured now, or failed."""
        if not found.ok:
            self.failed[kernel.told_as(self.failed)] = found.error
            return
        self.kernels += 1
        self.long += found.least >= LONG_S


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
                tally.failed[program.told_as(tally.failed)] = error.reason
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
        """Every kernel by itself, checked, some of them in turns and kept together; those that were
        done before are left out.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        asked = [one for one in kernels if seconds_known(self.db, self.here, one.id) is None]
        tally = FusionTally(known=len(kernels) - len(asked))
        state, done = state_now(self.runner, threads=1), 0
        for some in self.runner.kernels(asked, self.request.options):
            before, state = state, state_now(self.runner, threads=1)
            facts = between(before, state)
            for kernel, found in some:
                told = in_context(found, facts)
                run = Run(kernel.id, _FUSED, self.here.id, Config({}), told, self._campaign())
                self.db.record([run], kernel, self.here)
                tally.add(kernel, told)
            done += len(some)
            if progress is not None:
                progress("measure kernels", done, len(asked))
        return tally

    # -- one program -------------------------------------------------------------------------------

    def _program(self, program: Computation, cuts: Sequence[Cut], tally: FusionTally) -> None:
        runs = CutRuns(self.db, self.runner, self.here, program, self.request.options)
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
        ran = self._ran(program)
        if not any(run.campaign.startswith(_NAME) for run in ran):
            asked = {self.runner.compiler_cut(program): None, **asked}
        done = {run.config for run in ran}
        return [cut for cut in asked if config_of(cut) not in done]

    def _ran(self, program: Computation) -> list[Run]:
        """What ran here of a program, for whatever reason: a cut is the sum of its kernels, none of
        which is timed again."""
        if self.db.store.tensor(program.id) is None:
            return []
        return list(self.db.store.runs(self.here.id, _FUSION, program.id))

    def _campaign(self) -> str:
        return f"{_NAME}{self.request.cuts}/{self.request.seed}"
