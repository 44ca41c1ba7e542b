"""Configurations of one subject run on this machine under a name; what ran is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple, Self

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import State, between, state_now
from embeddb.core.records import Run, in_context
from embeddb.core.subject import Subject
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.ranking.measure import state_warning
from embeddb.store.usual_state import usual_at
from indexer.runners.base import HARDWARE_S, RunOptions

__all__ = ["Hardware", "Trial", "Trials", "middle"]

#: Seconds after which what ran is written back.
_KEEP_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """A `runner`, the platform `here` as this machine is, how much each run may cost, and the `db`
    that runs are kept in."""

    db: Lookup
    runner: Any
    here: Platform
    options: RunOptions


class Trial(NamedTuple):
    """`seconds` (infinite where it failed, with the `error`), and what having them took."""

    seconds: float
    hardware_s: float
    error: str = ""


class Trials:
    """Of one subject and operation under the name `campaign`, in parts of their own names; a
    context, which keeps what ran however it is left. `fresh` runs were made in it; `warning` says
    that the machine was in another state than usual, empty where it was not."""

    def __init__(self, hardware: Hardware, subject: Subject, op: Op, campaign: str) -> None:
        self.hardware, self.subject, self.op = hardware, subject, op
        self.campaign = campaign
        self.fresh = 0
        self.warning = ""
        self._usual = usual_at(hardware.db.store, hardware.here.id)
        self._runs: list[Run] = []
        self._before: State = {}
        self._kept_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.keep()

    def known(self, part: str = "") -> dict[Config, list[Trial]]:
        """What ran under this name before, each configuration's in the order in which they ran."""
        db, found = self.hardware.db, dict[Config, list[Trial]]()
        if db.store.pattern(self.subject.id) is None:
            return found
        runs = db.store.runs(self.hardware.here.id, self.op, self.subject.id)
        own = [run for run in runs if run.campaign == self.campaign + part]
        for run in sorted(own, key=lambda run: run.measurement.when):
            found.setdefault(run.config, []).append(_trial(run))
        return found

    def measure(self, configs: Sequence[Config], part: str = "") -> Iterator[tuple[Config, Trial]]:
        """Each as soon as it ran. Raises: RunnerUnavailable if the machine fails in the middle."""
        hardware = self.hardware
        if not self._runs and configs:
            self._before = state_now(hardware.runner, threads=hardware.options.threads)
            self._kept_at = time.monotonic()
        begun = time.perf_counter()
        for config, found in hardware.runner.run(
            self.subject, self.op, configs, options=hardware.options
        ):
            told = in_context(found, {HARDWARE_S: time.perf_counter() - begun})
            run = Run(
                self.subject.id, self.op, hardware.here.id, config, told, self.campaign + part
            )
            self._runs.append(run)
            self.fresh += 1
            yield config, _trial(run)
            if time.monotonic() - self._kept_at > _KEEP_EVERY_S:
                self.keep()
                self._before = state_now(hardware.runner, threads=hardware.options.threads)
            begun = time.perf_counter()

    def keep(self) -> None:
        """Write back what ran since the last time."""
        runs, self._runs, self._kept_at = self._runs, [], time.monotonic()
        if not runs:
            return
        hardware = self.hardware
        after = state_now(hardware.runner, threads=hardware.options.threads)
        state = between(self._before, after)
        self.warning = state_warning(state, self._usual()) or self.warning
        told = [replace(run, measurement=in_context(run.measurement, state)) for run in runs]
        hardware.db.record(told, self.subject, hardware.here)


def middle(trials: Iterable[Trial]) -> float:
    """The median of what did not fail; infinite without."""
    held = [trial.seconds for trial in trials if math.isfinite(trial.seconds)]
    return median(held) if held else math.inf


def _trial(run: Run) -> Trial:
    m = run.measurement
    took = m.context.get(HARDWARE_S)
    error = "" if m.ok else f"{m.status}: {m.error}"
    return Trial(run.seconds, took if isinstance(took, float) else 0.0, error)
