"""Targets and settings of boosted trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costmodel_samples import samples

from embeddb.index.vote import effects
from embeddb.learning.boosting import ONE_MACHINE, levelled, settings_for


def test_gains_are_levelled_as_by_the_two_way_fit() -> None:
    whole = samples(matrices=9, configs=20)
    some = np.random.default_rng(0).random(len(whole.gain)) < 0.4
    row = np.repeat(np.arange(len(whole.rows)), np.diff(whole.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row[some], minlength=len(whole.rows)))])
    few = replace(whole, indptr=indptr, column=whole.column[some], gain=whole.gain[some])
    gains = np.full((len(few.rows), len(few.configs)), np.nan)
    gains[row[some], few.column] = few.targets
    assert levelled(few) == pytest.approx(few.targets - effects(gains)[0][row[some]])


def test_few_samples_have_small_leaves() -> None:
    leaves = [settings_for(ONE_MACHINE, n, 3)["min_data_in_leaf"] for n in (1, 400, 10_000)]
    assert leaves == [1, 10, 20] and settings_for(ONE_MACHINE, 1, 3)["seed"] == 3
