"""Blocks give what numpy gives on the whole."""

from __future__ import annotations

import numpy as np
import pytest

from embeddb.core.small_matrices import cholesky, product


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 64, 100, 192])
def test_a_factor_is_that_of_the_whole(rows: int) -> None:
    root = np.random.default_rng(rows).normal(size=(rows, rows))
    matrix = root @ root.T / rows + np.eye(rows)
    lower = cholesky(matrix)
    assert np.allclose(lower, np.linalg.cholesky(matrix), rtol=0, atol=1e-12)
    assert np.array_equal(lower, np.tril(lower))


@pytest.mark.parametrize("rows", [5, 40])
def test_a_matrix_that_is_not_positive_definite_is_refused(rows: int) -> None:
    matrix = np.eye(rows)
    matrix[-1, -1] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(matrix)


@pytest.mark.parametrize("rows", [1, 8, 9, 384])
def test_a_product_is_that_of_the_whole(rows: int) -> None:
    rng = np.random.default_rng(rows)
    left, right = rng.normal(size=(rows, 70)), rng.normal(size=(50, 70))
    assert np.allclose(product(left, right), left @ right.T, rtol=0, atol=1e-12)
