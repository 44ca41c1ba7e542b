"""Equations and inequalities, against every point of a small box."""

from __future__ import annotations

import itertools
import random

import pytest

from embeddb.nests.dependence.distances import Row, System

BOX = range(-3, 4)
#: The box as inequalities of three variables.
WITHIN: list[Row] = [
    (*(sign * (at == var) for at in range(3)), 3) for var in range(3) for sign in (1, -1)
]


def rows_by_chance(rng: random.Random, count: int) -> list[Row]:
    return [(*(rng.randint(-3, 3) for _ in range(3)), rng.randint(-6, 6)) for _ in range(count)]


def value(row: Row, point: tuple[int, ...]) -> int:
    return row[-1] + sum(c * x for c, x in zip(row, point, strict=False))


def solutions(equal: list[Row], least: list[Row]) -> list[tuple[int, ...]]:
    return [
        point
        for point in itertools.product(BOX, repeat=3)
        if all(value(row, point) == 0 for row in equal)
        and all(value(row, point) >= 0 for row in least)
    ]


def test_what_has_no_solution_has_none() -> None:
    rng = random.Random(0)
    refused = mistaken = 0
    for _ in range(600):
        equal = rows_by_chance(rng, rng.randint(0, 3))
        least = rows_by_chance(rng, rng.randint(0, 4))
        points = solutions(equal, least)
        system = System().joined(equal, [*least, *WITHIN])
        if system is None or not system.feasible():
            assert not points
            refused += 1
            continue
        mistaken += not points
        for var in range(3):
            constant = system.constant(var)
            assert constant is None or all(point[var] == constant for point in points)
    assert refused > 200
    assert mistaken < 30  # solutions in fractions only


def test_equations_can_be_added_one_by_one() -> None:
    rng = random.Random(1)
    for _ in range(200):
        equal, least = rows_by_chance(rng, 2), [*rows_by_chance(rng, 2), *WITHIN]
        first = System().joined(equal[:1], least)
        after = None if first is None else first.joined(equal[1:])
        assert (after is not None and after.feasible()) or not solutions(equal, least)


@pytest.mark.parametrize(
    ("equal", "constants"),
    [
        ([(2, 0, 0, -6)], (3, None, None)),
        ([(1, 1, 0, -5), (0, 2, 0, -4)], (3, 2, None)),
        ([(1, 2, 0, 0)], (None, None, None)),
        ([(3, 3, 0, -3), (1, -1, 0, -1)], (1, 0, None)),
    ],
)
def test_equations_leave_one_value(equal: list[Row], constants: tuple[int | None, ...]) -> None:
    system = System().joined(equal)
    assert system is not None
    assert tuple(system.constant(var) for var in range(3)) == constants


@pytest.mark.parametrize("equal", [[(2, 4, 0, -3)], [(0, 0, 0, 1)], [(1, 1, 0, 0), (1, -1, 0, -1)]])
def test_a_divisor_that_does_not_fit_is_no_solution(equal: list[Row]) -> None:
    assert System().joined(equal) is None


def test_fractions_between_two_bounds_are_rounded_away() -> None:
    assert not System(least=((2, -1), (-2, 1))).feasible()  # 1 <= 2 x <= 1
    assert System(least=((2, -1), (-2, 2))).feasible()
    assert System().feasible()
