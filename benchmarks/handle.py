"""Compiled handles: what a call costs over its kernel, the first call, and 100 calls against scipy
and torch with conversion and building counted.

    python benchmarks/handle.py MATRICES prepare      # asks and builds, at the usual priority
    OMP_WAIT_POLICY=passive python benchmarks/handle.py MATRICES > benchmarks/results/handle.json

The database is the starter, which knows these matrices: the easy case. float32, all processors
(scipy has one thread). Calls are interleaved in rounds, and medians compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.handle.handle import Handle
from embeddb.kernels.called import CalledKernel
from embeddb.kernels.forms import address

MATRICES = (
    "nasa4704",
    "facebook_combined",
    "Fashion_MNIST_norm_10NN",
    "astro-ph",
    "rgg_n_2_15_s0",
    "gatne_twitter",
    "bundle1",
    "gowalla_user_item_adj",
)
WIDTHS = (1, 32, 128)
CALLS = 100
ROWS = "order=ijk,format=csr,threads=one"
#: What `embeddb.compile` expects a multiply-add to save.
SAVED_S = 1.5e-10

FIRST = """
import json, sys, time
import numpy as np
from scipy import sparse
rng = np.random.default_rng(0)
n, nnz = 100_000, 1_000_000
where = (rng.integers(0, n, nnz), rng.integers(0, n, nnz))
a = sparse.coo_array((rng.random(nnz, dtype=np.float32), where), shape=(n, n)).tocsr()
b = rng.random((n, 32), dtype=np.float32)
times = []
for _ in range(3):
    start = time.perf_counter()
    import embeddb
    f = embeddb.compile(a, "spmm", k=32, calls=1000)
    made = time.perf_counter()
    f(b)
    times.append((made - start, time.perf_counter() - made))
print(json.dumps({"config": str(f.config), "compile_and_call_s": times}))
"""


def matrix(folder: Path, name: str) -> Any:
    found = embeddb.read_pattern(folder / f"{name}.npz").to_scipy()
    values = np.random.default_rng(0).random(found.nnz, dtype=np.float32)
    parts = (values, found.indices.astype(np.int32), found.indptr.astype(np.int32))
    return sparse.csr_array(parts, shape=found.shape)


def compiled(a: Any, k: int, **more: Any) -> Handle:
    if k == 1:
        return embeddb.compile(a, "spmv", calls=CALLS, **more)
    return embeddb.compile(a, "spmm", k=k, calls=CALLS, **more)


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in taken.items()}


def overhead() -> dict[str, float]:
    """Seconds of a call and of its bare kernel, on a matrix that takes almost none."""
    a = sparse.csr_array(np.eye(64, dtype=np.float32))
    b, out = np.ones((64, 8), np.float32), np.empty((64, 8), np.float32)
    f = embeddb.compile(a, "spmm", k=8, config=ROWS)
    bound = f._served.bound
    assert bound is not None
    at_b, at_out = address(b), address(out)
    call, at = bound.call, bound.at
    return medians(
        {
            "kernel": lambda: call(at, at_b, 0, at_out, 0),
            "handle": lambda: f(b),
            "handle_out": lambda: f(b, out=out),
            "scipy": lambda: a @ b,
        },
        5000,
    )


def one(a: Any, k: int) -> dict[str, Any]:
    import torch

    b = np.random.default_rng(1).random((a.shape[1], k), dtype=np.float32)
    b = b[:, 0].copy() if k == 1 else b
    start = time.perf_counter()
    f = compiled(a, k)
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    t = torch.sparse_csr_tensor(
        torch.from_numpy(a.indptr.copy()),
        torch.from_numpy(a.indices.copy()),
        torch.from_numpy(a.data.copy()),
        size=a.shape,
    )
    torch_s = time.perf_counter() - start
    tb = torch.from_numpy(b)
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-3, atol=1e-3)
    calls = {"ours": lambda: f(b), "scipy": lambda: a @ b, "torch": lambda: t @ tb}
    took = medians(calls, 15)
    op = Op("spmv") if k == 1 else Op("spmm", k)
    built_s = 0.0 if f.config is None else CalledKernel(f.config, op).compile_s
    ours = compile_s + CALLS * took["ours"]
    theirs = {"scipy": CALLS * took["scipy"], "torch": torch_s + CALLS * took["torch"]}
    built = CALLS * a.nnz * k * SAVED_S >= built_s
    cold = ours + built_s if built else compile_s + CALLS * took["scipy"]
    return {
        "config": "scipy" if f.config is None else str(Config(f.config)),
        "call_s": took,
        "compile_s": compile_s,
        "conversion_s": f._served.conversion_s,
        "build_s": built_s,
        "torch_conversion_s": torch_s,
        "calls_100_s": {"ours": ours, "ours_nothing_built": cold, **theirs},
    }


def mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of how many times longer the others take, for 100 calls and for one."""
    result: dict[str, Any] = {}
    for k in WIDTHS:
        rows = [one[f"k={k}"] for one in found.values()]
        totals = [row["calls_100_s"] for row in rows]
        result[f"k={k}"] = {
            "a_call_over": {
                n: mean([r["call_s"][n] / r["call_s"]["ours"] for r in rows])
                for n in ("scipy", "torch")
            },
            **{
                f"100_calls_{ours}_over": {
                    n: mean([t[n] / t[ours] for t in totals]) for n in ("scipy", "torch")
                }
                for ours in ("ours", "ours_nothing_built")
            },
            "slower_by_5_percent_than_the_better": sum(
                t["ours"] > 1.05 * min(t["scipy"], t["torch"]) for t in totals
            ),
            "slower_if_nothing_was_built": sum(
                t["ours_nothing_built"] > 1.05 * min(t["scipy"], t["torch"]) for t in totals
            ),
        }
    return result


def first_call() -> Any:
    """In a process of its own, three times: the first imports what is needed."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main(folder: Path, prepare: bool) -> None:
    if prepare:
        for name in MATRICES:
            a = matrix(folder, name)
            for k in WIDTHS:
                start = time.perf_counter()
                f = compiled(a, k, build=True)
                spent = time.perf_counter() - start
                print(name, k, f.config, f"{spent:.1f} s", file=sys.stderr)
        embeddb.compile(sparse.csr_array(np.eye(64, dtype=np.float32)), "spmm", k=8, config=ROWS)
        print(first_call(), file=sys.stderr)
        return
    result: dict[str, Any] = {"about": about(), "calls": CALLS, "overhead_s": overhead()}
    result["first_call"] = first_call()
    found = {name: {f"k={k}": one(matrix(folder, name), k) for k in WIDTHS} for name in MATRICES}
    result |= {"summary": summary(found), "matrices": found}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "prepare" in sys.argv[2:])
