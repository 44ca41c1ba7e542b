"""How far apart two processes time the same kernel: no model can be closer than that.

    python benchmarks/fusion_noise.py tensors.db --kernels 200

Kernels of DB that `kernel measure --op fusion` timed at 50 µs or more, drawn at random, are
compiled and timed in two processes that take turns. Prints the median, mean and 90th percentile of
|a - b| / ((a + b) / 2), by the clock and by the processor's seconds: on a machine that others use
too, the clock counts their turns.
"""

from __future__ import annotations

import argparse
import json
import os

import numpy as np

import embeddb
from embeddb.core.config import Config, Op
from embeddb.tensors.computation import Computation
from indexer.runners.base import RunOptions
from indexer.runners.xla import XlaRunner
from indexer.tensor_runs import LONG_S

_FUSED = Op("fused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db")
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    options = RunOptions(threads=1, check=False)
    with XlaRunner() as one, XlaRunner() as other:
        here = one.platform().id
        kernels = _drawn(asked.db, here, asked.kernels, asked.seed)
        pairs = []
        for kernel in kernels:
            both = [
                next(iter(runner.run(kernel, _FUSED, [Config({})], options=options)))[1]
                for runner in (one, other)
            ]
            if all(found.ok for found in both):
                pairs.append([[m.least, min(m.cpu_sum_s)] for m in both])
    times = np.array(pairs).transpose(2, 0, 1)
    found: dict[str, object] = {"kernels": len(pairs), "load": round(os.getloadavg()[0], 1)}
    for name, of_both in zip(("clock", "processor"), times, strict=True):
        apart = np.abs(of_both[:, 0] - of_both[:, 1]) / of_both.mean(axis=1)
        found[name] = {
            "median": round(float(np.median(apart)), 4),
            "mean": round(float(apart.mean()), 4),
            "90th": round(float(np.quantile(apart, 0.9)), 4),
        }
    print(json.dumps(found, indent=2))


def _drawn(db: str, platform: str, count: int, seed: int) -> list[Computation]:
    with embeddb.open(db) as opened:
        long = [
            info.id
            for info in opened.store.patterns()
            if info.kind == "kernel"
            and any(
                run.measurement.ok and run.seconds >= LONG_S
                for run in opened.store.runs(platform, _FUSED, info.id)
            )
        ]
        rng = np.random.default_rng(seed)
        chosen = rng.choice(sorted(long), size=min(count, len(long)), replace=False)
        found = [opened.store.tensor(str(one)) for one in chosen]
    return [kernel for kernel in found if isinstance(kernel, Computation)]


if __name__ == "__main__":
    main()
