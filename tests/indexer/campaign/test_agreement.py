"""Rank agreement of rounds: what is noise, what is a tie, and what is a disagreement."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from indexer.campaign.agreement import FEWEST, compare, comparisons, summary

Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def rounds_of(
    true: Times, noise: float, rng: np.random.Generator, count: int = 2
) -> list[Mapping[int, float]]:
    return [dict(enumerate(true * np.exp(rng.normal(0, noise, true.size)))) for _ in range(count)]


def both(rounds: list[Mapping[int, float]]) -> tuple[Times, Times]:
    first, second = (np.array(list(r.values())) for r in rounds)
    return first, second


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0]), st.floats(0.5, 9.0)),
        min_size=3,
        max_size=40,
    )
)
def test_correlations_are_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    found = compare(first, second)
    if len({*first}) > 1 and len({*second}) > 1:
        assert found.spearman == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
        assert found.kendall == pytest.approx(kendalltau(first, second).statistic, abs=1e-12)
    else:
        assert math.isnan(found.spearman) and found.agrees(1.0)
    assert 0 <= found.near_ties <= found.pairs == len(pairs) * (len(pairs) - 1) // 2


def test_a_quiet_machine_agrees(rng: np.random.Generator) -> None:
    found = compare(*both(rounds_of(np.geomspace(1, 8, 60), 0.02, rng)))
    assert found.spearman > 0.99 and found.decided == 1.0 and found.agrees()
    assert 0.005 < found.difference < 0.05
    assert 0 < found.near_ties < found.pairs / 4


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(20))
def test_what_ties_does_not_disagree(noise: float, seed: int) -> None:
    """All configurations are equally fast: their order is chance, and that is no fault."""
    found = compare(*both(rounds_of(np.full(100, 1e-3), noise, np.random.default_rng(seed))))
    assert found.agrees()
    if noise:
        assert found.spearman < 0.5 and found.near_ties > 0.9 * found.pairs


@pytest.mark.parametrize("seed", range(20))
def test_two_classes_of_equals_do_not_disagree(seed: int) -> None:
    true = np.repeat([1e-3, 1.5e-3], 50)
    assert compare(*both(rounds_of(true, 0.02, np.random.default_rng(seed)))).agrees()


@pytest.mark.parametrize("seed", range(20))
def test_a_disturbed_round_disagrees(seed: int) -> None:
    """Half of the second round ran beside another load: that is not noise, however large."""
    rng = np.random.default_rng(seed)
    first, second = both(rounds_of(np.geomspace(1, 3, 60), 0.02, rng))
    second = second * np.where(rng.random(60) < 0.5, rng.uniform(1.3, 3, 60), 1)
    found = compare(first, second)
    assert found.spearman < 0.9 and not found.agrees()


def test_chance_disagrees(rng: np.random.Generator) -> None:
    assert not compare(np.exp(rng.normal(size=60)), np.exp(rng.normal(size=60))).agrees()


def test_drift_of_a_whole_round_is_neither_noise_nor_disagreement() -> None:
    first = np.geomspace(1, 4, 40)
    found = compare(first, 1.3 * first)
    assert found.spearman == found.kendall == found.decided == pytest.approx(1)
    assert found.near_ties == 0 and found.difference == pytest.approx(0.6 / 2.3)


def test_large_rounds_are_compared_in_part(rng: np.random.Generator) -> None:
    found = compare(*both(rounds_of(np.geomspace(1, 8, 5000), 0.02, rng)))
    assert found.configs == 1500 and found.spearman > 0.99


def test_only_common_ok_configurations_count() -> None:
    first = {at: 1.0 + at for at in range(FEWEST + 2)}
    second = {**first, 0: math.inf, 1: 0.0, 99: 5.0}
    (found,) = comparisons([first, second])
    assert found.configs == FEWEST and found.spearman == pytest.approx(1)
    assert comparisons([first, {**second, 2: math.inf}]) == []
    assert comparisons([first]) == []
    assert len(comparisons([first] * 3)) == 3


def test_the_summary_of_an_op(rng: np.random.Generator) -> None:
    true = np.geomspace(1, 4, 30)
    good = rounds_of(true, 0.01, rng)
    bad = [good[0], dict(enumerate(rng.permutation(true)))]
    few = [dict.fromkeys(range(3), 1.0)] * 2
    tied = rounds_of(np.full(30, 1.0), 0.01, rng)
    settled = [bad[1], *good]
    rounds = [("good", good), ("bad", bad), ("few", few), ("tied", tied), ("settled", settled)]
    found = summary("spmm:32", rounds)
    assert (found.op, found.matrices, found.too_few) == ("spmm:32", 4, 1)
    assert found.disagreeing == ["bad"] and found.settled == ["settled"]
    assert found.spearman_p5 < 0.3 and found.kendall_p5 <= found.kendall
    assert 0 < found.near_ties < found.pairs == (1 + 1 + 1 + 3) * 30 * 29 // 2
    assert summary("spmm:32", rounds, least=-1).disagreeing == []


def test_nothing_to_compare() -> None:
    found = summary("spmv", [])
    assert found.matrices == 0 and math.isnan(found.spearman) and found.disagreeing == []
