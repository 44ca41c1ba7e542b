"""Configurations of one subject run on this machine under a name; what ran is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from types import TracebackType
from typing import NamedTuple, Self

from embeddb.core.config import Config, Op
from embeddb.core.records import Run
from embeddb.platforms.of_subject import Content
from embeddb.ranking.measure import state_warning
from embeddb.store.usual_state import usual_at
from indexer.measure import Machine, Recorder
from indexer.runners.base import HARDWARE_S

#: Seconds after which what ran is written back.
_KEEP_EVERY_S = 10.0


class Trial(NamedTuple):
    """`seconds` (infinite where it failed, with the `error`), and what having them took."""

    seconds: float
    hardware_s: float
    error: str = ""


class Trials:
    """Of one subject and operation under the name `campaign`, in parts of their own names; a
    context, which keeps what ran however it is left. `fresh` runs were made in it; `warning` says
    that the machine was in another state than usual, empty where it was not."""

    def __init__(self, machine: Machine, subject: Content, op: Op, campaign: str) -> None:
        self.machine, self.subject, self.op = machine, subject, op
        self.campaign = campaign
        self.fresh = 0
        self.warning = ""
        self._usual = usual_at(machine.db.store, machine.here.id)
        self._recorder = Recorder(machine, subject, op, campaign)
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
        trials: dict[Config, list[Trial]] = {}
        stored = self.machine.stored(self.subject, self.op)
        own = [run for run in stored if run.campaign == self.campaign + part]
        for run in sorted(own, key=lambda run: run.measurement.when):
            trials.setdefault(run.config, []).append(_trial(run))
        return trials

    def measure(self, configs: Sequence[Config], part: str = "") -> Iterator[tuple[Config, Trial]]:
        """Each as soon as it ran. Raises: RunnerUnavailable if the machine fails in the middle."""
        if not self._recorder.runs:
            self._kept_at = time.monotonic()
        for run in self._recorder.measure(configs, part=part, timed=True):
            self.fresh += 1
            yield run.config, _trial(run)
            if time.monotonic() - self._kept_at > _KEEP_EVERY_S:
                self.keep()

    def keep(self) -> None:
        """Write back what ran since the last time."""
        runs, self._kept_at = self._recorder.keep(), time.monotonic()
        if runs:
            context = runs[-1].measurement.context
            self.warning = state_warning(context, self._usual()) or self.warning


def middle(trials: Iterable[Trial]) -> float:
    """The median of what did not fail; infinite without."""
    held = [trial.seconds for trial in trials if math.isfinite(trial.seconds)]
    return median(held) if held else math.inf


def _trial(run: Run) -> Trial:
    m = run.measurement
    took = m.context.get(HARDWARE_S)
    error = "" if m.ok else f"{m.status}: {m.error}"
    return Trial(run.seconds, took if isinstance(took, float) else 0.0, error)
