"""Recipes: there and back for any schedule, their text and JSON, and what they refuse."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_shapes import contraction, product, sparse_product, stencil

from embeddb.core.errors import NestError
from embeddb.nests.recipe import (
    Inner,
    Order,
    Pack,
    Parallel,
    Tile,
    apply,
    identity_schedule,
    recipe_of,
    step_text,
)
from embeddb.nests.schedule import Schedule

NESTS = {nest.name: nest for nest in (product(), stencil(), contraction(), sparse_product())}
SIZES = (0, 0, 4, 32, 256)


@st.composite
def schedules(draw: st.DrawFn, depth: int, packed: int) -> Schedule:
    """Any schedule, without what does not apply."""
    drawn = Schedule(
        tuple(draw(st.permutations(range(depth)))),
        tuple(draw(st.lists(st.sampled_from(SIZES), min_size=depth, max_size=depth))),
        draw(st.sampled_from(["none", "outer", "second"])),
        draw(st.sampled_from(["static", "dynamic", "guided"])),
        draw(st.sampled_from([1, 4, 8, 32])),
        draw(st.sampled_from(["plain", "simd", "unroll4", "jam4"])),
        draw(st.sampled_from(["none", "read1", "read2"][: 1 + packed])),
    )
    return Schedule.of(drawn.config, depth)


@given(st.data())
@pytest.mark.parametrize(("name", "packed"), [("product", 2), ("contraction", 2), ("stencil", 1)])
def test_a_schedule_is_its_recipe(name: str, packed: int, data: st.DataObject) -> None:
    nest = NESTS[name]
    schedule = data.draw(schedules(nest.depth, packed))
    for whole in (False, True):
        steps = recipe_of(nest, schedule, whole=whole)
        assert reduce(partial(apply, nest), steps, identity_schedule(nest)) == schedule


def test_what_is_as_it_stands_is_no_step() -> None:
    nest = product()
    assert recipe_of(nest, identity_schedule(nest)) == ()
    assert recipe_of(nest, identity_schedule(nest), whole=True) == (Order((0, 1, 2)),)


def test_text_names_loops_and_arrays() -> None:
    nest = product()
    best = Schedule((0, 2, 1), (64, 0, 32), "second", "dynamic", 4, "simd", "read2")
    assert [step_text(nest, step) for step in recipe_of(nest, best)] == [
        "order i, k, j",
        "tile i by 64",
        "tile k by 32",
        "parallel blocks of k, dynamic by 4",
        "simd j",
        "pack B",
    ]
    assert step_text(nest, Parallel(0, policy="guided")) == "parallel i, guided"


def test_some_loops_take_each_others_places() -> None:
    nest = contraction()
    schedule = apply(nest, identity_schedule(nest), Order((3, 0)))
    assert schedule.order == (3, 1, 2, 0)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Tile(3, 8), "no loop 4, the nest has 3"),
        (Tile(-1, 8), "no loop 0"),
        (Tile(0, 0), "block size 0"),
        (Order((0, 5)), "no loop 6"),
        (Order((0, 0)), "occurs twice"),
        (Parallel(2), "k is not one of the two outermost generated loops"),
        (Parallel(0, block=True), "blocks of i is not one of the two"),
        (Parallel(0, policy="nicely"), "no policy 'nicely'"),
        (Inner(0, "simd"), "loop i is not the innermost, k is"),
        (Inner(2, "magic"), "no innermost loop 'magic'"),
        (Pack(0), "array C is not one that can be packed"),
        (Pack(7), "no array 7, the nest has 3"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(step: Any, reason: str) -> None:
    nest = product()
    with pytest.raises(NestError, match=reason):
        apply(nest, identity_schedule(nest), step)


def test_a_schedule_that_packs_nothing_has_no_recipe() -> None:
    nest = stencil()
    with pytest.raises(NestError, match="`read2` names no array"):
        recipe_of(nest, Schedule((0, 1), (0, 0), pack="read2"))
