"""Linear algebra on matrices of a few hundred rows, in blocks for which OpenBLAS uses one thread.

With more threads a call waits for the slowest of them. On a busy machine that took up to 70 ms for
a factor of 192 rows, which one thread computes in one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Rows of a block: up to some 256 rows, its products are below the work from which OpenBLAS takes a
#: second thread (its GEMM_MULTITHREAD_THRESHOLD).
_BLOCK, _ROWS = 32, 8


def cholesky(matrix: Floats) -> Floats:
    """The Cholesky factor float64[n,n] of a positive definite matrix float64[n,n]. Raises:
    numpy.linalg.LinAlgError if it is not positive definite."""
    lower = np.zeros_like(matrix)
    for at in range(0, len(matrix), _BLOCK):
        end = min(at + _BLOCK, len(matrix))
        rest = matrix[at:, at:end] - lower[at:, :at] @ lower[at:end, :at].T
        top = np.linalg.cholesky(rest[: end - at])
        lower[at:end, at:end] = top
        lower[end:, at:end] = rest[end - at :] @ np.linalg.inv(top).T
    return lower


def product(left: Floats, right: Floats) -> Floats:
    """left float64[r,n], r > 0, times the transpose of right float64[c,n]: float64[r,c]."""
    return np.concatenate([left[at : at + _ROWS] @ right.T for at in range(0, len(left), _ROWS)])
