"""The beam search: legal schedules only, none twice, deterministic, and it finds what is there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from nest_shapes import contraction, product, sparse_product, sweep

from embeddb.nests.check import Legality, canonical_schedule
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.nest_runs import beam_search, moves

#: What the seconds below are least for.
BEST = Schedule((0, 2, 1), (64, 0, 32), "outer", "dynamic", 8, "simd", "read2")


def seconds(schedule: Schedule) -> float:
    """1 and one for each part that is not that of `BEST`; some schedules fail."""
    if schedule.inner == "unroll4":
        return math.inf
    told, best = dict(schedule.config), dict(BEST.config)
    return 1.0 + sum(told.get(name) != value for name, value in best.items())


def search(nest: Nest, budget: int, seed: int = 0, width: int = 8) -> dict[Schedule, float]:
    legal = Legality(nest).reason

    def measure(schedules: list[Schedule]) -> Sequence[float]:
        return [seconds(schedule) for schedule in schedules]

    rng = np.random.default_rng(seed)
    return beam_search(nest, measure, legal=legal, budget=budget, rng=rng, width=width)


def test_it_finds_the_best() -> None:
    found = search(product(), 600)
    assert min(found, key=found.__getitem__) == BEST


@pytest.mark.parametrize(
    "nest", [contraction(), sparse_product(), sweep(), *sample_nests(64).values()], ids=repr
)
def test_only_legal_schedules_are_measured_and_none_twice(nest: Nest) -> None:
    found = search(nest, 120)
    schedules = list(found)
    assert schedules[0] == canonical_schedule(nest)
    assert len(found) <= 120 and len(found) > 10
    assert len({s.config for s in schedules}) == len(found)
    legality = Legality(nest)
    assert all(legality.reason(s) is None for s in schedules)
    trips = [zip(s.tiles, nest.trips, strict=True) for s in schedules]
    assert all(not tile or 2 * tile <= trip for pairs in trips for tile, trip in pairs)


def test_a_seed_gives_the_same_schedules() -> None:
    first = list(search(product(), 90, seed=1).items())
    assert first == list(search(product(), 90, seed=1).items())
    assert first != list(search(product(), 90, seed=2).items())


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_small_budgets_begin_with_the_nest_as_it_stands(budget: int) -> None:
    found = search(product(), budget)
    assert len(found) == max(budget, 1)
    assert next(iter(found)) == canonical_schedule(product())


def test_it_stops_after_six_rounds_that_gain_less_than_timings_differ_by() -> None:
    nest, legal = product(), Legality(product()).reason
    asked: list[int] = []

    def measure(schedules: list[Schedule]) -> list[float]:
        asked.append(len(schedules))
        return [1.0 - 1e-3 * len(asked)] * len(schedules)

    rng = np.random.default_rng(0)
    found = beam_search(nest, measure, legal=legal, budget=10**6, rng=rng, width=2)
    assert len(asked) == 1 + 6 and sum(asked) == len(found)


def test_it_ends_where_nothing_is_left() -> None:
    nest = sample_nests(4)["masked_max"]
    legal, clock = Legality(nest).reason, itertools.count(1000, -1)

    def measure(schedules: list[Schedule]) -> list[float]:
        return [2.0 ** next(clock) for _ in schedules]

    rng = np.random.default_rng(0)
    found = beam_search(nest, measure, legal=legal, budget=10**6, rng=rng, width=1000)
    every = {schedule.config for schedule in found}
    reached = {m.config for schedule in found for m in moves(nest, schedule) if not legal(m)}
    assert reached == every
    assert 20 < len(every) < 1000


def test_moves_change_one_parameter() -> None:
    nest, own = product(), canonical_schedule(product())
    found = list(moves(nest, own))
    for move in found:
        parts = [getattr(move, f) == getattr(own, f) for f in Schedule.__slots__]
        assert parts.count(False) <= 1
    assert sum(move.order != own.order for move in found) == 3
    assert sum(move.tiles != own.tiles for move in found) == 3 * 6
