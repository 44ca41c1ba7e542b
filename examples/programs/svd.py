"""The largest singular values of a sparse matrix, by block power iteration (Halko, Martinsson and
Tropp 2011, Algorithm 4.4): products of A and Aᵀ with 40 dense columns.

python examples/programs/svd.py [A.mtx]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from race import Multiply, matrix, mkl, race, told
from scipy import sparse

import embeddb

RANK, EXTRA, ROUNDS = 30, 10, 8


def singular_values(times: Multiply, transposed: Multiply, n: int) -> Any:
    """float32[RANK], largest first, of a matrix with n columns, given what multiplies by it."""
    start = np.random.default_rng(0).standard_normal((n, RANK + EXTRA)).astype(np.float32)
    base, _ = np.linalg.qr(times(start))
    for _ in range(ROUNDS):
        inner, _ = np.linalg.qr(transposed(base))
        base, _ = np.linalg.qr(times(inner))
    return np.linalg.svd(transposed(base), compute_uv=False)[:RANK]


def by_embeddb(a: Any) -> Any:
    calls = ROUNDS + 2
    f = embeddb.compile(a, "spmm", k=RANK + EXTRA, calls=calls, build=True)
    g = embeddb.compile(a.T, "spmm", k=RANK + EXTRA, calls=calls, build=True)
    return singular_values(f, g, a.shape[1])


def by_products(a: Any, product: Callable[[Any], Multiply]) -> Any:
    return singular_values(product(a), product(a.T.tocsr()), a.shape[1])


def by_scipy(a: Any) -> Any:
    return by_products(a, lambda one: lambda b: one @ b)


def ratings(people: int = 30_000, things: int = 8_000, each: int = 40) -> Any:
    """Who rated what: popular things often, in 1 to 5 stars."""
    rng = np.random.default_rng(0)
    what = (things * rng.random(people * each) ** 3).astype(np.int64)
    who = np.repeat(np.arange(people), each)
    stars = rng.integers(1, 6, people * each).astype(np.float32)
    made = sparse.coo_array((stars, (who, what)), shape=(people, things)).tocsr()
    return made


def main() -> None:
    a = matrix(ratings)
    ways = {"embeddb": lambda: by_embeddb(a), "scipy": lambda: by_scipy(a)}
    raced = race(ways | mkl(lambda product: by_products(a, product)))
    told(f"{RANK} singular values of {a!r}", raced)


if __name__ == "__main__":
    main()
