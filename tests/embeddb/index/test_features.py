"""How a featurizer that learned from runs is judged where it was cross-fitted."""

from __future__ import annotations

import numpy as np
import pytest

from embeddb.index.features import WHOLE, Features, LearnedFrom
from embeddb.index.trial import Trial, cross_validated

ROWS, FOLDS = 40, 4
IDS = [f"{at:03}" for at in range(ROWS)]
GROUPS = np.array([f"g{at // 2:02}" for at in range(ROWS)])
FOLD_OF = {str(group): at % FOLDS for at, group in enumerate(np.unique(GROUPS))}


@pytest.fixture
def gains() -> np.ndarray:
    """Which of five configurations wins has nothing to do with anything but the row."""
    rng = np.random.default_rng(0)
    return np.c_[np.zeros(ROWS), rng.standard_normal((ROWS, 4))]


def _trial(gains: np.ndarray, whole: np.ndarray, unseen: np.ndarray | None) -> Trial:
    vectors = dict(zip(IDS, whole.astype(np.float32), strict=True))
    learned = LearnedFrom()
    if unseen is not None:
        by_fold = [dict(zip(IDS, unseen.astype(np.float32), strict=True))] * FOLDS
        learned = LearnedFrom(FOLD_OF.keys(), FOLD_OF, by_fold)
    features = Features.of(IDS, vectors, GROUPS, learned)
    return Trial.of(features, gains, GROUPS, ids=IDS)


def test_vectors_that_know_the_gains_are_judged_by_those_that_do_not(gains: np.ndarray) -> None:
    """A network may repeat run times that it learned: its own vectors would look perfect."""
    noise = np.random.default_rng(1).standard_normal((ROWS, 5))
    leaks, honest = _trial(gains, gains, None), _trial(gains, gains, noise)
    blind = _trial(gains, noise, None)
    assert np.array_equal(honest.losses, blind.losses)
    assert leaks.losses.mean() < 0.5 * honest.losses.mean()
    # New patterns are placed by the vectors of the whole.
    assert np.array_equal(honest.raw, gains.astype(np.float32))


def test_held_out_answers_are_of_the_same_vectors(gains: np.ndarray) -> None:
    noise = np.random.default_rng(1).standard_normal((ROWS, 5))
    folds = [{str(group): at % 5 for at, group in enumerate(np.unique(GROUPS))}]
    first, second = (
        cross_validated({"": trial}, folds)
        for trial in (_trial(gains, gains, noise), _trial(gains, noise, None))
    )
    assert np.array_equal(first.group, second.group)
    for one, other in zip(first._replace(group=first.best), second, strict=True):
        assert np.array_equal(one, second.best if other is second.group else other, equal_nan=True)


def test_groups_that_it_never_saw_are_judged_by_the_whole(gains: np.ndarray) -> None:
    vectors = dict(zip(IDS, gains.astype(np.float32), strict=True))
    learned = LearnedFrom({"g00"}, {"g00": 0}, [vectors])
    features = Features.of(IDS, vectors, GROUPS, learned)
    assert features.fold.tolist() == [0, 0, *[WHOLE] * (ROWS - 2)] and features.judged.all()
    kept = features.take(GROUPS != "g00")
    assert (kept.fold == WHOLE).all() and kept.by_fold.shape == (1, ROWS - 2, 5)


def test_what_was_not_cross_fitted_is_not_judged_where_it_learned(gains: np.ndarray) -> None:
    vectors = dict(zip(IDS, gains.astype(np.float32), strict=True))
    features = Features.of(IDS, vectors, GROUPS, LearnedFrom({"g00", "g01"}))
    assert features.judged.tolist() == [False] * 4 + [True] * (ROWS - 4)
