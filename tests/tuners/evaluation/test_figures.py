"""The figures of an evaluation, on examples worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import CONFIGS
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.config import Config
from tuners.evaluation.figures import (
    EvalRow,
    Outcome,
    Truth,
    averaged,
    judge,
    ordering,
    summarise,
)

A, B, C, D = CONFIGS
#: The default takes 4 s, the best 1 s; d failed and nothing else was run.
TRUTH = Truth({A: 4.0, B: 2.0, C: 1.0, D: math.inf}, 4.0)
NEVER_RUN = Config({"variant": "e"})


def test_truth() -> None:
    assert TRUTH.best_s == 1.0
    assert TRUTH.after([B, C], 1) == 2.0
    assert TRUTH.after([B, C], 2) == 1.0


@pytest.mark.parametrize("proposals", [[], [D], [NEVER_RUN], [D, NEVER_RUN, A]])
def test_failures_and_proposals_never_run_cost_the_default(proposals: list[Config]) -> None:
    for k in (1, 5):
        assert TRUTH.after(proposals, k) == 4.0
    found = judge(TRUTH, proposals)
    assert found.gain_1 == found.gain_5 == found.slower == 0.0
    assert found.ape == pytest.approx(300.0)


def test_a_proposal_after_a_failed_one_counts_only_within_the_budget() -> None:
    found = judge(TRUTH, [D, B])
    assert found.gain_1 == 0.0
    assert found.gain_5 == pytest.approx(math.log(2))
    assert found.of_optimum_5 == pytest.approx(math.log(1 / 2))
    late = judge(TRUTH, [D, D, D, D, D, C])
    assert late.gain_5 == 0.0


def test_slower_than_the_default() -> None:
    truth = Truth({A: 1.0, B: 2.0}, 1.0)
    found = judge(truth, [B])
    assert found.slower == 1.0
    assert found.gain_1 == pytest.approx(-math.log(2))
    assert judge(truth, [A]).slower == 0.0


def test_the_table_by_hand() -> None:
    """Two matrices: on the first the method is perfect, on the second half of the optimum."""
    outcomes = [judge(TRUTH, [C]), judge(TRUTH, [B, C])]
    figures, spread = summarise([outcomes])
    assert figures["speedup@1"] == pytest.approx(math.sqrt(4 * 2))
    assert figures["speedup@5"] == pytest.approx(4.0)
    assert figures["speedup_q25@1"] == pytest.approx(2.5)
    assert figures["speedup_q50@1"] == pytest.approx(3.0)
    assert figures["speedup_max@1"] == pytest.approx(4.0)
    row = EvalRow.of(("cpu", "spmm:32", "rank"), [outcomes], simulated=False)
    assert row.speedups == pytest.approx((4.0, 2.0))
    assert figures["of_optimum@1"] == pytest.approx(math.sqrt(1 / 2))
    assert figures["of_optimum@5"] == pytest.approx(1.0)
    assert figures["ape"] == pytest.approx((0 + 100) / 2)
    assert figures["total_ape"] == pytest.approx(100 * (0 + 1) / (1 + 1))
    assert figures["regret_p95@1"] == pytest.approx(0.95)  # linear between regrets 0 and 1
    assert figures["slower_than_default"] == 0.0
    assert figures["illegal"] == 0.0
    assert math.isnan(figures["opa"]) and spread == 0.0


def test_in_the_sum_of_times_a_large_matrix_counts_more() -> None:
    """Lost: 1 of 1 on the small one, 10 of 100 on the large one (Equation 2 of the TPU paper)."""
    small, large = Truth({A: 2.0, B: 1.0}, 2.0), Truth({A: 110.0, B: 100.0}, 110.0)
    figures, _ = summarise([[judge(small, [A]), judge(large, [A])]])
    assert figures["total_ape"] == pytest.approx(100 * 11 / 101)
    assert figures["ape"] == pytest.approx((100 + 10) / 2)


def test_kernels_lose_by_program() -> None:
    """`a` loses 1 + 10 of 101, `b` all of 2 of 2; what is of no program has no such figures."""
    truths = [
        Truth({A: 2.0, B: 1.0}, 2.0, "a"),
        Truth({A: 110.0, B: 100.0}, 110.0, "a"),
        Truth({A: 4.0, B: 2.0}, 4.0, "b"),
    ]
    figures, _ = summarise([[judge(truth, [A]) for truth in truths]])
    a, b = 100 * 11 / 101, 100.0
    assert figures["program_ape"] == pytest.approx((a + b) / 2)
    assert figures["program_ape_median"] == pytest.approx((a + b) / 2)
    drawn = averaged([judge(truths[2], [A]), judge(truths[2], [B])])
    assert summarise([[drawn]])[0]["program_ape"] == pytest.approx(50.0)
    assert "program_ape" not in summarise([[judge(TRUTH, [C])]])[0]


def test_seeds_are_averaged_and_their_spread_is_told() -> None:
    good, bad = judge(TRUTH, [C]), judge(TRUTH, [A])
    figures, spread = summarise([[good, good], [bad, bad]])
    assert figures["of_optimum@1"] == pytest.approx((1 + 1 / 4) / 2)
    assert spread == pytest.approx(1 - 1 / 4)


def test_ordering_by_hand() -> None:
    """Of the six pairs, four are apart by more than 10 %; three of them are ordered right."""
    seconds = np.array([1.0, 1.05, 2.0, 2.1, np.nan])
    predicted = np.array([0.0, 1.0, 3.0, 0.5, -9.0])
    opa, tau = ordering(predicted, seconds, 0.1)
    assert opa == pytest.approx(3 / 4)
    # Over all six pairs: (0,1) right, (0,2) right, (0,3) right, (1,2) right, (1,3) and (2,3) wrong.
    assert tau == pytest.approx((4 - 2) / 6)


def test_ordering_counts_predicted_ties_as_wrong_and_tau_b_corrects_for_them() -> None:
    opa, tau = ordering(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 4.0]), 0.0)
    assert opa == pytest.approx(2 / 3)
    assert tau == pytest.approx(2 / math.sqrt(2 * 3))


def test_nothing_to_order() -> None:
    for predicted, seconds in (([1.0], [1.0]), ([1.0, 2.0], [1.0, math.inf]), ([], [])):
        assert all(map(math.isnan, ordering(np.array(predicted), np.array(seconds), 0.0)))
    opa, tau = ordering(np.zeros(3), np.ones(3), 0.0)
    assert math.isnan(opa) and math.isnan(tau)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True))
def test_a_perfect_order_and_its_reverse(millis: list[int]) -> None:
    t = np.array(millis) / 1e3
    assert ordering(np.argsort(np.argsort(t)).astype(float), t, 0.0) == (1.0, pytest.approx(1.0))
    assert ordering(-np.log(t), t, 0.0) == (0.0, pytest.approx(-1.0))


@given(
    st.dictionaries(
        st.sampled_from(CONFIGS), st.floats(1e-3, 1e3) | st.just(math.inf), min_size=1
    ).filter(lambda t: any(map(math.isfinite, t.values()))),
    st.lists(st.sampled_from([*CONFIGS, NEVER_RUN]), max_size=7),
    st.floats(1e-3, 1e3),
)
def test_bounds(times: dict[Config, float], proposals: list[Config], default_s: float) -> None:
    times[A] = default_s
    found = judge(Truth(times, default_s), proposals)
    assert found.of_optimum_1 <= found.of_optimum_5 <= 1e-12
    assert found.gain_1 <= found.gain_5
    assert found.ape >= 0
    assert (found.gain_1 < -1e-9) <= (found.slower == 1.0)
    oracle = judge(Truth(times, default_s), sorted(times, key=times.__getitem__))
    assert oracle.of_optimum_1 == 0.0 and oracle.gain_1 >= found.gain_5


def test_the_released_row() -> None:
    figures, spread = summarise([[Outcome(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)]])
    row = EvalRow("cpu", "spmm:32", "default", 1, figures, spread).document()
    released = {
        "platform", "op", "method", "matrices", "speedup@1", "speedup@5", "of_optimum@1",
        "of_optimum@5", "regret_p95@1", "slower_than_default", "ape", "opa", "tau", "spread",
        "total_ape", "speedup_max@1", "speedups",
    }  # fmt: skip
    assert released <= row.keys()
    assert row["opa"] is None and row["speedup@1"] == 1.0 and row["simulated"] is False
