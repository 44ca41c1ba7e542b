"""The simulated counters of a matrix as a featurizer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from builders import fill, patterns, tiny

from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers import COSTLY, Featurizers
from embeddb.featurizers.dynamics import COUNTED, DynamicsFeatures
from embeddb.testing.featurizers import FeaturizerContract
from indexer.embed import embed


class TestDynamicsFeatures(FeaturizerContract):
    def make(self) -> DynamicsFeatures:
        return DynamicsFeatures()


def told(pattern: Pattern) -> dict[str, float]:
    featurizer = DynamicsFeatures()
    return dict(zip(featurizer.names, featurizer.embed(pattern).tolist(), strict=True))


def test_it_is_there_and_has_to_be_worth_its_cost() -> None:
    assert Featurizers()["dynamics"].dim == 2 * (5 * len(COUNTED) + 11)
    assert "dynamics" in COSTLY


def test_it_is_used_where_it_was_asked_for_and_kept_from_then_on() -> None:
    some = patterns(2)
    db = fill(Database.in_memory(), tiny(), some[:-1])
    assert "dynamics" not in embed(db.index).vectors
    assert embed(db.index, also=("dynamics",)).vectors["dynamics"] == len(some) - 1
    db.store.put_structure(some[-1], WorkloadInfo.whole(some[-1]))
    assert (
        embed(db.index).vectors["dynamics"]
        == embed(db.index, again=True).vectors["dynamics"]
        == len(some)
    )
    with pytest.raises(UsageError, match="dynamic"):
        embed(db.index, also=("dynamic",))


def test_busy_threads_are_seen() -> None:
    even = told(Pattern.from_coo((320, 320), np.repeat(np.arange(320), 8), np.tile(range(8), 320)))
    heavy = np.concatenate([np.zeros(2240, int), np.arange(320)])
    uneven = told(Pattern.from_coo((320, 2560), heavy, np.arange(2560)))
    assert even["spmm:32_imbalance_static"] == pytest.approx(1)
    assert even["spmm:32_log_f32_scalar_std"] == 0
    assert uneven["spmm:32_imbalance_static"] > 10
    assert uneven["spmm:32_log_f32_scalar_max"] > uneven["spmm:32_log_f32_scalar_min"] + 6


# -- the distance test of "Performance Embeddings" (Section 4) -------------------------------------

_N = 1 << 16


def _copied(columns: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of a matrix with a one in each row: y = A x is a copy through an array of indices."""
    return DynamicsFeatures().embed(Pattern.from_coo((_N, _N), np.arange(_N), columns))


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return 1.0 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_a_copy_nearly_in_order_is_nearer_to_one_in_order_than_one_in_disorder() -> None:
    # No sparse product copies without indices: the identity stands for that, and for the copy
    # through indices in order its parts of 32 columns exchanged.
    columns = np.arange(_N)
    order = _copied(columns.reshape(-1, 2, 32)[:, ::-1].ravel())
    disorder = _copied(np.random.default_rng(0).permutation(_N))
    linear = _copied(columns)
    assert _cosine(linear, order) < 0.01 * _cosine(linear, disorder)
