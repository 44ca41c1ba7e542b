"""A nest whose index arrays hold a real matrix: what is part of it, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import band

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.featurizers.nest_stats import NestStats
from embeddb.nests.examples import nest_of
from embeddb.nests.nest import Nest, fills_of
from embeddb.nests.nest_text import nest_from_text, nest_text

#: Rows of 3, 0, 1 and 0 entries: a mean of 1 and a variance of 1.5.
MATRIX = Pattern.from_csr((4, 5), [0, 3, 3, 4, 4], [0, 2, 4, 1], name="uneven")


def spmv(matrix: Pattern, fills: tuple[str, str] | None = None, *, more: int = 0) -> Nest:
    """y += A x; `fills` in place of the matrix's own, `more` elements in its arrays."""
    offsets, columns = fills or fills_of(matrix)
    m, n = matrix.shape
    i, j = [0, 1], [0, 0, 1]
    row, after = ({"plus": [0], "of": [4, [at, 1]]} for at in (0, 1))
    column = {"plus": [0], "of": [2, j]}
    return nest_of(
        [m, [row, after, 1]],
        [
            ["f32", [m], "zero"],
            ["f32", [matrix.nnz]],
            ["i32", [matrix.nnz + more], columns],
            ["f32", [n]],
            ["i32", [m + 1 + more], offsets],
        ],
        [["+=", [0, i], ["*", ["read", 1, j], ["read", 3, column]], None]],
        name="spmv",
    )


def test_fills_of_a_matrix_say_how_uneven_it_is() -> None:
    assert fills_of(MATRIX) == (
        f"offsets:4:1.224:{MATRIX.id}",  # sqrt(1.5), rounded down
        f"below:5:{MATRIX.id}",
    )
    even = Pattern.from_csr((2, 2), [0, 1, 2], [0, 1])
    assert fills_of(even)[0] == f"offsets:2:0.000:{even.id}"
    with pytest.raises(NestError, match="nothing has no entries"):
        fills_of(Pattern.from_csr((2, 2), [0, 0, 0], [], name="nothing"))


def test_a_row_as_long_as_can_be_is_told_in_bounds() -> None:
    """The most uneven that a fill can say; beyond that all are alike."""
    rows = 2_000_000
    ptr = np.full(rows + 1, 2_000_000)
    ptr[0] = 0
    one = Pattern.from_csr((rows, 2_000_000), ptr, np.arange(2_000_000))
    assert fills_of(one)[0].startswith("offsets:2000000:999.999:")


def test_arrays_hold_the_matrix() -> None:
    nest = spmv(MATRIX)
    assert nest.matrix_ids == {2: MATRIX.id, 4: MATRIX.id} and nest.matrices == ()
    held = nest.with_matrices([band(20, 3, name="other"), MATRIX])
    assert held.matrices == (MATRIX,)
    held.require_matrices()
    assert np.array_equal(held.matrix_values(4), MATRIX.indptr) and held.matrix_values(0) is None
    assert np.array_equal(held.matrix_values(2), MATRIX.indices)
    assert replace(held, name="b").matrices == (MATRIX,)


def test_what_it_holds_is_part_of_the_id_and_of_the_text() -> None:
    nest = spmv(MATRIX)
    moved = Pattern.from_csr(MATRIX.shape, MATRIX.indptr, [0, 2, 3, 1])
    assert fills_of(moved)[0].rsplit(":", 1)[0] == fills_of(MATRIX)[0].rsplit(":", 1)[0]
    assert spmv(moved) != nest and nest.with_matrices([MATRIX]) == nest
    assert nest_from_text(nest_text(nest.with_matrices([MATRIX]))) == nest
    assert nest.trips == (4, 1)


def test_statistics_know_the_rows_without_the_matrix() -> None:
    alike = spmv(MATRIX, ("offsets:4:1.224", "below:5"))
    assert np.array_equal(NestStats().embed(spmv(MATRIX)), NestStats().embed(alike))


def test_a_matrix_that_is_not_there_is_refused() -> None:
    with pytest.raises(NestError, match=f"a2 holds matrix {MATRIX.id}, which is not here") as why:
        spmv(MATRIX).require_matrices()
    assert "--matrix" in why.value.hint


@pytest.mark.parametrize(
    ("fills", "more", "said"),
    [
        (
            (f"offsets:4:9:{MATRIX.id}", f"below:5:{MATRIX.id}"),
            0,
            "must be one of offsets:4:1.224:",
        ),
        ((f"offsets:4:1.224:{MATRIX.id}", f"below:4:{MATRIX.id}"), 0, "a2: fill below:4:"),
        (None, 1, "a2: has 5 elements, its matrix 4"),
    ],
)
def test_a_fill_that_is_untrue_is_refused(
    fills: tuple[str, str] | None, more: int, said: str
) -> None:
    """Otherwise columns could lie outside of what was checked."""
    nest = spmv(MATRIX, fills, more=more)
    with pytest.raises(NestError, match=said):
        nest.with_matrices([MATRIX])


@pytest.mark.parametrize("fill", ["below:5:xyz", "below:5:" + "0" * 31, "offsets:4:" + "0" * 32])
def test_an_id_that_is_none_is_no_fill(fill: str) -> None:
    with pytest.raises(NestError, match="no fill"):
        spmv(MATRIX, (fill, "below:5") if fill.startswith("offsets") else ("offsets:4", fill))
