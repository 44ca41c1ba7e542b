"""Vectors of nodes: the hand-made ones by hand, the raw ones as the graph has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from nest_shapes import product, sparse_product, transpose

from benchmarks.nest_matchers import loop_vectors
from embeddb.nests.encoding.graph import Node, graph_of
from embeddb.nests.matching.transfer import raw_vectors
from embeddb.nests.recipe import identity_schedule
from embeddb.nests.schedule import Schedule


def test_by_hand() -> None:
    nest = product(n=255)
    nodes, rows = loop_vectors(nest, Schedule((0, 1, 2), (0, 85, 0)))
    named = dict(zip(nodes, rows.tolist(), strict=True))
    third = pytest.approx(1 / 3)
    assert list(nodes[:4]) == [
        Node("entry", 1, True),
        *(Node("entry", loop, False) for loop in range(3)),
    ]
    # C, A and B move with i, j and k in turn; j is the last index of C and of B, k that of A.
    assert named[Node("entry", 0)] == [1, 0, third, 1]
    assert named[Node("entry", 2)] == [0, third, third, 1]
    assert named[Node("entry", 1)] == pytest.approx([1, 2 / 3, 1 / 3, math.log2(86) / 8])
    assert named[Node("entry", 1, True)][3] == pytest.approx(math.log2(4) / 8)
    assert named[Node("array", array=1)][:3] == [pytest.approx(2 / 3), third, 1]
    assert named[Node("array", array=2)][:3] == [pytest.approx(2 / 3), third, 0]


def test_what_comes_out_of_an_array_moves_but_not_to_the_next_element() -> None:
    nest = sparse_product()
    nodes, rows = loop_vectors(nest, identity_schedule(nest))
    named = dict(zip(nodes, rows.tolist(), strict=True))
    # Along k: val and col go on by one, B jumps, C stays.
    assert named[Node("entry", 2)][:3] == [0, 0.5, 0.25]


def test_raw_vectors_are_the_features() -> None:
    nest = transpose()
    graph = graph_of(nest, identity_schedule(nest))
    nodes, rows = raw_vectors(nest, identity_schedule(nest))
    assert nodes == graph.nodes
    assert raw_vectors(transpose(), identity_schedule(nest))[1] is rows  # made once
    np.testing.assert_array_equal(rows, graph.features)
