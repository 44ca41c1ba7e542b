"""A draft becomes the nest that its formulas say."""

from __future__ import annotations

import pytest

from embeddb.core.errors import NestError
from embeddb.nests.nest import code_of
from embeddb.nests.parts import Affine, Index
from indexer.training.nests.draws import At, Draft


def test_a_product_of_a_sparse_matrix() -> None:
    draft = Draft("f64")
    begins, column = draft.array(5, fill="offsets:9:1"), draft.array(9, fill="below:7")
    i = draft.loop(0, 4)
    k = draft.loop(begins[i], begins[i + 1])
    x, y = draft.array(7), draft.array(4, fill="zero")
    draft.let(y[i], "+=", x[column[k]] * 2.0, x[column[k]] < 0.5)
    nest = draft.nest(name="spmv", group="test")
    read = ["read", 2, {"plus": [0], "of": [1, [0, 0, 1]]}]
    assert code_of(nest.loops, nest.arrays, nest.body) == {
        "loops": [
            [[0], [4], 1],
            [{"plus": [0], "of": [3, [0, 1]]}, {"plus": [0], "of": [3, [1, 1]]}, 1],
        ],
        "arrays": [
            ["f64", [4], "zero", 0],
            ["i32", [9], "below:7", 0],
            ["f64", [7], "uniform", 0],
            ["i32", [5], "offsets:9:1", 0],
        ],
        "body": [["+=", [0, [0, 1]], ["*", read, 2], ["<", read, 0.5]]],
    }
    assert (nest.name, nest.group) == ("spmv", "test")


def test_loops_in_another_order_keep_their_sizes() -> None:
    draft = Draft("f32")
    i, j, k = draft.loops([3, 4, 5], [2, 0, 1])
    assert [at.affine.loops for at in (i, j, k)] == [(1,), (2,), (0,)]
    a = draft.array(3, 4, 5)
    draft.let(a[i, j, k], "=", a[i, j, k] + 1.0)
    nest = draft.nest(name="", group="")
    assert nest.trips == (5, 3, 4)


def test_sums_of_indices() -> None:
    draft = Draft("f32")
    i, j = draft.loops([3, 4])
    assert (i * 2 + j + 5).affine == Affine(5, (2, 1))
    assert (At(Affine(1)) + i).affine == Affine(1, (1,))
    assert draft.array(9)[i * 2].access.at == (Index(Affine(0, (2,))),)


def test_what_is_no_nest_is_refused() -> None:
    draft = Draft("f32")
    i = draft.loop(0, 4)
    a = draft.array(4)
    with pytest.raises(TypeError, match="not an array's element"):
        draft.let(a[i] * 2.0, "=", a[i])
    draft.let(a[i + 1], "=", a[i])
    with pytest.raises(NestError, match="runs from 1 to 4"):
        draft.nest(name="", group="")
