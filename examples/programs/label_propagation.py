"""Labels of all nodes of a graph from those of a few (Zhou et al. 2004): fifty products of the
normalised adjacency matrix with one dense column per label.

python examples/programs/label_propagation.py [GRAPH.mtx]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from race import Multiply, graph, matrix, mkl, race, told
from scipy import sparse

import embeddb

LABELS, STEPS, SPREAD = 32, 50, 0.9


def normalised(adjacency: Any) -> Any:
    """D^-½ A D^-½: csr_array float32[n, n]."""
    degree = np.asarray(abs(adjacency).sum(axis=1), dtype=np.float32).ravel()
    half = sparse.diags_array(1 / np.sqrt(np.maximum(degree, 1)))
    return sparse.csr_array(half @ abs(adjacency) @ half).astype(np.float32)


def known(nodes: int) -> Any:
    """float32[nodes, LABELS]: one node in fifty has a label."""
    rng = np.random.default_rng(1)
    made = np.zeros((nodes, LABELS), dtype=np.float32)
    some = rng.choice(nodes, max(1, nodes // 50), replace=False)
    made[some, rng.integers(0, LABELS, some.size)] = 1 - SPREAD
    return made


def by_embeddb(s: Any) -> Any:
    first = known(s.shape[0])
    f = embeddb.compile(s, "spmm", k=LABELS, calls=STEPS, build=True)
    now, new = first.copy(), np.empty_like(first)
    for _ in range(STEPS):
        f(now, out=new)
        new *= SPREAD
        new += first
        now, new = new, now
    return now


def by_product(times: Multiply, nodes: int) -> Any:
    first = known(nodes)
    now = first
    for _ in range(STEPS):
        now = times(now)
        now *= SPREAD
        now += first
    return now


def main() -> None:
    s = normalised(matrix(graph))
    n = s.shape[0]
    ways = {"embeddb": lambda: by_embeddb(s), "scipy": lambda: by_product(lambda b: s @ b, n)}
    raced = race(ways | mkl(lambda product: by_product(product(s), n)))
    told(f"{STEPS} steps of {LABELS} labels over {s!r}", raced)


if __name__ == "__main__":
    main()
