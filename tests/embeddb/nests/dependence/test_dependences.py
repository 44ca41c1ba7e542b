"""Dependences by hand, and against islpy's exact relation."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import islpy as isl
import pytest
from ruled_nests import AT_I, AT_J, BY_HAND, floats, nest_of, random_nest, read, whole

from embeddb.nests.dependence.legality import Dependence, dependences
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Index


def told(nest: Nest) -> list[str]:
    return sorted(f"{'r' * d.reduction}{d.vector_text}" for d in dependences(nest))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul", ["r(0, 0, +)"]),
        ("gauss_seidel", ["(0, 1)", "(1, 0)"]),
        ("skewed", ["(1, -1)"]),
        ("transpose", []),
        ("transpose_in_place", ["(+, -)"]),
        ("histogram", ["r(+)"]),
        ("scatter", []),
        ("spmv", ["r(0, +)"]),
        ("sddmm", ["r(0, 0, +)"]),
        # x[j] is used after all turns of row j: at a later row, and at a later j.
        ("triangular_solve", ["(+, +)", "r(0, +)"]),
        # B[k, j] is read in row i < k, before row k changes it.
        ("triangular_product", ["(+, 0, +)", "r(0, 0, +)"]),
    ],
)
def test_worked_by_hand(name: str, expected: list[str]) -> None:
    assert told(BY_HAND[name]()) == expected


def test_a_distance_within_linear_indices_is_one_of_rows() -> None:
    """`A[16 * i + j]` with j < 16 is a matrix: nothing meets but the element itself."""
    place = [0, 16, 1]
    body = [["=", [0, place], ["+", read(0, place), 1], None]]
    assert told(nest_of(whole(8, 16), body, A=floats(128))) == []
    assert told(nest_of(whole(8, 17), body, A=floats(129))) == ["(+, -)"]


def test_steps_and_divisors_keep_elements_apart() -> None:
    twice = [["=", [0, [0, 2]], read(0, [1, 2]), None]]
    assert told(nest_of(whole(8), twice, A=floats(16))) == []
    step = [[[0], [16], 2]]
    assert told(nest_of(step, [["=", [0, [1, 1]], read(0, [2, 1]), None]], A=floats(18))) == []
    shifted = [["=", [0, [2, 1]], read(0, [0, 1]), None]]
    assert told(nest_of(step, shifted, A=floats(18))) == ["(2)"]


def test_steps_from_a_bound_that_moves_keep_apart_what_its_own_steps_do() -> None:
    """j runs by 2 from i, or from 2 i: from row to row it may or may not change parity."""
    body = [["=", [0, [1, 0, 1]], read(0, [0, 0, 1]), None]]
    odd = nest_of([[[0], [4], 1], [[0, 1], [9], 2]], body, A=floats(10))
    even = nest_of([[[0], [4], 1], [[0, 2], [9], 2]], body, A=floats(10))
    assert {d.vector[1] for d in dependences(odd)} >= {(1, 1), (-1, -1)}
    assert {d.vector[1] for d in dependences(even)} == {(0, 0)}


def test_the_next_nonzero_is_in_this_row_or_a_later_one() -> None:
    row = [{"plus": [0], "of": [1, at]} for at in (AT_I, [1, 1])]
    body = [["=", [0, [1, 0, 1]], read(0, [0, 0, 1]), None]]
    nest = nest_of([*whole(5), [*row, 1]], body, v=floats(21), row=["i64", [6], "offsets:20:1", 0])
    assert told(nest) == ["(+, 1)", "(0, 1)"]


def test_elements_of_a_permutation_differ_but_not_from_those_beside_them() -> None:
    def nest(beside: int) -> Nest:
        at, other = ({"plus": [c], "of": [1, AT_I]} for c in (1, 1 + beside))
        body = [["=", [0, at], read(0, other), None]]
        return nest_of(whole(8), body, B=floats(10), at=["i32", [8], "permutation", 0])

    assert told(nest(0)) == []
    assert told(nest(1)) == ["(+)"]


def test_a_distance_longer_than_the_loop_is_none() -> None:
    body = [["=", [0, [8, 1]], read(0, [0, 1]), None]]
    assert told(nest_of(whole(8), body, A=floats(16))) == []
    assert told(nest_of(whole(9), body, A=floats(17))) == ["(8)"]


def test_statements_of_one_turn_depend_on_each_other() -> None:
    body = [["=", [0, AT_I], read(1, AT_I), None], ["=", [2, AT_I], read(0, AT_I), None]]
    nest = nest_of(whole(8), body, t=floats(8), a=floats(8), b=floats(8))
    assert dependences(nest) == (Dependence(0, 0, 1, ((0, 0),)),)


def test_reductions_of_two_statements_are_free_only_if_they_combine_alike() -> None:
    def nest(first: str, second: str) -> Nest:
        body = [[first, [0, AT_I], 2, None], [second, [0, AT_J], 3, None]]
        return nest_of(whole(4, 4), body, y=floats(4))

    assert all(d.reduction for d in dependences(nest("+=", "+=")))
    mixed = [d.reduction for d in dependences(nest("+=", "*=")) if d.source != d.sink]
    assert mixed and not any(mixed)


def test_a_reduction_that_reads_its_own_array_is_more_than_one() -> None:
    body = [["+=", [0, AT_I], read(0, AT_J), None]]
    assert {d.reduction for d in dependences(nest_of(whole(4, 4), body, y=floats(4)))} == {
        True,
        False,
    }


def test_six_loops_and_ten_accesses_take_milliseconds() -> None:
    here = [[0] * (at + 1) + [1] for at in range(6)]
    value = read(0, *here)
    for at in range(9):
        moved = [[2 * (at > 5) - 1, *h[1:]] if d == at % 6 else h for d, h in enumerate(here)]
        value = ["+", value, read(0, *moved)]
    loops = [[[1], [15], 1]] * 6
    nest = nest_of(loops, [["=", [0, *here], value, None]], A=floats(*[16] * 6))
    started = time.process_time()
    found = dependences(nest)
    assert time.process_time() - started < 0.05  # 4 ms where nothing else runs
    assert sorted(d.vector_text.count("1") for d in found) == [1] * 6


# -- islpy -------------------------------------------------------------------------------------


def _affine(index: Index, names: list[str]) -> str:
    terms = [f"{c}*{name}" for c, name in zip(index.affine.coefs, names, strict=False)]
    return " + ".join([str(index.affine.constant), *terms])


def _relation(nest: Nest, access: Access) -> isl.Map:
    """From turns to elements."""
    names = [f"x{at}" for at in range(nest.depth)]
    where = []
    for name, loop in zip(names, nest.loops, strict=True):
        low, high = _affine(loop.lower, names), _affine(loop.upper, names)
        where.append(f"{low} <= {name} < {high} and ({name} - ({low})) mod {loop.step} = 0")
    at = ", ".join(_affine(index, names) for index in access.at)
    return isl.Map(f"{{ [{', '.join(names)}] -> [{at}] : {' and '.join(where)} }}")


def _exact(nest: Nest) -> Iterator[tuple[int, bool, isl.Set]]:
    """(array, whether a reduction, distances from the earlier to the later turn), by islpy."""
    touches = nest.accesses()
    for (s, one, writes), (t, two, also) in itertools.product(touches, touches):
        if one.array != two.array or not (writes or also):
            continue
        alike = nest.body[s].combine == nest.body[t].combine != "="
        meet = _relation(nest, one).apply_range(_relation(nest, two).reverse())
        later = isl.Map.lex_lt(meet.get_space().domain())
        yield one.array, writes and also and alike, (meet & later).deltas()


@pytest.mark.parametrize("seed", range(40))
def test_never_less_than_the_exact_relation(seed: int) -> None:
    nest = random_nest(seed, trip=random.Random(seed).choice((4, 9, 40)), indirect=False)
    _covered(nest)


@pytest.mark.parametrize("limit", ["_MOST_SYSTEMS", "_MOST_IN_ALL", "_MOST_PAIRS"])
def test_what_is_given_up_is_a_dependence(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    nest = random_nest(7, trip=9, indirect=False)
    all_known = dependences.__wrapped__(nest)
    monkeypatch.setattr(f"embeddb.nests.dependence.distances.{limit}", 2)
    dependences.cache_clear()
    assert dependences(nest) != all_known
    _covered(nest)
    dependences.cache_clear()


def _covered(nest: Nest) -> None:
    exact, ours = list(_exact(nest)), dependences(nest)
    for array, reduction, distances in exact:
        left = distances
        for dependence in ours:
            if dependence.array == array and dependence.reduction <= reduction:
                left = left - _box(dependence)
        assert left.is_empty(), f"{nest} misses {left}"


def _box(dependence: Dependence) -> isl.Set:
    names = [f"x{at}" for at in range(len(dependence.vector))]
    pairs = zip(names, dependence.vector, strict=True)
    within = " and ".join(f"{low} <= {name} <= {high}" for name, (low, high) in pairs)
    return isl.Set(f"{{ [{', '.join(names)}] : {within} }}")


@pytest.mark.parametrize("seed", range(40))
def test_equal_to_the_exact_relation_where_distances_are_uniform(seed: int) -> None:
    nest = random_nest(seed, trip=random.Random(seed).choice((4, 40)), uniform=True)
    empty = isl.Set(f"{{ [{', '.join(f'x{at}' for at in range(nest.depth))}] : false }}")
    for reduction in (False, True):
        mine, theirs = empty, empty
        for dependence in dependences(nest):
            if dependence.reduction == reduction and set(dependence.vector) != {(0, 0)}:
                mine = mine | _box(dependence)
        for _, reduces, distances in _exact(nest):
            theirs = theirs | (distances if reduces == reduction else empty)
        assert mine == theirs
