"""What the four programs share: their matrix, and the same program with each way to multiply."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

__all__ = ["Multiply", "graph", "matrix", "mkl", "race", "told"]

#: Threads of MKL wait so long for more work, at the cost of whoever computes then.
_PAUSE_S = 0.25
Program = Callable[[], Any]
Multiply = Callable[[Any], Any]


def matrix(made: Callable[[], Any]) -> Any:
    """The file named on the command line as float32 CSR, or what `made` makes."""
    if len(sys.argv) < 2:
        return sparse.csr_array(made()).astype(np.float32)
    if Path(sys.argv[1]).suffix == ".npz":
        return sparse.csr_array(sparse.load_npz(sys.argv[1])).astype(np.float32)
    from scipy.io import mmread

    return sparse.csr_array(mmread(sys.argv[1])).astype(np.float32)


def graph(nodes: int = 20_000, edges: int = 400_000, seed: int = 0) -> Any:
    """A random undirected graph with communities of very different sizes: csr_array[nodes, nodes]
    of ones."""
    rng = np.random.default_rng(seed)
    group = np.sort(rng.zipf(1.7, nodes) % 50)
    near = rng.permutation(nodes)[np.argsort(group[rng.permutation(nodes)], kind="stable")]
    start = rng.integers(0, nodes, edges)
    step = rng.geometric(0.002, edges)
    ends = near[start], near[(start + step) % nodes]
    one_way = sparse.coo_array((np.ones(edges, np.float32), ends), shape=(nodes, nodes)).tocsr()
    both = one_way + one_way.T
    both.data[:] = 1
    return both


def mkl(program: Callable[[Callable[[Any], Multiply]], Any]) -> dict[str, Program]:
    """The program with MKL's products, by the name that `race` knows it by; nothing where
    `sparse_dot_mkl` is not installed. `program` takes what makes a product of a matrix."""
    try:
        from sparse_dot_mkl import dot_product_mkl
    except ImportError:
        return {}

    def product(a: Any) -> Multiply:
        held = sparse.csr_matrix(a)
        return lambda b: dot_product_mkl(held, b)

    return {"mkl": lambda: program(product)}


def race(ways: Mapping[str, Program], rounds: int = 5) -> dict[str, tuple[float, Any]]:
    """Seconds (the median of interleaved rounds, after one that is not counted) and result by way.

    All that a way needs, `embeddb.compile` included, belongs to its program; the uncounted round
    builds kernels that were never built on this machine and asks what was never asked.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {name: program() for name, program in ways.items()}
    for _ in range(rounds):
        for name, program in ways.items():
            time.sleep(_PAUSE_S)
            start = time.perf_counter()
            results[name] = program()
            times[name].append(time.perf_counter() - start)
    return {name: (statistics.median(times[name]), results[name]) for name in ways}


def told(what: str, raced: Mapping[str, tuple[float, Any]]) -> None:
    """A line each: seconds, how many times faster embeddb is, and how far results differ."""
    ours, result = raced["embeddb"]
    reference = np.asarray(result, dtype=np.float64)
    scale = float(np.abs(reference).max()) or 1.0
    print(what)
    for name, (seconds, other) in raced.items():
        apart = float(np.abs(np.asarray(other, dtype=np.float64) - reference).max()) / scale
        print(
            f"  {name:8} {seconds:8.3f} s   {seconds / ours:5.2f} times embeddb's   "
            f"results differ by {apart:.0e}"
        )
