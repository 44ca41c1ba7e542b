"""Counters of loop nests and the time of their canonical schedule, kept in a database: what the
network of "Performance Embeddings" (Section 3.3) learns from, and what embeddings are told of the
data ("dynamic features")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import cpu_count
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, NestError
from embeddb.core.records import Run
from embeddb.core.reports import Progress
from embeddb.core.timing import timings_of
from embeddb.index.lookup import Lookup
from embeddb.nests.counters import CounterVector
from embeddb.nests.nest import Nest
from embeddb.platforms.of_subject import default_of
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from embeddb.store.counters import counters_of, counting_platforms, keep_counters
from indexer.runners.base import RunOptions
from indexer.runners.counters.nest import count_nest
from indexer.runners.counters.perf import available

__all__ = ["CountJob", "Counted", "counted"]

_OP = Op("nest")
_CAMPAIGN = "counted"
#: Nests that are written back together.
_TOGETHER = 8


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A nest, what was counted of its canonical schedule, and the seconds that took without."""

    nest: Nest
    counters: CounterVector
    seconds: float


def counted(store: Store, platform: str) -> Iterator[Counted]:
    """Every nest that was counted on a platform instance and whose default ran there."""
    where = store.platform(platform)
    for nest_id in counting_platforms(store).get(platform, []):
        nest, counters = store.nest(nest_id), counters_of(store, nest_id, platform)
        if nest is None or counters is None or where is None:
            continue
        timing = timings_of(store.runs(platform, _OP, nest_id)).get(default_of(where, _OP, nest))
        if timing is not None and timing.status == "ok":
            yield Counted(nest, counters, timing.seconds)


@dataclass(frozen=True, slots=True)
class CountJob:
    """Runs and counts into `db` with a runner on `here`, the platform as this machine is; `source`
    as in `count_nest`. What was counted by another source than the one that is asked for, or cannot
    be read, is counted anew."""

    db: Lookup
    runner: Any
    here: Platform
    options: RunOptions
    source: str = "auto"

    def run(self, nests: Sequence[Nest], progress: Progress | None = None) -> int:
        """How many were counted now; those that were before are left out.

        Raises: RunnerUnavailable, NothingFound as the runner and `count_nest` do.
        """
        done = 0
        for start in range(0, len(nests), _TOGETHER):
            batch = nests[start : start + _TOGETHER]
            if progress is not None:
                progress(f"count {batch[0].name}", start, len(nests))
            new = [nest for nest in batch if not self._known(nest)]
            self._count(new)
            done += len(new)
        return done

    def _known(self, nest: Nest) -> bool:
        try:
            found = counters_of(self.db.store, nest.id, self.here.id)
        except NestError:
            return False
        return found is not None and self.source in ("auto", found.source)

    def _count(self, nests: Sequence[Nest]) -> None:
        """Nests run one after the other and alone; what they are built with a model of the caches
        for is no time, so that several can be at once. Counters of the processor are read alone."""
        ran = {nest: self._ran(nest) for nest in nests}
        known = [nest for nest, runs in ran.items() if all(run.measurement.ok for run in runs)]
        threads = int(self.here.environment.get("threads", 1))
        alone = self.source != "model" and available() is None
        with ThreadPoolExecutor(1 if alone else cpu_count()) as pool:
            count = partial(count_nest, threads=threads, source=self.source)
            for nest, found in zip(known, pool.map(count, known), strict=True):
                self.db.record(ran[nest], nest, self.here)
                self._keep(nest, found)

    def _keep(self, nest: Nest, counters: CounterVector) -> None:
        """The counters, and the vectors of those that read them."""
        keep_counters(self.db.store, nest.id, self.here.id, counters)
        for plug in self.db.featurizers().counted(self.here.id):
            if plug.source == counters.source:
                with suppress(ModelError):  # as any vector that cannot be made
                    self.db.store.vectors.put(plug.name, plug.version, {nest.id: plug.embed(nest)})

    def _ran(self, nest: Nest) -> list[Run]:
        default = default_of(self.here, _OP, nest)
        ran = self.runner.run(nest, _OP, [default], options=self.options)
        return [Run(nest.id, _OP, self.here.id, c, m, _CAMPAIGN) for c, m in ran]
