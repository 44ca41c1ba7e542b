"""Counters of loop nests and the time of their canonical schedule, kept in a database: what the
network of "Performance Embeddings" (Section 3.3) learns from, and what embeddings are told of the
data ("dynamic features")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from embeddb.core.config import Op
from embeddb.core.records import Run
from embeddb.core.timing import timings_of
from embeddb.index.lookup import Lookup
from embeddb.nests.counters import CounterVector
from embeddb.nests.nest import Nest
from embeddb.platforms.of_subject import default_of
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from indexer.runners.base import RunOptions
from indexer.runners.nest_counters.counting import count_nest

__all__ = ["CountJob", "Counted", "counted", "counters_of", "counting_platforms"]

_OP = Op("nest")
_CAMPAIGN = "counted"


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A nest, what was counted of its canonical schedule, and the seconds that took without."""

    nest: Nest
    counters: CounterVector
    seconds: float


def counters_of(store: Store, nest_id: str, platform: str) -> CounterVector | None:
    """What was counted of a nest on a platform instance. Raises: NestError for a damaged note."""
    raw = store.notes.get(_key(nest_id, platform))
    where = f"counters of {nest_id}"
    return None if raw is None else CounterVector.from_text(raw, where=where)


def counting_platforms(store: Store) -> list[str]:
    """The platform instances that nests were counted on."""
    return sorted({key.split("/", 2)[2] for key in store.notes.items("counters/")})


def counted(store: Store, platform: str) -> Iterator[Counted]:
    """Every nest that was counted on a platform instance and whose default ran there."""
    where = store.platform(platform)
    for key in store.notes.items("counters/"):
        _, nest_id, place = key.split("/", 2)
        nest = store.nest(nest_id) if place == platform else None
        counters = None if nest is None else counters_of(store, nest_id, platform)
        if nest is None or counters is None or where is None:
            continue
        timing = timings_of(store.runs(platform, _OP, nest_id)).get(default_of(where, _OP, nest))
        if timing is not None and timing.status == "ok":
            yield Counted(nest, counters, timing.seconds)


@dataclass(frozen=True, slots=True)
class CountJob:
    """Runs and counts into `db` with a runner on `here`, the platform as this machine is; `source`
    as in `count_nest`."""

    db: Lookup
    runner: Any
    here: Platform
    options: RunOptions
    source: str = "auto"

    def run(
        self, nests: Sequence[Nest], progress: Callable[[str, int, int], None] | None = None
    ) -> int:
        """How many were counted now; those that were before are left out.

        Raises: RunnerUnavailable, NothingFound as the runner and `count_nest` do.
        """
        done = 0
        for at, nest in enumerate(nests):
            if progress is not None:
                progress(f"count {nest.name}", at, len(nests))
            if self.db.store.notes.get(_key(nest.id, self.here.id)) is None:
                self._one(nest)
                done += 1
        return done

    def _one(self, nest: Nest) -> None:
        default = default_of(self.here, _OP, nest)
        ran = list(self.runner.run(nest, _OP, [default], options=self.options))
        runs = [Run(nest.id, _OP, self.here.id, c, m, _CAMPAIGN) for c, m in ran]
        if not all(run.measurement.ok for run in runs):
            return
        threads = int(self.here.environment.get("threads", 1))
        found = count_nest(nest, threads=threads, source=self.source)
        self.db.record(runs, nest, self.here)
        self.db.store.notes.put(_key(nest.id, self.here.id), found.text.encode())


def _key(nest_id: str, platform: str) -> str:
    return f"counters/{nest_id}/{platform}"
