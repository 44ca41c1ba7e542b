"""Loop nests measured, counted and searched: designed schedules, equal for all nests, then a beam
search of each, so that there is something to transfer ("Performance Embeddings", Section 6)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from os import cpu_count
from typing import Any, TypeVar

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError, NestError
from embeddb.core.records import Run
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import Workload
from embeddb.index.recorder import Machine, Recorder
from embeddb.nests.check import Legality, canonical_schedule
from embeddb.nests.counters import CounterVector
from embeddb.nests.matching.transfer import TILES, Legal
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule, designed
from embeddb.platforms.platform import Platform, default_of, space_of
from embeddb.store import Store
from embeddb.store.counters import counters_of, counting_platforms, keep_counters
from indexer.measure import Design
from indexer.runners.counters.nest import count_nest
from indexer.runners.counters.perf import available

#: Seconds of each schedule, infinite for one that failed.
Measure = Callable[[list[Schedule]], Sequence[float]]

#: Share of the budget for random schedules, and the most of these.
_RANDOM, _MOST_RANDOM = 0.25, 100
#: Schedules that are measured in one round for each member of the beam.
_MOVES = 6
#: Most rounds without a gain, and the ratio of times that counts as one, beyond the noise.
_PATIENCE, _GAIN = 6, 0.99

_PARALLEL = ("outer", "second", "none")
_VALUES: dict[str, tuple[Any, ...]] = {
    "parallel": _PARALLEL,
    "policy": ("static", "dynamic", "guided"),
    "chunk": (1, 4, 8, 32),
    "inner": ("plain", "simd", "unroll4", "jam4"),
    "pack": ("none", "read1", "read2"),
}

T = TypeVar("T")


def beam_search(
    nest: Nest,
    measure: Measure,
    *,
    legal: Legal,
    budget: int,
    rng: np.random.Generator,
    width: int = 8,
) -> dict[Schedule, float]:
    """Measure at most `budget` schedules, the nest's own first, then some random ones.

    In each round some moves from the best `width` so far are measured, until the budget is spent,
    nothing is left to try, or six rounds brought no gain. Returns the seconds of each schedule in
    the order measured. The same `rng` state and timings give the same schedules.
    """
    own = canonical_schedule(nest)
    tried: dict[Schedule, float] = {}

    def run(schedules: list[Schedule]) -> float:
        """The least time so far, after these."""
        tried.update(zip(schedules, measure(schedules), strict=True))
        return min(tried.values())

    count = min(int(budget * _RANDOM), _MOST_RANDOM)
    drawn = [_by_chance(nest, own, legal, rng) for _ in range(count)]
    best = run(list(dict.fromkeys([own, *drawn]))[: max(budget, 1)])
    without_gain = 0
    while len(tried) < budget and without_gain < _PATIENCE:
        beam = sorted(tried, key=tried.__getitem__)[:width]
        batch = _next(nest, beam, tried, legal, rng)[: budget - len(tried)]
        if not batch:
            break
        before, best = best, run(batch)
        without_gain = 0 if best < before * _GAIN else without_gain + 1
    return tried


def moves(nest: Nest, schedule: Schedule) -> Iterator[Schedule]:
    """Every schedule that differs in one parameter, legal or not: two loops exchanged, the blocks
    of a loop, or one value."""
    for one, other in itertools.combinations(range(nest.depth), 2):
        order = list(schedule.order)
        order[one], order[other] = order[other], order[one]
        yield replace(schedule, order=tuple(order))
    for loop in range(nest.depth):
        for tile in _tiles(nest, loop):
            yield replace(schedule, tiles=_with(schedule.tiles, loop, tile))
    for field, values in _VALUES.items():
        for value in values:
            yield replace(schedule, **{field: value})


def _next(
    nest: Nest,
    beam: list[Schedule],
    tried: dict[Schedule, float],
    legal: Legal,
    rng: np.random.Generator,
) -> list[Schedule]:
    """Moves to measure in one round, those from the best schedule first."""
    batch: dict[Schedule, None] = {}
    for member in beam:
        mended = (_mended(move, legal) for move in _shuffled(list(moves(nest, member)), rng))
        plain = (_plain(move) for move in mended if move is not None)
        fresh = (s for s in plain if s not in tried and s not in batch)
        batch |= dict.fromkeys(islice(fresh, _MOVES))
    return list(batch)


def _mended(schedule: Schedule, legal: Legal) -> Schedule | None:
    """The schedule, else with another parallel loop, else also with a plain innermost loop: a new
    order alone often is not legal."""
    ways = [schedule, *(replace(schedule, parallel=p) for p in _PARALLEL if p != schedule.parallel)]
    ways += [replace(way, inner="plain") for way in ways if way.inner != "plain"]
    return next((way for way in ways if not legal(way)), None)


def _by_chance(nest: Nest, own: Schedule, legal: Legal, rng: np.random.Generator) -> Schedule:
    """A random legal schedule: parameters are drawn one after the other and used where legal."""
    order = tuple(int(at) for at in rng.permutation(nest.depth))
    schedule = _mended(replace(own, order=order), legal) or own
    for loop in _shuffled(list(range(nest.depth)), rng):
        if rng.random() < 0.5:
            tile = _one(_tiles(nest, loop), rng)
            drawn = replace(schedule, tiles=_with(schedule.tiles, loop, tile))
            schedule = schedule if legal(drawn) else drawn
    for field, values in _VALUES.items():
        drawn = replace(schedule, **{field: _one(values, rng)})
        schedule = schedule if legal(drawn) else drawn
    return _plain(schedule)


def _tiles(nest: Nest, loop: int) -> tuple[int, ...]:
    return (0, *(tile for tile in TILES if 2 * tile <= nest.trips[loop]))


def _with(tiles: tuple[int, ...], loop: int, tile: int) -> tuple[int, ...]:
    return (*tiles[:loop], tile, *tiles[loop + 1 :])


def _plain(schedule: Schedule) -> Schedule:
    """The schedule without parameters that do not apply, so that no two are equivalent."""
    return Schedule.of(schedule.config, len(schedule.order))


def _one(values: Sequence[T], rng: np.random.Generator) -> T:
    return values[int(rng.integers(len(values)))]


def _shuffled(values: list[T], rng: np.random.Generator) -> list[T]:
    return [values[int(at)] for at in rng.permutation(len(values))]


#: Rounds in which the fastest schedules and the default run again: the minimum of many timings is
#: biased.
_REPEATS, _BEST = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NestDesign(Design):
    """A number of `designed` schedules that are legal for a nest, and at most `searched` from a
    beam search. `seed` is that of both."""

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
        self, here: Platform, workload: Workload, stored: Sequence[Run], rng: np.random.Generator
    ) -> list[Config]:
        """The default and the designed schedules, including those that ran before."""
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
        ranked = summarise_runs(recorder.runs)
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


def _nest(workload: Workload) -> Nest:
    assert isinstance(workload, Nest)
    return workload


_OP = Op("nest")
_CAMPAIGN = "counted"
#: Nests that are written back together.
_TOGETHER = 8


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A nest, the counters of its canonical schedule, and the seconds of an uncounted run."""

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
        timing = summarise_runs(store.runs(platform, _OP, nest_id)).get(
            default_of(where, _OP, nest)
        )
        if timing is not None and timing.status == "ok":
            yield Counted(nest, counters, timing.seconds)


