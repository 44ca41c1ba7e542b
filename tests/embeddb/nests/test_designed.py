"""The schedules that are tried on every nest of a depth."""

from __future__ import annotations

import pytest

from embeddb.nests.schedule import designed


@pytest.mark.parametrize("depth", range(1, 7))
def test_each_is_a_schedule_of_the_depth_and_none_comes_twice(depth: int) -> None:
    found = designed(depth)
    assert len(found) == len(set(found))
    for schedule in found:
        assert sorted(schedule.order) == list(range(depth)) and len(schedule.tiles) == depth


def test_the_nest_as_it_stands_comes_first() -> None:
    first = designed(3, seed=5)[:3]
    assert [s.inner for s in first] == ["plain", "simd", "unroll4"]
    for schedule in first:
        assert schedule.order == (0, 1, 2) and not any(schedule.tiles)
        assert schedule.parallel == "outer"


def test_the_seed_shuffles_and_leaves_none_out() -> None:
    one, other = designed(3, seed=1), designed(3, seed=2)
    assert one == designed(3, seed=1)
    assert one != other and set(one) == set(other)


def test_every_order_of_a_shallow_nest_and_some_of_a_deep_one() -> None:
    assert len({s.order for s in designed(3)}) == 6
    assert len({s.order for s in designed(4)}) == 24
    deep = {s.order for s in designed(5)}
    assert len(deep) == 24 and tuple(range(5)) in deep


def test_they_have_blocks_in_every_set_of_up_to_three_loops() -> None:
    tiled = {tuple(t > 0 for t in s.tiles) for s in designed(4)}
    assert len(tiled) == 1 + 4 + 6 + 4
    assert {t for s in designed(4) for t in s.tiles} == {0, 8, 32, 128}
