"""The pooled graph of a nest: the contract, and numbers by hand."""

from __future__ import annotations

from math import log2

import pytest

from embeddb.featurizers.nest_stats import NestGraphFeatures
from embeddb.nests.examples import sample_nests
from embeddb.testing.featurizers import NestFeaturizerContract


class TestNestGraphFeatures(NestFeaturizerContract):
    def make(self) -> NestGraphFeatures:
        return NestGraphFeatures()


def test_a_transposition() -> None:
    featurizer = NestGraphFeatures()
    vector = featurizer.embed(sample_nests(16)["transpose"]).tolist()
    found = dict(zip(featurizer.names, vector, strict=True))
    assert found["nodes.memlet"] == pytest.approx(log2(1 + 6))
    assert found["mean.entry.trip"] == pytest.approx((log2(17) + log2(33)) / 2)
    assert found["most.entry.trip"] == pytest.approx(log2(33))
    assert found["mean.memlet.writes"] == 0.5
    assert "mean.is.body" not in found
