"""SpMV kernels on one thread: configurations without and with 16-bit columns, these with a load per
entry and with the processor's gather instruction, scipy and torch, in rounds that alternate within
milliseconds, and the time of streaming the bytes of A once.

    OPENBLAS_NUM_THREADS=1 python benchmarks/spmv_kernels.py MATRICES > spmv_kernels.json

A time is the shortest of 36 calls. The stream is a dot product of BLAS over as many bytes as the
matrix has in CSR with 16-bit columns, so that it lies in the same level of the cache.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from handle import matrix, mean
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.handle.kernel_call import by_kernel
from embeddb.handle.matrix import matrix_of

MATRICES = (
    *("email-Eu-core", "cavity14", "polblogs", "nasa4704", "fb100_Reed98", "p2p-Gnutella31"),
    *("epfl_hyp", "delaunay_n15", "as20graph", "tn_Austin", "igl_hand_P2", "ca-AstroPh"),
    *("cit-HepPh", "bcsstk38", "mip_nw04", "musae_git", "bundle1", "osm_porto"),
    *("gowalla_user_item_adj", "elmer_dftwater_P2"),
)
OLD = (
    "format=csr,lanes=1,unroll=1,reorder=none",
    "format=csr,lanes=4,unroll=1,reorder=none",
    "format=csr,lanes=8,unroll=1,reorder=none",
    "format=csr,lanes=4,unroll=4,reorder=none",
    "format=sell,slice=4,sigma=256",
    "format=sell,slice=8,sigma=256",
    "format=sell,slice=8,sigma=16384",
    "format=sell,slice=16,sigma=256",
    "format=bcsr,block=8x1",
    "format=bcsr,block=1x8",
    "format=bcsr,block=8x8",
)
_SHORT = [
    f"format=sell16,slice={rows},sigma={sigma}"
    for rows, sigma in ((4, 256), (8, 256), (8, 16384), (16, 256), (16, 16384))
]
SHORT = tuple(f"{one},gather=loads" for one in _SHORT)
GATHERED = tuple(f"{one},gather=hardware" for one in _SHORT)
ROUNDS = 12


def calls_of(a: Any, x: Any) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """Calls by name, and seconds of the conversions of kernels."""
    import torch

    parts = (torch.from_numpy(one.copy()) for one in (a.indptr, a.indices, a.data))
    t, tx = torch.sparse_csr_tensor(*parts, size=a.shape), torch.from_numpy(x)
    calls: dict[str, Callable[[], Any]] = {"scipy": lambda: a @ x, "torch": lambda: t @ tx}
    seconds: dict[str, float] = {}
    held = matrix_of(a)
    op = Op("spmv", 1, "f64" if a.dtype == np.float64 else "f32")
    for text in (*OLD, *SHORT, *GATHERED):
        config = Config.parse(f"{text},order=ij,threads=one")
        try:
            tries = [by_kernel(held, op, config) for _ in range(3)]
        except EmbeddbError:
            continue
        seconds[text] = min(one.conversion_s for one in tries)
        np.testing.assert_allclose(tries[0].compute(x, None, None), a @ x, rtol=1e-3, atol=1e-3)
        calls[text] = lambda one=tries[0]: one.compute(x, None, None)  # type: ignore[misc]
    half = np.ones(max(1, a.nnz * (2 + a.dtype.itemsize) // 2 // a.dtype.itemsize), a.dtype)
    other = half.copy()
    calls["stream"] = lambda: half.dot(other)
    return calls, seconds


def shortest(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    took = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            for _ in range(3):
                start = time.perf_counter()
                call()
                took[name] = min(took[name], time.perf_counter() - start)
    return took


def row(a: Any) -> dict[str, Any]:
    x = np.random.default_rng(1).random(a.shape[1]).astype(a.dtype)
    calls, seconds = calls_of(a, x)
    took = shortest(calls)
    best = {kind: min((t, n) for n, t in took.items() if n in of) for kind, of in KINDS.items()}
    return {
        "shape": a.shape,
        "nnz": int(a.nnz),
        "call_s": took,
        "conversion_s": seconds,
        "best": {kind: name for kind, (_, name) in best.items()},
        "short_over_old": best["old"][0] / best["short"][0],
        "new_over_old": best["old"][0] / best["new"][0],
        "gathered_over_loads": [took[a] / took[b] for a, b in _pairs(took)],
        "new_over_scipy": took["scipy"] / best["new"][0],
        "share_of_stream": took["stream"] / best["new"][0],
    }


def _pairs(took: dict[str, float]) -> list[tuple[str, str]]:
    """Slices of eight rows with loads, and the same with the gather instruction."""
    pairs = zip(SHORT, GATHERED, strict=True)
    return [(a, b) for a, b in pairs if "slice=8," in a and {a, b} <= took.keys()]


#: A format without 16-bit columns competes in all: where those do not fit, it is the best.
KINDS = {"old": OLD, "short": (*OLD, *SHORT), "new": (*OLD, *SHORT, *GATHERED)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    gains = [one["new_over_old"] for one in rows]
    means = ("new_over_scipy", "share_of_stream", "short_over_old")
    paired = [ratio for one in rows for ratio in one["gathered_over_loads"]]
    return {
        "new_over_old": mean(gains),
        "gathered_over_loads": mean(paired),
        "won_by_5_percent": sum(gain > 1.05 for gain in gains),
        **{name: mean([one[name] for one in rows]) for name in means},
        "matrices": len(rows),
    }


def main(folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    result: dict[str, Any] = {"about": about(), "summary": {}}
    for dtype in ("float32", "float64"):
        rows = {}
        for name in MATRICES:
            rows[name] = row(matrix(folder, name).astype(dtype))
            print(dtype, name, rows[name]["best"], file=sys.stderr)
        result["summary"][dtype] = summary(list(rows.values()))
        result[dtype] = rows
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
