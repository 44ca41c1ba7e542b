"""Which few to try: as a set, not one by one."""

from __future__ import annotations

import numpy as np
import pytest

from embeddb.core.config import Config
from embeddb.ranking.rankers.order import MOST_CHOSEN, behind_default, order_to_try

CONFIGS = [
    Config({"panel": p, "split": s, "order": o, "bypass": b})
    for p in (4, 32, 256)
    for s in (1, 2, 4)
    for o in ("ijk", "jik")
    for b in (0, 1)
]


def test_the_best_comes_first_and_everything_once() -> None:
    gain = np.random.default_rng(0).normal(size=len(CONFIGS))
    order = order_to_try(CONFIGS, gain, np.full(len(CONFIGS), 0.3))
    assert order[0] == gain.argmax()
    assert sorted(order) == list(range(len(CONFIGS)))
    rest = order[MOST_CHOSEN:]
    assert list(rest) == sorted(rest, key=lambda i: -gain[i])


def test_without_a_spread_the_order_is_the_predictions() -> None:
    gain = np.random.default_rng(1).normal(size=len(CONFIGS))
    plain = list(np.argsort(-gain, kind="stable"))
    for spread in (np.zeros(len(CONFIGS)), np.full(len(CONFIGS), np.nan)):
        assert list(order_to_try(CONFIGS, gain, spread)) == plain


def test_a_near_twin_of_the_first_waits_for_something_else() -> None:
    """Twin and stranger promise nearly the same: the stranger is what may turn out better."""
    configs = [
        Config({"a": 1, "b": 1, "c": 1, "d": 1}),
        Config({"a": 1, "b": 1, "c": 1, "d": 2}),
        Config({"a": 9, "b": 9, "c": 9, "d": 9}),
    ]
    gain = np.array([0.50, 0.49, 0.48])
    assert list(order_to_try(configs, gain, np.full(3, 0.2))) == [0, 2, 1]
    assert list(order_to_try(configs, gain, np.full(3, 1e-4))) == [0, 1, 2]


def test_a_model_that_knows_which_errors_correlate_is_believed() -> None:
    """By their parameters the second is the first's twin, by the model the third is."""
    configs = [Config({"a": 1, "b": 1}), Config({"a": 1, "b": 2}), Config({"a": 9, "b": 9})]
    gain, spread = np.array([0.50, 0.49, 0.48]), np.full(3, 0.2)
    known = np.array([[1.0, 0.0, 0.99], [0.0, 1.0, 0.0], [0.99, 0.0, 1.0]])
    assert list(order_to_try(configs, gain, spread)) == [0, 2, 1]
    assert list(order_to_try(configs, gain, spread, lambda _: known)) == [0, 1, 2]


@pytest.mark.parametrize("value", [2.0, -1.0, np.nan, np.inf])
def test_correlations_that_are_none_are_not_believed(value: float) -> None:
    gain = np.random.default_rng(3).normal(size=len(CONFIGS))
    spread = np.full(len(CONFIGS), 0.3)
    wrong = np.full((len(CONFIGS), len(CONFIGS)), value)
    order = order_to_try(CONFIGS, gain, spread, lambda _: wrong)
    assert list(order) == list(order_to_try(CONFIGS, gain, spread))


def test_tries_that_fail_together_are_spread_over_both_families() -> None:
    """Truth: either all of one family or all of the other is fast, nobody knows which."""
    gain = np.array([0.3 + 0.001 * i if c["panel"] == 4 else 0.25 for i, c in enumerate(CONFIGS)])
    first = order_to_try(CONFIGS, gain, np.full(len(CONFIGS), 0.3))[:MOST_CHOSEN]
    assert {CONFIGS[i]["panel"] for i in first} != {4}
    assert {CONFIGS[i]["panel"] for i in np.argsort(-gain)[:MOST_CHOSEN]} == {4}


def test_what_has_no_gain_is_not_tried_and_no_spread_counts_as_the_others() -> None:
    gain = np.array([0.1, np.nan, 0.3, 0.2])
    spread = np.array([0.2, 0.2, np.nan, 0.2])
    order = order_to_try(CONFIGS[:4], gain, spread)
    assert order[0] == 2
    assert sorted(order) == [0, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_any_number_of_configurations(count: int) -> None:
    configs = [Config({"x": i}) for i in range(count)]
    order = order_to_try(configs, np.linspace(0, 1, count), np.full(count, 0.1))
    assert sorted(order) == list(range(count))


def test_the_same_question_has_the_same_answer() -> None:
    gain = np.random.default_rng(2).normal(size=len(CONFIGS))
    spread = np.full(len(CONFIGS), 0.5)
    again = [list(order_to_try(CONFIGS, gain, spread)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("promise", "first"), [(0.05, "default"), (0.2, "default"), (0.21, "promised")]
)
def test_the_default_goes_first_unless_enough_is_promised(promise: float, first: str) -> None:
    gain = np.array([0.0, promise, -1.0])
    order = behind_default(np.array([1, 0, 2]), gain, default=0, guard=0.2)
    assert list(order) == ([0, 1, 2] if first == "default" else [1, 0, 2])


def test_without_a_default_or_a_guard_the_order_stays() -> None:
    order, gain = np.array([1, 0, 2]), np.array([0.0, 0.1, -1.0])
    assert behind_default(order, gain, default=-1, guard=9.0) is order
    assert list(behind_default(order, gain, default=0, guard=0.0)) == [1, 0, 2]
