"""Runs on this machine, stored with the state that it was in.

State of a machine before and after its runs is kept with them, so that those made under load can be
left out later (`embeddb.core.timing.is_outlier`). Everything that measures for the database uses
`Recorder`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from embeddb.core.checked_run import checked_run, exact_runs
from embeddb.core.config import Config, Op
from embeddb.core.records import HARDWARE_S, Run, in_context
from embeddb.core.timing import State, between, state_now
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class Machine:
    """A `runner`, the platform `here` as this machine is, the runner's `options` (how much each run
    may cost), and the `db` that stores the runs."""

    db: Lookup
    runner: Any
    here: Platform
    options: Any

    def state(self) -> dict[str, float]:
        """Figures of the current state of the machine; empty if the runner has none."""
        return state_now(self.runner, threads=self.options.threads)

    def stored(self, workload: Workload, op: Op) -> list[Run]:
        """Runs of a workload on this machine; none if the database lacks its structure."""
        if self.db.store.workload(workload.id) is None:
            return []
        return list(self.db.store.runs(self.here.id, op, workload.id))

    def known(self, workload: Workload, op: Op) -> dict[Config, Run]:
        """Stored runs that need no repetition, on a simulated platform; none on another."""
        return exact_runs(self.stored(workload, op)) if self.here.simulated else {}


class Recorder:
    """Runs of one workload and operation under a campaign name; `runs` are not yet written back."""

    def __init__(self, machine: Machine, workload: Workload, op: Op, campaign: str) -> None:
        self.machine, self.workload, self.op, self.campaign = machine, workload, op, campaign
        self.runs: list[Run] = []
        self._before: State = {}

    def measure(
        self,
        configs: Sequence[Config],
        *,
        part: str = "",
        facts: Mapping[str, float] | None = None,
        timed: bool = False,
    ) -> Generator[Run, None, None]:
        """Yield each run as soon as it ended, stored as a `part` of the campaign. Its context holds
        `facts` and, if `timed`, the seconds that it cost, compiling included.

        Raises: RunnerUnavailable if the machine fails in the middle; PluginError for a fault of the
        runner.
        """
        machine = self.machine
        if not self.runs and configs:
            self._before = machine.state()
        begun = time.perf_counter() if timed else 0.0
        runner, options = machine.runner, machine.options
        measured = checked_run(runner, self.workload, self.op, configs, options=options)
        with closing(measured):
            for config, m in measured:
                cost = {HARDWARE_S: time.perf_counter() - begun} if timed else {}
                context = in_context(m, {**(facts or {}), **cost})
                name = self.campaign + part
                run = Run(self.workload.id, self.op, machine.here.id, config, context, name)
                self.runs.append(run)
                yield run
                begun = time.perf_counter() if timed else 0.0

    def finish(self, facts: Mapping[str, float] | None = None) -> list[Run]:
        """Return `runs`, with the state of the machine before and after them and `facts` in their
        contexts, and begin anew; nothing is written back."""
        runs, self.runs = self.runs, []
        if not runs:
            return []
        before, self._before = self._before, self.machine.state()
        context = {**between(before, self._before), **(facts or {})}
        return [replace(r, measurement=in_context(r.measurement, context)) for r in runs]

    def keep(self, facts: Mapping[str, float] | None = None) -> list[Run]:
        """Write back what `finish` returns; return it."""
        if runs := self.finish(facts):
            self.machine.db.record(runs, self.workload, self.machine.here)
        return runs
