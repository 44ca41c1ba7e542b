"""A linear system solved by scipy's conjugate gradients, with the matrix handed over as a function:
one SpMV in float64 a step.

python examples/programs/conjugate_gradients.py [A.mtx]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from race import Multiply, matrix, mkl, race, told
from scipy import sparse
from scipy.sparse import linalg

import embeddb

STEPS = 400


def solved(operator: Any, n: int) -> Any:
    """float64[n]: at most STEPS steps towards the solution for a right side of ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return linalg.cg(operator, np.ones(n), rtol=1e-8, maxiter=STEPS)[0]


def by_embeddb(a: Any) -> Any:
    return by_product(a, embeddb.compile(a, "spmv", calls=STEPS, build=True))


def by_product(a: Any, times: Multiply) -> Any:
    return solved(linalg.LinearOperator(a.shape, matvec=times, dtype=a.dtype), a.shape[0])


def by_scipy(a: Any) -> Any:
    return solved(a, a.shape[0])


def poisson(side: int = 400) -> Any:
    """The 5-point stencil of a square."""
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    one = sparse.eye_array(side)
    return sparse.kron(line, one) + sparse.kron(one, line)


def positive(a: Any) -> Any:
    """A symmetric positive definite matrix of about the pattern of a square one."""
    both = sparse.csr_array(abs(a) + abs(a).T).astype(np.float64)
    rows = np.asarray(both.sum(axis=1)).ravel()
    return sparse.csr_array(sparse.diags_array(rows + 0.01) - both + both.multiply(0.5))


def main() -> None:
    a = matrix(poisson)
    a = sparse.csr_array(poisson()) if a.shape == (160_000, 160_000) else positive(a)
    ways = {"embeddb": lambda: by_embeddb(a), "scipy": lambda: by_scipy(a)}
    raced = race(ways | mkl(lambda product: by_product(a, product(a))))
    told(f"{STEPS} steps on {a!r}", raced)


if __name__ == "__main__":
    main()
