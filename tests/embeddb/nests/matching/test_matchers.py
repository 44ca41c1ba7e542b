"""Which loop is which: made-up vectors whose nearest are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from nest_shapes import contraction, product, transpose
from numpy.typing import NDArray

from benchmarks.nest_matchers import by_slot, step_by_step
from embeddb.nests.encoding.graph import Node
from embeddb.nests.matching.transfer import NodeVectors, at_once
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import Inner, Order, Pack, Parallel, Tile, identity_schedule
from embeddb.nests.schedule import Schedule


def lined_up(places: Mapping[str, Sequence[float]], blocks: float = 0.0) -> NodeVectors:
    """Loops of a nest at these points of a line, its arrays at their numbers; block loops lie
    `blocks` further."""

    def vectors(nest: Nest, schedule: Schedule) -> tuple[list[Node], NDArray[np.float32]]:
        pieces = schedule.pieces(nest)
        nodes = [Node("entry", p.loop, p.block) for p in pieces]
        rows = [places[nest.name][p.loop] + blocks * p.block for p in pieces]
        nodes += [Node("array", array=array) for array in range(len(nest.arrays))]
        rows += range(len(nest.arrays))
        return nodes, np.array(rows, dtype=np.float32)[:, None]

    return vectors


PLACES = {"product": (0.0, 1.0, 2.0), "contraction": (9.0, 0.9, 2.5, 0.2), "transpose": (2.1, 0.8)}


def test_the_sum_of_distances_is_least_not_each() -> None:
    source, target = product(), transpose()
    still, made = identity_schedule(source), identity_schedule(target)
    near = lined_up({"product": (0.0, 1.0, 9.0), "transpose": (0.6, 3.0)})
    matched = step_by_step(source, target, near)(Order((0, 1)), still, made)
    assert matched == {0: (0, pytest.approx(0.6)), 1: (1, pytest.approx(2.0))}


def test_step_by_step_takes_the_loops_of_the_step_alone() -> None:
    source, target = product(), transpose()
    still, made = identity_schedule(source), identity_schedule(target)
    matcher = step_by_step(source, target, lined_up(PLACES))
    assert {at: to for at, (to, _) in matcher(Tile(0, 8), still, made).items()} == {0: 1}
    assert {at: to for at, (to, _) in matcher(Tile(1, 8), still, made).items()} == {1: 1}
    split = Schedule((0, 1), (0, 8))
    assert {at: to for at, (to, _) in matcher(Tile(1, 8), still, split).items()} == {1: 0}
    assert matcher(Tile(1, 8), still, Schedule((0, 1), (8, 8))) == {}


def test_at_once_no_loop_stands_for_two() -> None:
    source, target = product(), transpose()
    matcher = at_once(source, target, lined_up(PLACES))
    still, made = identity_schedule(source), identity_schedule(target)
    found = [matcher(Tile(loop, 8), still, made) for loop in range(3)]
    assert [{at: to for at, (to, _) in f.items()} for f in found] == [{}, {1: 1}, {2: 0}]
    assert matcher(Inner(2, "simd"), still, made)[2][0] == 0


def test_blocks_meet_blocks() -> None:
    source, target = product(), contraction()
    known, made = Schedule((0, 1, 2), (8, 8, 0)), Schedule((0, 1, 2, 3), (8, 0, 8, 0))
    matcher = step_by_step(source, target, lined_up(PLACES, blocks=100.0))
    assert matcher(Parallel(0, block=True), known, made)[0][0] == 2
    assert matcher(Parallel(0), known, made)[0][0] == 3
    assert matcher(Parallel(0, block=True), known, identity_schedule(target)) == {}


def test_arrays_meet_arrays_that_can_be_packed() -> None:
    source, target = product(), contraction()
    still, made = identity_schedule(source), identity_schedule(target)
    vectors = lined_up(PLACES)
    for matcher in (f(source, target, vectors) for f in (step_by_step, at_once)):
        assert matcher(Pack(1), still, made) == {1: (1, 0.0)}
        assert matcher(Pack(2), still, made) == {2: (2, 0.0)}
    assert by_slot(source, transpose())(Pack(2), still, identity_schedule(transpose())) == {}


def test_what_has_no_distance_is_not_matched() -> None:
    source, target = product(), contraction()
    still, made = identity_schedule(source), identity_schedule(target)
    nowhere = lined_up({"product": (np.nan,) * 3, "contraction": (0.0,) * 4})
    assert step_by_step(source, target, nowhere)(Tile(0, 8), still, made) == {}

    def unknown(nest: Nest, schedule: Schedule) -> tuple[list[Node], NDArray[np.float32]]:
        return [Node("array", array=at) for at in range(3)], np.full((3, 1), np.nan, np.float32)

    assert step_by_step(source, target, unknown)(Pack(1), still, made) == {}
