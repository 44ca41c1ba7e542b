"""How long the learned featurizer takes for a matrix, at the shipped setting, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/embed_latency.py MATRICES \\
        > benchmarks/results/embed_latency.json

Every matrix of the folder MATRICES is read, then embedded `_ROUNDS` times by `scnn` and by `stats`
in turn; the median counts. Reading is not part of it. Memory is the growth of the largest resident
size over all embeddings, after the first one. `bulk` embeds all of them one after the other.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from machine import about

from embeddb.core.pattern import Pattern
from embeddb.featurizers.scnn import Scnn
from embeddb.featurizers.stats import Stats
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern

_ROUNDS = 5


def main(matrices: Path) -> None:
    torch.set_num_threads(1)
    patterns = [read_pattern(f, name=matrix_name(f)) for f in matrix_files(matrices)]
    plugs = {"scnn": Scnn(), "stats": Stats()}
    for plug in plugs.values():
        plug.embed(patterns[0])
    before = _resident_mb()
    seen: dict[str, list[float]] = {name: [] for name in plugs}
    for pattern in patterns:
        took: dict[str, list[float]] = {name: [] for name in plugs}
        for _ in range(_ROUNDS):
            for name, plug in plugs.items():
                took[name].append(_seconds(plug, pattern))
        for name in plugs:
            seen[name].append(median(took[name]))
    started = time.perf_counter()
    for pattern in patterns:
        plugs["scnn"].embed(pattern)
    bulk = len(patterns) / (time.perf_counter() - started)
    result: dict[str, Any] = {
        "about": about(),
        "matrices": len(patterns),
        "nnz": [min(p.nnz for p in patterns), max(p.nnz for p in patterns)],
        "bulk_matrices_per_s": bulk,
        "grown_mb": _resident_mb() - before,
        "resident_mb": _resident_mb(),
    }
    for name, times in seen.items():
        at = int(np.argmax(times))
        result[name] = {
            "median_ms": 1e3 * median(times),
            "p95_ms": 1e3 * float(np.quantile(times, 0.95)),
            "worst_ms": 1e3 * times[at],
            "worst": {"name": patterns[at].name, "nnz": patterns[at].nnz},
        }
    print(json.dumps(result, indent=1))


def _seconds(plug: Any, pattern: Pattern) -> float:
    started = time.perf_counter()
    plug.embed(pattern)
    return time.perf_counter() - started


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
