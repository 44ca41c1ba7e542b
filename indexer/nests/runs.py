"""Many loop nests measured on this machine: the same designed schedules on all, then a search of
each, so that there is something to transfer ("Performance Embeddings", Section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Run, in_context
from embeddb.core.timing import timings_of
from embeddb.index.lookup import Lookup
from embeddb.nests.check import Legality
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule, designed
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from indexer.nests.search import beam_search
from indexer.runners.base import RunOptions

__all__ = ["NestJob", "NestRequest", "NestTally"]

_OP = Op("nest")
#: The best of a nest and its default run again so often: what wins of many is partly luck.
_AGAIN, _BEST = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NestRequest:
    """How much is measured of each nest: so many of the `designed` schedules that are legal for it,
    and at most so many that a search comes to. `seed` is that of both."""

    designed: int = 60
    searched: int = 60
    seed: int = 0
    options: RunOptions = field(default_factory=RunOptions)


@dataclass(slots=True)
class NestTally:
    """Nests that were done before or now, and schedules measured now."""

    known: int = 0
    measured: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True)
class NestJob:
    """Measures into `db` with a runner on `here`, the platform as this machine is."""

    db: Lookup
    runner: Any
    here: Platform
    request: NestRequest

    def run(
        self, nests: Sequence[Nest], progress: Callable[[str, int, int], None] | None = None
    ) -> NestTally:
        """Every nest, one after the other, each written back when it is done; those that were done
        before are left out.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        tally = NestTally()
        for at, nest in enumerate(nests):
            if progress is not None:
                progress(f"measure {nest.name}", at, len(nests))
            if self._done(nest):
                tally.known += 1
                continue
            tally.runs += self._one(nest)
            tally.measured += 1
        return tally

    def _campaign(self) -> str:
        asked = self.request
        return f"nests:{asked.designed}+{asked.searched}/{asked.seed}"

    def _done(self, nest: Nest) -> bool:
        if self.db.store.nest(nest.id) is None:
            return False
        runs = self.db.store.runs(self.here.id, _OP, nest.id)
        return any(run.campaign == self._campaign() for run in runs)

    def _one(self, nest: Nest) -> int:
        """The number of runs of a nest, which are kept together or, if it is stopped, not at all:
        what is there counts as done."""
        asked = self.request
        space = space_of(self.here, _OP, nest)
        default = default_of(self.here, _OP, nest)
        legal = (s.config for s in designed(nest.depth, seed=asked.seed))
        fixed = islice((c for c in legal if space.reason(c) is None), asked.designed)
        before = state_now(self.runner, threads=asked.options.threads)
        runs: list[Run] = []
        self._measure(nest, list(dict.fromkeys([default, *fixed])), runs)
        if asked.searched:
            self._search(nest, runs)
        ranked = timings_of(runs)
        best = sorted(ranked, key=lambda config: ranked[config].seconds)[:_BEST]
        for _ in range(_AGAIN):
            self._measure(nest, list(dict.fromkeys([default, *best])), runs)
        state = between(before, state_now(self.runner, threads=asked.options.threads))
        told = [replace(r, measurement=in_context(r.measurement, state)) for r in runs]
        self.db.record(told, nest, self.here)
        return len(runs)

    def _search(self, nest: Nest, runs: list[Run]) -> None:
        asked = self.request
        known = {run.config: run.measurement.seconds for run in runs}

        def seconds(schedules: list[Schedule]) -> list[float]:
            new = [s.config for s in schedules if s.config not in known]
            start = len(runs)
            self._measure(nest, new, runs)
            known.update({run.config: run.measurement.seconds for run in runs[start:]})
            return [known.get(s.config, math.inf) for s in schedules]

        beam_search(
            nest,
            seconds,
            legal=Legality(nest).reason,
            budget=asked.searched,
            rng=np.random.default_rng(asked.seed),
        )

    def _measure(self, nest: Nest, configs: Sequence[Config], runs: list[Run]) -> None:
        for config, measured in self.runner.run(nest, _OP, configs, options=self.request.options):
            runs.append(Run(nest.id, _OP, self.here.id, config, measured, self._campaign()))
