"""First choices on held-out groups: of votes, of the best fixed configuration, and as a curve."""

from __future__ import annotations

import math

import numpy as np
from costmodel_samples import samples

from embeddb.learning.comparison import group_folds, judge, vote_scores
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn, learning_curve


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
        # Two rows of one fold are scored alike where they ran the same configurations.
        same = {tuple(own.column[own.part(r)]): scores[r].tobytes() for r in first}
        assert all(same[tuple(own.column[own.part(r)])] == scores[r].tobytes() for r in first)
    near = judge(own, vote_scores(own, k=3, shrink=1.0)).figures()
    assert 0 < near["of_optimum@1"] <= near["of_optimum@5"] <= 1


def test_the_curve_ends_with_the_figure_of_the_card() -> None:
    own = samples(matrices=12, configs=20)
    model = learn(own, process_card(own))
    for matrices in (True, False):
        curve = learning_curve(model, own, matrices=matrices)
        assert [p.samples for p in curve] == [len(own.gain) * q // 4 for q in (1, 2, 4)]
        figures = model.card["held_out"]["spmm:32"]["rank"]
        assert math.isclose(curve[-1].share, figures["of_optimum@1"])
        assert all(p.lost.shape == (12,) and (p.lost <= 0).all() for p in curve)
