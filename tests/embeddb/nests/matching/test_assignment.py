"""The assignment problem against scipy's, and what may not be paired."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from embeddb.nests.matching.transfer import assign

SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 7))
COSTS = st.one_of(st.floats(0, 9), st.integers(0, 3).map(float))


@given(SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=COSTS)))
def test_the_sum_is_the_least(cost: np.ndarray) -> None:
    pairs = assign(cost)
    assert len({r for r, _ in pairs}) == len({c for _, c in pairs}) == min(cost.shape)
    best = cost[linear_sum_assignment(cost)].sum()
    assert sum(cost[pair] for pair in pairs) == pytest.approx(best)


@given(SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=COSTS | st.just(np.inf))))
def test_as_many_as_may_be_are_paired(cost: np.ndarray) -> None:
    allowed = np.isfinite(cost)
    pairs = assign(cost)
    most = allowed[linear_sum_assignment(allowed, maximize=True)].sum()
    assert len(pairs) == most
    assert all(allowed[pair] for pair in pairs)


def test_by_hand() -> None:
    assert assign(np.array([[4.0, 1, 3], [2, 0, 5]])) == [(0, 1), (1, 0)]
    assert assign(np.array([[1.0], [0.5], [2.0]])) == [(1, 0)]
    assert assign(np.array([[np.inf, np.inf], [np.inf, 1.0]])) == [(1, 1)]
    assert assign(np.zeros((0, 3))) == []
