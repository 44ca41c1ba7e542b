"""The distance test of "Performance Embeddings" (Section 4) on the weights that ship."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.featurizers.nest_embedding import NestEmbedding
from embeddb.nests.examples import nest_of
from embeddb.nests.nest import Nest

_N = 1 << 20


def _indirect(fill: str) -> Nest:
    """A copy whose elements are found through an array of indices."""
    element = ["read", 1, {"plus": [0], "of": [2, [0, 1]]}]
    arrays = [["f32", [_N]], ["f32", [_N]], ["i32", [_N], fill]]
    return nest_of([_N], arrays, [["=", [0, [0, 1]], element, None]])


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return 1.0 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_an_indirect_copy_in_order_is_nearer_to_a_plain_one_than_in_disorder() -> None:
    plain = nest_of(
        [_N], [["f32", [_N]], ["f32", [_N]]], [["=", [0, [0, 1]], ["read", 1, [0, 1]], None]]
    )
    embed = NestEmbedding().embed
    linear, disorder, order = (
        embed(n) for n in (plain, _indirect("permutation"), _indirect("range"))
    )
    assert 0.0 < _cosine(linear, order) < _cosine(linear, disorder)
