"""A recipe carried from one nest to another: what follows the loops, what is left out and why."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_shapes import contraction, product, sparse_product, stencil, sweep, transpose

from benchmarks.nest_matchers import by_slot, loop_vectors, slot_copy, step_by_step
from embeddb import platforms
from embeddb.core.errors import NestError
from embeddb.nests.check import Legality
from embeddb.nests.examples import sample_nests
from embeddb.nests.matching.transfer import (
    TILES,
    Matcher,
    NodeVectors,
    Transfer,
    at_once,
    raw_vectors,
    transfer,
)
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import Inner, Order, Parallel, Step, Tile, recipe_of
from embeddb.nests.schedule import Schedule

FOLDER = Path(platforms.__file__).parent

#: The usual best of a product: k between i and j, blocks of i and k, columns of B in a buffer.
BEST = Schedule((0, 2, 1), (64, 0, 32), "outer", "dynamic", 4, "simd", "read2")

Match = Callable[[Nest, Nest, NodeVectors], Matcher]
EACH = [step_by_step, at_once]


def carry(
    steps: tuple[Step, ...], source: Nest, target: Nest, how: Match = step_by_step
) -> Transfer:
    """By the hand-made features, as far as the target's rules allow."""
    matcher = how(source, target, loop_vectors)
    return transfer(steps, source, target=target, legal=Legality(target).reason, matcher=matcher)


@pytest.mark.parametrize("how", EACH)
@pytest.mark.parametrize("vectors", [raw_vectors, loop_vectors])
def test_to_a_nest_of_the_same_shape_everything_is_carried(
    how: Match, vectors: NodeVectors
) -> None:
    source, target = product(), product(combine="min=")
    done = transfer(
        recipe_of(source, BEST),
        source,
        target=target,
        legal=Legality(target).reason,
        matcher=how(source, target, vectors),
    )
    assert done.schedule == BEST
    assert sum(bool(step.target_text) for step in done.steps) == 6
    for step in done.steps:
        assert step.target_text == step.text and not step.reason
        assert all(p.source == p.target and p.distance < 1e-6 for p in step.pairs)


@pytest.mark.parametrize("how", EACH)
@pytest.mark.parametrize("order", ["kij", "jki", "kji"])
def test_a_recipe_follows_the_loops_not_the_slots(order: str, how: Match) -> None:
    source, target = product(), product(order)
    done = carry(recipe_of(source, BEST), source, target, how)
    i, j, k = (order.index(name) for name in "ijk")
    assert done.schedule.order == (i, k, j)
    assert [done.schedule.tiles[at] for at in (i, j, k)] == [64, 0, 32]
    assert (done.schedule.parallel, done.schedule.inner) == ("outer", "simd")
    assert all(p.source == p.target for step in done.steps for p in step.pairs)


def test_an_order_that_stands_is_carried_only_where_it_is_a_step() -> None:
    source, target = product("ikj"), product("ijk")
    still = Schedule((0, 1, 2), (0, 0, 0), "outer")
    assert carry(recipe_of(source, still), source, target).schedule.order == (0, 1, 2)
    assert carry(recipe_of(source, still, whole=True), source, target).schedule.order == (0, 2, 1)


@pytest.mark.parametrize("how", EACH)
def test_from_dense_to_sparse(how: Match) -> None:
    source, target = product(), sparse_product()
    done = carry(recipe_of(source, BEST), source, target, how)
    steps = {step.text: step for step in done.steps}
    assert steps["order i, k, j"].target_text == "order i, k, j"
    assert steps["tile i by 64"].target_text == "tile i by 64"
    skipped = steps["tile k by 32"]
    assert not skipped.target_text
    assert skipped.reason == "loop k cannot be split into blocks: its bounds come out of row"
    assert done.schedule.order == (0, 2, 1) and done.schedule.tiles == (64, 0, 0)


def test_steps_are_in_terms_of_both_nests() -> None:
    source, target = product(), sparse_product()
    done = carry((Tile(0, 256), Tile(2, 32)), source, target)
    assert done.schedule.tiles[0] == 128
    assert [(step.text, step.target_text) for step in done.steps] == [
        ("tile i by 256", "tile i by 128"),
        ("tile k by 32", ""),
    ]
    (pair,) = done.steps[1].pairs
    assert (pair.source, pair.target) == ("k", "k") and pair.distance > 0


def test_to_fewer_loops() -> None:
    source, target = product(), transpose()
    done = carry((Order((2, 1, 0)), Tile(0, 64), Tile(1, 32), Tile(2, 16)), source, target)
    tiled = [step for step in done.steps if step.target_text.startswith("tile")]
    assert len(tiled) == 2, "a loop that is split already is not split again"
    assert done.steps[-1].reason == "nothing in the target matches"
    assert sorted(done.schedule.tiles) == [32, 64]


