"""Legal schedules: by hand, and against what happens turn by turn."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
from ruled_nests import AT_I, AT_J, BY_HAND, floats, nest_of, random_nest, read, whole

from embeddb.core.config import Op
from embeddb.core.errors import NestError
from embeddb.nests.check import NestJudge, canonical_schedule
from embeddb.nests.dependence.legality import (
    MOST_PRIVATE,
    Legality,
    packable,
    parallel_loops,
    reduction_loops,
)
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import load_platform, space_of
from tests.fixtures.nest_turns import Turns

FIRST, SWAPPED = (0, 1), (1, 0)


def refusal(
    nest: Nest, order: tuple[int, ...] = (), tiles: tuple[int, ...] = (), **more: str
) -> str:
    """Why a schedule is refused; empty where it is legal."""
    still = Schedule(order or tuple(range(nest.depth)), tiles or (0,) * nest.depth, **more)
    return Legality(nest).reason(still) or ""


def schedules(nest: Nest, rng: random.Random, count: int) -> list[Schedule]:
    """Drawn from all that a platform file could name."""
    return [
        Schedule(
            tuple(rng.sample(range(nest.depth), nest.depth)),
            tuple(rng.choice((0, 0, 2, 3)) for _ in range(nest.depth)),
            parallel=rng.choice(("none", "none", "outer", "second")),
            inner=rng.choice(("plain", "plain", "simd", "jam4")),
        )
        for _ in range(count)
    ]


# -- by hand -----------------------------------------------------------------------------------


def test_matmul_may_do_all_but_copy_its_result_by_thread() -> None:
    nest = BY_HAND["matmul"](80)
    for order in itertools.permutations(range(3)):
        assert not refusal(nest, order, (4, 4, 4), inner="jam4", pack="read2")
        assert not refusal(nest, order, inner="simd")
    assert refusal(nest, (2, 0, 1), parallel="outer") == (
        "loop k cannot run in parallel: C carries a reduction, and 6400 elements are too many for "
        "a copy by thread (4096)"
    )
    assert parallel_loops(nest) == (0, 1)
    assert reduction_loops(nest) == (2,)
    assert packable(nest) == (1, 2)


def test_a_small_result_is_copied_by_thread() -> None:
    nest = BY_HAND["matmul"](8)
    legality = Legality(nest)
    for parallel, order, private in (
        ("outer", (2, 0, 1), (0,)),
        ("outer", (0, 1, 2), ()),
        ("second", (0, 2, 1), (0,)),
        ("second", (0, 1, 2), ()),
        ("second", (2, 0, 1), ()),
    ):
        schedule = Schedule(order, (0, 0, 0), parallel=parallel)
        assert legality.reason(schedule) is None
        assert legality.privatised(schedule) == private
    # The turns of one block of k, which is the outermost loop.
    assert legality.privatised(Schedule((2, 0, 1), (0, 0, 4), parallel="second")) == (0,)
    assert MOST_PRIVATE == 64 * 64


def test_a_stencil_in_place_is_one_of_the_order() -> None:
    nest = BY_HAND["gauss_seidel"]()
    assert not refusal(nest, SWAPPED, (4, 4))
    assert refusal(nest, parallel="outer") == (
        "loop i cannot run in parallel: A depends on its own element at distance (1, 0)"
    )
    assert "loop j cannot run in parallel" in refusal(nest, parallel="second")
    assert refusal(nest, inner="simd") == (
        "loop j cannot run as simd: A depends on its own element at distance (0, 1)"
    )
    assert not refusal(nest, inner="jam4")
    assert canonical_schedule(nest) == Schedule(FIRST, (0, 0))


def test_a_skewed_distance_forbids_the_exchange_and_blocks_but_not_the_inner_parallel_loop() -> (
    None
):
    nest = BY_HAND["skewed"]()
    told = "A depends on its own element at distance (1, -1)"
    assert refusal(nest, SWAPPED) == f"order j i: {told}"
    assert refusal(nest, FIRST, (0, 4)) == f"loop j cannot be split into blocks: {told}"
    assert refusal(nest, inner="jam4") == f"loop i cannot be jammed into loop j: {told}"
    assert not refusal(nest, FIRST, (4, 0))
    assert not refusal(nest, parallel="second")
    assert not refusal(nest, inner="simd")
    # In blocks of i, turns of several i run inside of one block.
    assert "loop i cannot run in parallel" in refusal(nest, FIRST, (4, 0), parallel="second")


def test_transposes() -> None:
    out, within = BY_HAND["transpose"](), BY_HAND["transpose_in_place"]()
    assert not refusal(out, SWAPPED, (4, 4), parallel="outer", inner="simd")
    assert refusal(within, SWAPPED) == (
        "order j i: A depends on its own element in direction (+, -)"
    )


def test_what_comes_out_of_an_array_may_be_the_same_twice() -> None:
    histogram, scatter = BY_HAND["histogram"](), BY_HAND["scatter"]()
    schedule = Schedule((0,), (4,), parallel="outer")
    assert Legality(histogram).reason(schedule) is None
    assert Legality(histogram).privatised(schedule) == (0,)
    assert refusal(BY_HAND["histogram"](30, 5000), parallel="outer")
    assert refusal(histogram, inner="simd") == (
        "loop i cannot run as simd: h carries a reduction that no variable can hold"
    )
    assert not refusal(scatter, parallel="outer", inner="simd")  # a permutation
    assert packable(histogram) == ()
    assert packable(scatter) == (2,)


def test_rows_of_a_sparse_matrix() -> None:
    spmv, sddmm = BY_HAND["spmv"](), BY_HAND["sddmm"]()
    assert canonical_schedule(spmv).parallel == "outer"
    assert not refusal(spmv, FIRST, (4, 0), parallel="outer", inner="simd")
    assert refusal(spmv, SWAPPED) == "order j i: the bounds of j depend on i, which is inside it"
    assert refusal(spmv, FIRST, (0, 4)) == (
        "loop j cannot be split into blocks: its bounds come out of row"
    )
    assert refusal(spmv, inner="jam4") == (
        "loop i cannot be jammed into loop j: the bounds of j depend on it"
    )
    assert packable(spmv) == (1,)
    assert parallel_loops(sddmm) == (0, 1)


def test_triangles() -> None:
    nest = BY_HAND["triangular_solve"]()
    assert refusal(nest, SWAPPED).startswith("order j i: the bounds of j depend on i")
    assert not refusal(nest, FIRST, (4, 4))
    stepped = nest_of(
        [[[0], [9], 1], [[0, 1], [9], 2]], [["=", [0, AT_I, AT_J], 1, None]], A=floats(9, 9)
    )
    assert refusal(stepped, FIRST, (0, 4)) == (
        "loop j cannot be split into blocks: it takes steps of 2 from a bound that varies"
    )


def test_a_reduction_that_is_read_has_no_copies() -> None:
    body = [["+=", [0, [0]], read(1, AT_I), None], ["=", [2, AT_I], read(0, [0]), None]]
    nest = nest_of(whole(8), body, s=floats(1), a=floats(8), b=floats(8))
    assert refusal(nest, parallel="outer").startswith("loop i cannot run in parallel: s depends")
    body = [["+=", [0, [0]], read(0, [3]), None]]
    nest = nest_of(whole(3), body, s=floats(4))
    assert refusal(nest, parallel="outer") == (
        "loop i cannot run in parallel: s carries a reduction and is used in another way too"
    )


def test_simd_has_no_element_that_two_statements_access_at_different_indices() -> None:
    # A[2 * i + 2] += A[i], where the second turn has i = 3; then A[i + 2] = min(A[i + 2], B[i]).
    loops = [[[0], [5], 3]]
    twice, behind = [0, [2, 2]], [0, [2, 1]]
    body = [["+=", twice, read(0, AT_I), None], ["min=", behind, read(1, AT_I), None]]
    nest = nest_of(loops, body, a=floats(12), b=floats(8))
    assert parallel_loops(nest) == (0,)
    assert refusal(nest, inner="simd") == (
        "loop i cannot run as simd: two statements may access one element of a at different indices"
    )
    assert not refusal(nest, inner="unroll4", parallel="outer")
    body = [["=", at, value, None] for at, value in ((behind, read(1, AT_I)), ([1, AT_I], 1))]
    body.append(["=", [2, AT_I], read(*behind), None])
    assert not refusal(nest_of(loops, body, a=floats(12), b=floats(8), c=floats(8)), inner="simd")


def test_simd_reduces_into_one_element_by_one_statement() -> None:
    one = ["+=", [0, [0]], read(1, AT_I), None]
    arrays = {"s": floats(1), "a": floats(8)}
    assert not refusal(nest_of(whole(8), [one], **arrays), inner="simd")
    assert "carries a reduction" in refusal(nest_of(whole(8), [one, one], **arrays), inner="simd")
    # Row i is summed up in a variable only if nobody looks at it meanwhile.
    read_too = [["+=", [0, [1, 1]], read(1, AT_J), None], ["=", [1, AT_J], read(0, AT_I), None]]
    nest = nest_of(whole(8, 8), read_too[:1], y=floats(9), a=floats(8))
    assert not refusal(nest, inner="simd")
    nest = nest_of(
        whole(8, 8),
        [read_too[0], ["=", [2, AT_J], read(0, AT_I), None]],
        y=floats(9),
        a=floats(8),
        b=floats(8),
    )
    assert "carries a reduction" in refusal(nest, inner="simd")


def test_jammed_turns_do_not_part_the_parallel_loop_within() -> None:
    """Distance (1, 1): rows may run one after the other, each in parallel, but not four at once."""
    body = [["=", [0, [1, 1], [1, 0, 1]], read(0, AT_I, AT_J), None]]
    nest = nest_of(whole(8, 8), body, A=floats(9, 9))
    assert not refusal(nest, parallel="second")
    assert not refusal(nest, inner="jam4")
    assert "cannot run in parallel" in refusal(nest, parallel="second", inner="jam4")


def test_what_is_not_there() -> None:
    one = nest_of(whole(8), [["=", [0, AT_I], read(1, AT_I), None]], b=floats(8), a=floats(8))
    assert refusal(one, parallel="second") == "there is no second loop that could run in parallel"
    assert not refusal(one, tiles=(4,), parallel="second")
    assert refusal(one, inner="jam4") == "inner jam4: the nest has one loop only"
    assert not refusal(one, pack="read1")
    assert refusal(one, pack="read2").startswith("pack read2: there is no second array")
    assert refusal(one, FIRST) == "the schedule is for 2 loops, the nest has 1"


def test_a_bound_that_the_nest_writes_is_no_bound() -> None:
    loops = [*whole(4), [[0], {"plus": [0], "of": [0, AT_I]}, 1]]
    with pytest.raises(NestError, match="n: is written and bounds a loop in one nest"):
        nest_of(loops, [["=", [0, AT_I], 9, None]], n=["i32", [4], "below:4", 0])


def test_two_ways_to_combine_have_no_copies() -> None:
    """The halves of y never meet, but one clause of OpenMP holds for the whole of it."""
    body = [["+=", [0, [0]], read(1, AT_I), None], ["*=", [0, [1]], read(1, AT_I), None]]
    nest = nest_of(whole(8), body, y=floats(2), a=floats(8))
    assert "is used in another way too" in refusal(nest, parallel="outer")


# -- turn by turn ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_legal_schedule_of_a_known_nest_breaks_nothing(name: str) -> None:
    _hold(BY_HAND[name](), random.Random(1), 60)


@pytest.mark.parametrize("seed", range(60))
def test_a_legal_schedule_breaks_nothing(seed: int) -> None:
    rng = random.Random(seed)
    _hold(random_nest(seed), rng, 30)


def _hold(nest: Nest, rng: random.Random, count: int) -> None:
    legality, turns = Legality(nest), Turns(nest)
    expected = turns.result(range(len(turns.points)))
    for schedule in schedules(nest, rng, count):
        if legality.reason(schedule) is None:
            private = legality.privatised(schedule)
            assert not turns.broken(schedule, private), schedule
            assert turns.result(turns.order(schedule)) == expected, schedule


@pytest.mark.parametrize("seed", range(30))
def test_every_order_that_breaks_nothing_is_legal_where_distances_are_uniform(seed: int) -> None:
    nest = random_nest(seed, uniform=True)
    legality, turns = Legality(nest), Turns(nest)
    for order in itertools.permutations(range(nest.depth)):
        for parallel in ("none", "outer", "second")[: 1 + nest.depth]:
            schedule = Schedule(order, (0,) * nest.depth, parallel=parallel)
            private = range(len(nest.arrays))
            if not turns.broken(schedule, private):
                reason = legality.reason(schedule)
                assert reason is None or "is used in another way too" in reason


def test_the_reference_finds_what_is_wrong() -> None:
    turns = Turns(BY_HAND["skewed"](5))
    for schedule, wrong in (
        (Schedule(SWAPPED, (0, 0)), "change places"),
        (Schedule(FIRST, (0, 2)), "change places"),
        (Schedule(FIRST, (0, 0), inner="jam4"), "change places"),
        (Schedule(FIRST, (0, 0), parallel="outer"), "run at one time"),
        (Schedule(FIRST, (0, 0), parallel="second"), ""),
    ):
        assert turns.broken(schedule).endswith(wrong)
        assert bool(turns.broken(schedule)) == bool(wrong)
        if wrong == "change places":
            assert turns.result(turns.order(schedule)) != turns.result(range(len(turns.points)))
    inner = Schedule(FIRST, (0, 0), inner="simd")
    assert turns.broken(inner) == ""
    assert "one vector" in Turns(BY_HAND["gauss_seidel"](5)).broken(inner)


# -- as a judge of a space ---------------------------------------------------------------------


def test_the_judge_decides_as_soon_as_it_can() -> None:
    nest = BY_HAND["skewed"](64)
    judge = NestJudge(nest)
    config = dict(Schedule(SWAPPED, (0, 0)).config)
    assert judge.holds(config) is False
    assert judge.reason(config).startswith("order j i: A depends")
    for name in judge.names:
        assert judge.holds({k: v for k, v in config.items() if k != name}) is None
    assert judge.holds(dict(Schedule(FIRST, (8, 0)).config)) is True


def test_a_judged_space_holds_legal_schedules_only() -> None:
    nest = BY_HAND["skewed"](17)
    legality = Legality(nest)
    space = load_platform("nest-cpu").space(Op("nest"), nest.sizes)
    judged = space.judged(NestJudge(nest))
    kept = {
        config.id for config in space.enumerate() if legality.reason(Schedule.of(config, 2)) is None
    }
    assert {config.id for config in judged.enumerate()} == kept
    wrong = Schedule(SWAPPED, (0, 0)).config
    assert space.reason(wrong) is None
    assert judged.reason(wrong) == legality.reason(Schedule(SWAPPED, (0, 0)))


def test_the_judge_is_fast() -> None:
    nest = BY_HAND["matmul"](64)
    judge, legality = NestJudge(nest), Legality(nest)
    asked = [dict(s.config) for s in schedules(nest, random.Random(0), 200)]
    for config in asked:
        assert judge.holds(config) is (legality.reason(Schedule.of(config, 3)) is None)
    started = time.process_time()
    for config in asked * 10:
        judge.holds(config)
    assert time.process_time() - started < 0.1  # 2000 questions: 3 ms where nothing else runs


def test_a_reason_names_the_loops_of_the_nest_that_is_asked() -> None:
    """Nests of one code are equal, whatever they call their loops."""
    nest = BY_HAND["matmul"](80)
    other = replace(nest, loop_names=("x", "y", "z"))
    reduced = Schedule((2, 0, 1), (0, 0, 0), "outer").config
    for one, name in ((nest, nest.loop_name(2)), (other, "z"), (nest, nest.loop_name(2))):
        space = space_of(load_platform("nest-cpu"), Op("nest"), one)
        assert (space.reason(reduced) or "").startswith(f"loop {name} cannot run in parallel")
