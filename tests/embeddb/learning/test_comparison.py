"""First choices on held-out groups: of votes, of the best fixed configuration, and as a curve."""

from __future__ import annotations

import math

import numpy as np
from costmodel_samples import samples

from embeddb.learning.comparison import HeldOutChoices, group_folds, judge, vote_scores


def test_groups_are_held_out_whole_and_once() -> None:
    groups = np.array(["a", "b", "a", "c", "b"])
    masks = list(group_folds(groups))
    assert (np.sum(masks, axis=0) == 1).all()
    assert all(not set(groups[out]) & set(groups[~out]) for out in masks)
    assert not list(group_folds(np.array(["a", "a"])))


def test_shares_of_scores_that_are_the_truth() -> None:
    own = samples(matrices=6, configs=12)
    exact = judge(own, {row: own.gain[own.part(row)] for row in range(6)})
    assert exact.figures()["of_optimum@1"] == exact.figures()["of_optimum@5"] == 1.0
    worst = judge(own, {row: -own.gain[own.part(row)] for row in range(6)})
    assert (worst.at_1 <= worst.at_5).all() and worst.figures()["of_optimum@1"] < 1
    assert np.allclose(exact.gain, [own.gain[own.part(row)].max() for row in range(6)])


def test_the_best_fixed_configuration_is_that_of_the_other_groups() -> None:
    own = samples(matrices=12, configs=20)
    scores = vote_scores(own, k=1, shrink=math.inf)
    assert set(scores) == set(range(12))
    for out in group_folds(own.groups):
        first = np.flatnonzero(out)
        assert all(np.array_equal(scores[r], scores[first[0]]) for r in first)
    near = vote_scores(own, k=3, shrink=1.0)
    ran = {row: voted[own.column[own.part(row)]] for row, voted in near.items()}
    figures = judge(own, ran).figures()
    assert 0 < figures["of_optimum@1"] <= figures["of_optimum@5"] <= 1


def test_errors_are_those_of_groups() -> None:
    """Matrices of a group vary together: more of them are no more observations."""

    def choices(each: int) -> HeldOutChoices:
        at_1 = np.repeat(np.array([-0.4, 0.0, -0.1, -0.3, -0.2, -0.2]), each)
        return HeldOutChoices(at_1, at_1, at_1, np.repeat(np.array([*"abcdef"]), each))

    one, many = choices(1), choices(9)
    assert np.isclose(one.figures()["error@1"], math.exp(-0.2) * one.at_1.std() / math.sqrt(6))
    assert np.isclose(one.figures()["error@1"], many.figures()["error@1"])
    lost = np.array([0.5, 0.0, 0.5, 0.3, 0.2, np.nan])
    figures = one.ahead_of(lost)
    assert np.isclose(figures["ahead"], (0.1 + 0.0 + 0.4) / 5)
    assert np.isclose(figures["ahead_error"], np.std([0.1, 0.0, 0.4, 0.0, 0.0]) / math.sqrt(5))
    assert np.isclose(many.ahead_of(np.repeat(lost, 9))["ahead_error"], figures["ahead_error"])
    assert one.ahead_of(np.full(6, np.nan)) == {}
    assert many.ahead_of(np.where(many.group < "e", 0.5, np.nan)) == {}  # of four groups