@dataclass(frozen=True, slots=True)
class CountJob:
    """Run and count nests on a machine; `source` as in `count_nest`. Counters from another source
    than the requested one, or unreadable ones, are counted again."""

    machine: Machine
    source: str = "auto"

    def run(self, nests: Sequence[Nest], progress: Progress = ignore_progress) -> int:
        """Number of nests counted now; those counted before are left out.

        Raises: RunnerUnavailable, NothingFound as the runner and `count_nest` do.
        """
        done = 0
        for start in range(0, len(nests), _TOGETHER):
            batch = nests[start : start + _TOGETHER]
            progress(f"count {batch[0].name}", start, len(nests))
            new = [nest for nest in batch if not self._counted(nest)]
            self._count(new)
            done += len(new)
        return done

    def _counted(self, nest: Nest) -> bool:
        try:
            counters = counters_of(self.machine.db.store, nest.id, self.machine.here.id)
        except NestError:
            return False
        return counters is not None and self.source in ("auto", counters.source)

    def _count(self, nests: Sequence[Nest]) -> None:
        """Time the nests alone, one after the other. A count by the cache model is no timing, so
        several can run at once; hardware counters are read alone."""
        ran = {nest: self._ran(nest) for nest in nests}
        succeeded = [nest for nest, runs in ran.items() if all(run.measurement.ok for run in runs)]
        here, db = self.machine.here, self.machine.db
        threads = int(here.environment.get("threads", 1))
        alone = self.source != "model" and available() is None
        with ThreadPoolExecutor(1 if alone else cpu_count()) as pool:
            count = partial(count_nest, threads=threads, source=self.source)
            for nest, counters in zip(succeeded, pool.map(count, succeeded), strict=True):
                db.record(ran[nest], nest, here)
                keep_counters(db.store, nest.id, here.id, counters)
                # The featurizers that read them.
                for plug in db.featurizers().counted(here.id):
                    if plug.source == counters.source:
                        with suppress(ModelError):  # the vector is left out
                            vectors = {nest.id: plug.embed(nest)}
                            db.store.vectors.put(plug.name, plug.version, vectors)

    def _ran(self, nest: Nest) -> list[Run]:
        machine = self.machine
        recorder = Recorder(machine, nest, _OP, _CAMPAIGN)
        list(recorder.measure([default_of(machine.here, _OP, nest)]))
        return recorder.finish()