def test_to_more_loops() -> None:
    source = transpose()
    done = carry(recipe_of(source, Schedule((1, 0), (0, 0), "outer")), source, contraction())
    assert sum(bool(step.target_text) for step in done.steps) == 2
    moved = {p.target for p in done.steps[0].pairs}
    still = [at for at, name in enumerate("abjk") if name not in moved]
    assert len(still) == 2 and all(done.schedule.order[at] == at for at in still)


def test_blocks_are_clamped_to_half_the_turns_or_left_out() -> None:
    source = product()
    done = carry((Tile(0, 256),), source, product(n=100))
    assert done.schedule.tiles == (32, 0, 0)
    assert done.steps[0].target_text == "tile i by 32"
    assert done.steps[0].reason == "256 is more than half of the 100 turns of i"
    done = carry((Tile(0, 256),), source, product(n=6))
    assert done.schedule.tiles == (0, 0, 0)
    assert done.steps[0].reason == "256 is more than half of the 6 turns of i"
    assert carry((Tile(0, 12),), source, product(n=24)).schedule.tiles == (12, 0, 0)


def test_block_sizes_are_those_of_the_platform() -> None:
    with (FOLDER / "nest-cpu.toml").open("rb") as file:
        space = tomllib.load(file)["space"][0]
    assert space["params"]["tile_1"]["values"] == [0, *TILES]


def test_another_loop_runs_in_parallel_where_the_match_cannot() -> None:
    source, target = product(), product("kij")
    done = transfer(
        (Parallel(0, policy="guided"),),
        source,
        target=target,
        legal=Legality(target).reason,
        matcher=by_slot(source, target),
    )
    assert done.steps[0].target_text == "parallel i, guided"
    assert done.steps[0].reason.startswith("loop k cannot run in parallel: C carries a reduction")
    assert done.schedule.parallel == "second"
    sequential = carry((Parallel(0),), source, sweep())
    assert sequential.steps[0].target_text == "parallel j, static"


def test_where_nothing_may_run_in_parallel_nothing_does() -> None:
    source = product()

    def legal(schedule: Schedule) -> str | None:
        return "one at a time" if schedule.parallel != "none" else None

    matcher = by_slot(source, source)
    done = transfer((Parallel(0),), source, target=source, legal=legal, matcher=matcher)
    assert done.schedule.parallel == "none"
    assert (done.steps[0].target_text, done.steps[0].reason) == ("", "one at a time")


def test_only_the_innermost_is_made_anew() -> None:
    source, target = product("ikj"), product("ijk")
    done = carry((Inner(2, "simd"),), source, target)
    assert done.steps[0].reason == "loop j is not the innermost, k is"
    assert done.schedule.inner == "plain"


def test_an_array_meets_an_array_that_is_read_alike() -> None:
    source, target = product(), contraction()
    for array, name in (("read1", "T"), ("read2", "M")):
        steps = recipe_of(source, Schedule((0, 1, 2), (0, 0, 0), pack=array))
        assert carry(steps, source, target).steps[0].pairs[0].target == name


def test_a_step_of_another_nest_is_an_error() -> None:
    with pytest.raises(NestError, match="there is no loop 4"):
        carry((Tile(3, 8),), product(), stencil())


def test_copying_slots() -> None:
    target = product("kij")
    done = slot_copy(BEST, product(), target=target, legal=Legality(target).reason)
    assert done.schedule.order == BEST.order and done.schedule.tiles == BEST.tiles
    assert done.schedule.parallel == "second", "blocks of the first loop are a reduction here"
    with pytest.raises(NestError, match="a schedule of 3 loops does not fit 2 loops"):
        slot_copy(BEST, product(), target=stencil(), legal=Legality(stencil()).reason)


POOL = [
    *(product(order, n=24) for order in ("ijk", "kji")),
    *(sparse_product(24, 8, 240), contraction(12), transpose(40, 9), stencil(24), sweep(24)),
    *sample_nests(16).values(),
]


@settings(deadline=None)
@given(st.data())
def test_whatever_is_carried_is_legal(data: st.DataObject) -> None:
    source, target = data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(POOL))
    drawn = Schedule(
        tuple(data.draw(st.permutations(range(source.depth)))),
        tuple(data.draw(st.sampled_from((0, 4, 8, 64))) for _ in range(source.depth)),
        data.draw(st.sampled_from(("none", "outer"))),
        "dynamic",
        4,
        data.draw(st.sampled_from(("plain", "simd", "jam4"))),
    )
    steps, legal = recipe_of(source, drawn), Legality(target).reason
    matcher = data.draw(st.sampled_from(EACH))(source, target, loop_vectors)
    done = transfer(steps, source, target=target, legal=legal, matcher=matcher)
    assert legal(done.schedule) is None
    trips = zip(done.schedule.tiles, target.trips, strict=True)
    assert all(tile == 0 or 2 * tile <= trip for tile, trip in trips)
    assert len(done.steps) == len(steps)
    assert all(step.target_text or step.reason for step in done.steps)
