"""Prices of cuts corrected by what ran, and the neighbour that is chosen by them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from played_xla import PlayedModel, chain, crowded_s, plain_s

from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.fusion_cuts import DRAWN, Corrections, CutPrices, CutSteps, ScreenedSteps

PROGRAM = chain(6)


def cut_at(*edges: int) -> Cut:
    return Cut(tuple(at in edges for at in range(len(edges_of(PROGRAM).pairs))))


def took(cut: Cut, seconds: float) -> dict[str, float]:
    """All kernels of a cut take as long."""
    return {placed.kernel.id: seconds for placed in Partition.of(PROGRAM, cut).kernels}


def law(kernel: TensorGraph) -> float:
    return 2.0 * plain_s(kernel)


def test_factors_come_from_kernels_that_share_operations() -> None:
    made = Corrections()
    assert made.factor([1, 2, 3]) == 1.0
    made.learn([1, 2, 3, 4], 4.0)
    made.learn([5, 6], 1.0)
    made.learn([7], 1.0)
    assert made.factor([1, 2, 3, 4]) == pytest.approx(4.0, rel=0.1)
    assert 3.0 < made.factor([1, 2, 3]) < 4.0
    assert made.factor([5, 6, 7]) == pytest.approx(1.0)
    # Nothing is shared: the median of all.
    assert made.factor([8, 9]) == pytest.approx(1.0)


def test_a_factor_of_all_is_told_of_kernels_that_share_nothing() -> None:
    made = Corrections()
    for place in range(5):
        made.learn([place], 2.0)
    assert made.factor([9]) == pytest.approx(2.0)


def test_what_ran_counts_as_it_was_measured_and_the_model_says_the_same() -> None:
    prices, cut = CutPrices(PROGRAM, PlayedModel(plain_s).seconds), cut_at(2)
    said = prices.seconds(cut)
    assert prices.corrected(cut) == pytest.approx(said)
    prices.learn(cut, took(cut, 1.0))
    assert prices.corrected(cut) == pytest.approx(2.0) and prices.seconds(cut) == said
    assert set(prices.measured) == set(took(cut, 1.0))


def test_what_did_not_run_is_off_as_what_ran() -> None:
    prices, single = CutPrices(PROGRAM, PlayedModel(plain_s).seconds), edges_of(PROGRAM).single
    told = {p.kernel.id: law(p.kernel) for p in Partition.of(PROGRAM, single).kernels}
    prices.learn(single, told)
    cut = cut_at(0, 1)
    assert prices.corrected(cut) == pytest.approx(2.0 * prices.seconds(cut))


def test_kernels_that_fail_are_never_chosen_and_teach_nothing() -> None:
    prices, cut = CutPrices(PROGRAM, PlayedModel(plain_s).seconds), cut_at(2)
    prices.learn(cut, took(cut, math.inf))
    assert prices.corrected(cut) == math.inf
    assert prices.corrected(cut_at(0)) == pytest.approx(prices.seconds(cut_at(0)))


def test_the_best_of_the_neighbours_is_next() -> None:
    screen = ScreenedSteps(CutPrices(PROGRAM, PlayedModel(crowded_s).seconds))
    single, steps = edges_of(PROGRAM).single, CutSteps(PROGRAM)
    rng = np.random.default_rng(1)
    drawn = [steps.near(single, rng) for _ in range(DRAWN)]
    chosen = screen.near(single, np.random.default_rng(1))
    assert chosen == min(drawn, key=screen.prices.seconds)
    screen.learn(chosen, {})
    other = screen.near(single, np.random.default_rng(1))
    assert other in drawn and other != chosen
    for cut in drawn:
        screen.learn(cut, {})
    assert screen.near(single, np.random.default_rng(1)) in drawn


def test_elsewhere_is_any_legal_cut() -> None:
    screen = ScreenedSteps(CutPrices(PROGRAM, PlayedModel(crowded_s).seconds))
    found = {screen.anywhere(np.random.default_rng(at)) for at in range(20)}
    assert len(found) > 5
