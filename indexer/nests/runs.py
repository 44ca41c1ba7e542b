"""Which schedules of a loop nest are measured: designed ones, the same for all nests, then a search
of each, so that there is something to transfer ("Performance Embeddings", Section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import Run
from embeddb.core.timing import timings_of
from embeddb.nests.designed import designed
from embeddb.nests.nest import Nest
from embeddb.nests.rules import Legality
from embeddb.nests.schedule import Schedule
from embeddb.platforms.of_subject import Content, default_of, space_of
from embeddb.platforms.platform import Platform
from indexer.measure import Design, Recorder
from indexer.nests.search import beam_search

#: Rounds in which the fastest schedules and the default run again: the minimum of many timings is
#: biased.
_REPEATS, _BEST = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NestDesign(Design):
    """So many of the `designed` schedules that are legal for a nest, and at most so many that a
    search reaches. `seed` is that of both."""

    designed: int = 60
    searched: int = 60
    seed: int = 0

    @property
    def op(self) -> Op:
        return Op("nest")

    @property
    def campaign(self) -> str:
        return f"nests:{self.designed}+{self.searched}/{self.seed}"

    def configs(
        self, here: Platform, workload: Content, stored: Sequence[Run], rng: np.random.Generator
    ) -> list[Config]:
        """The default and the designed schedules, whatever ran before."""
        nest = _nest(workload)
        space, default = space_of(here, self.op, nest), default_of(here, self.op, nest)
        drawn = (schedule.config for schedule in designed(nest.depth, seed=self.seed))
        legal = islice((c for c in drawn if space.reason(c) is None), self.designed)
        return list(dict.fromkeys([default, *legal]))

    def follow_up(self, recorder: Recorder) -> None:
        """A beam search, then the fastest schedules again beside the default."""
        nest = _nest(recorder.workload)
        if self.searched:
            self._search(nest, recorder)
        ranked = timings_of(recorder.runs)
        best = sorted(ranked, key=lambda config: ranked[config].seconds)[:_BEST]
        default = default_of(recorder.machine.here, self.op, nest)
        for _ in range(_REPEATS):
            list(recorder.measure(list(dict.fromkeys([default, *best]))))

    def _search(self, nest: Nest, recorder: Recorder) -> None:
        seconds = {run.config: run.seconds for run in recorder.runs}

        def measure(schedules: list[Schedule]) -> list[float]:
            new = [s.config for s in schedules if s.config not in seconds]
            seconds.update({run.config: run.seconds for run in recorder.measure(new)})
            return [seconds.get(s.config, math.inf) for s in schedules]

        beam_search(
            nest,
            measure,
            legal=Legality(nest).reason,
            budget=self.searched,
            rng=np.random.default_rng(self.seed),
        )


def _nest(workload: Content) -> Nest:
    assert isinstance(workload, Nest)
    return workload
