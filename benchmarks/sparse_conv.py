"""Forward and forward + backward of the 12-layer network by backend, pattern and size.

    python benchmarks/sparse_conv.py [SITES ...] > benchmarks/results/sparse_conv.json

SITES default to 1000 10000 100000 1000000. The backends are interleaved in one process per case,
one thread and two; MinkowskiEngine takes part where it is installed. `first` makes the maps anew,
`forward` and `both` (with backward) find them made. `gemm_peak` is that of `torch.mm` on 1024^3 in
the same process; `of_peak` counts two operations per pair and channel pair, three times
that for `both`. Memory is the growth of the largest resident size over one `first` with backward,
in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

SITES = (1_000, 10_000, 100_000, 1_000_000)
KINDS = ("banded", "power-law", "random", "blocked")
SPEC = {"name": "cognate", "in_channels": 1}
#: Seconds that the rounds of one case may take; at least three rounds after the warm-up.
BUDGET_S = 8.0
MOST_ROUNDS = 25
#: From so many sites on a round takes a minute: one after the warm-up, on one thread, of two kinds.
LARGE = 300_000
LARGE_KINDS = ("banded", "blocked")


def sites_of(kind: str, wanted: int) -> Any:
    """int64[n,3]: about `wanted` sites of one pattern."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    if kind == "banded":
        row = np.repeat(np.arange(wanted // 9), 9)
        column = row + np.tile(np.arange(9), wanted // 9)
    elif kind == "power-law":
        side, draws = wanted // 5, wanted * 5 // 4
        row = (side * rng.random(draws) ** 2).astype(np.int64)
        column = (side * rng.random(draws) ** 3).astype(np.int64)
    elif kind == "random":
        row, column = rng.integers(0, wanted // 5, (2, wanted))
    else:
        blocks = max(wanted // 256, 1)
        corner = rng.integers(0, int(blocks**0.5) * 8 + 8, (2, blocks, 1)) * 16
        inner = np.indices((16, 16)).reshape(2, 1, 256)
        row, column = (corner + inner).reshape(2, -1)
    found = np.unique(np.column_stack((np.zeros_like(row), row, column)), axis=0)
    return torch.from_numpy(found.astype(np.int64))


def backends() -> list[str]:
    from embeddb.core.errors import MissingDependency
    from embeddb.featurizers.network.minkowski import engine

    try:
        engine()
    except MissingDependency:
        return ["own"]
    return ["own", "minkowski"]


def steps(backend: str, coords: Any) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    import torch

    from embeddb.featurizers.network.networks import build
    from embeddb.featurizers.network.sparse_conv import SparseTensor
    from embeddb.featurizers.network.sparse_maps import Level

    network, made = build(SPEC, backend=backend), Level.of(coords)
    features = torch.ones(len(coords), 1)
    shapes, owner = torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)

    def forward(level: Level) -> Any:
        return network(SparseTensor(features, level), shapes, owner)

    def without(level: Level) -> None:
        with torch.no_grad():
            forward(level)

    def both(level: Level) -> None:
        network.zero_grad()
        forward(level).sum().backward()

    return {
        "first": lambda: without(Level.of(coords)),
        "forward": lambda: without(made),
        "both": lambda: both(made),
    }


def operations(coords: Any) -> int:
    """Multiplications and additions of one forward pass."""
    import torch

    from embeddb.featurizers.network.networks import build
    from embeddb.featurizers.network.sparse_conv import SparseConv2d, SparseTensor
    from embeddb.featurizers.network.sparse_maps import Level

    total = 0

    def count(layer: SparseConv2d, given: tuple[SparseTensor], _: Any) -> None:
        nonlocal total
        sites, area = given[0].level.kernel_map(layer.kernel, layer.stride), layer.kernel**2
        pairs = sum(len(sites.pairs(o)[0]) for o in range(area))
        total += 2 * pairs * layer.weight.shape[1] * layer.weight.shape[2]

    network = build(SPEC)
    for layer in network.modules():
        if isinstance(layer, SparseConv2d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        tensor = SparseTensor(torch.ones(len(coords), 1), Level.of(coords))
        network(tensor, torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    return total


def seconds(what: Callable[[], Any]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def case(kind: str, wanted: int) -> dict[str, Any]:
    """Times of one pattern, interleaved; threads as the environment says."""
    import torch

    if find_spec("numba"):  # As in a run over many patterns: small ones do not load it themselves.
        importlib.import_module("numba")
    coords = sites_of(kind, wanted)
    todo = {(b, s): run for b in backends() for s, run in steps(b, coords).items()}
    square, into = torch.randn(1024, 1024), torch.empty(1024, 1024)
    todo["gemm", "1024"] = lambda: torch.mm(square, square, out=into)
    seen: dict[tuple[str, str], list[float]] = {key: [] for key in todo}
    started, rounds = time.perf_counter(), -1
    fewest = 1 if wanted >= LARGE else 3
    while rounds < fewest or (rounds < MOST_ROUNDS and time.perf_counter() - started < BUDGET_S):
        rounds += 1
        for key, run in todo.items():
            took = seconds(run)
            if rounds:  # The first round compiles and fills caches.
                seen[key].append(took)
    peak = 2 * 1024**3 / median(seen.pop(("gemm", "1024")))
    work, rows = operations(coords), {}
    for (backend, step), times in seen.items():
        row = rows.setdefault(backend, {})
        row[step] = {"median_s": median(times), "min_s": min(times), "max_s": max(times)}
        if step != "first":
            scale = 3 if step == "both" else 1
            row[step]["of_peak"] = scale * work / median(times) / peak
    answer = {"sites": len(coords), "rounds": rounds, "gflop": work / 1e9, "gemm_peak": peak / 1e9}
    if "minkowski" in rows:
        for step, own in rows["own"].items():
            own["speedup"] = rows["minkowski"][step]["median_s"] / own["median_s"]
    return answer | rows


def memory(kind: str, wanted: int, backend: str) -> dict[str, Any]:
    """Growth of the largest resident size in MB over maps, forward and backward."""
    coords = sites_of(kind, wanted)
    steps(backend, sites_of(kind, 1_000))["both"]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps(backend, coords)["both"]()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"both_mb": (after - before) / 1024, "features_256_mb": len(coords) * 256 * 4 / 2**20}


def child(*args: str, threads: int) -> dict[str, Any]:
    """This file in a process of its own."""
    # Threads that spin between small products take the cores from each other.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, __file__, *args], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main(sizes: list[int]) -> None:
    from machine import about

    rows = []
    for wanted in sizes:
        for kind in LARGE_KINDS if wanted >= LARGE else KINDS:
            here = len(rows)
            for threads in (1,) if wanted >= LARGE else (1, 2):
                row = {"pattern": kind, "threads": threads}
                row |= child("--case", kind, str(wanted), threads=threads)
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
            for backend in backends():
                used = child("--memory", kind, str(wanted), backend, threads=1)
                rows[here].setdefault("memory", {})[backend] = used
    print(json.dumps({"about": about(), "network": SPEC, "rows": rows}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(case(sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1:2] == ["--memory"]:
        print(json.dumps(memory(sys.argv[2], int(sys.argv[3]), sys.argv[4])))
    else:
        main([int(x) for x in sys.argv[1:]] or list(SITES))
