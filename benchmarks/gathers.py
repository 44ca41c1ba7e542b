"""What gathers of the processor cost SpMV: kernels as gcc vectorises them, against the same without
gather instructions and without vectorising, in the caller's process, calls in a row.

    python benchmarks/gathers.py MATRICES > benchmarks/results/gathers.json

The configurations are the fourteen of this machine's instance in the starter that lose least, rows
in their own order; matrices every third of those it ran. Another compiler is a script in front of
gcc.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from handle import matrix, mean
from machine import about

import embeddb
from embeddb.core.config import Op
from embeddb.database import Database, open_database
from indexer.runners.cpu import PLUGIN

OP, CONFIGS, EVERY = Op("spmv"), 14, 3
#: What is said to gcc, in front of all else.
COMPILERS = {
    "gcc": "",
    "no gathers": "-mtune-ctrl=^use_gather,^use_gather_2parts,^use_gather_4parts",
    "not vectorised": "-fno-tree-vectorize",
}


def timings(db: Database) -> dict[str, dict[str, float]]:
    """Median seconds by matrix and configuration."""
    held: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in db.store.runs(PLUGIN().platform().id, OP):
        if run.measurement.ok and run.config.get("reorder", "none") == "none":
            info = db.store.pattern(run.pattern_id)
            assert info is not None
            held[info.name][str(run.config)].append(run.measurement.seconds)
    return {name: {c: float(np.median(s)) for c, s in by.items()} for name, by in held.items()}


def best(known: dict[str, dict[str, float]]) -> list[str]:
    lost: dict[str, list[float]] = defaultdict(list)
    for took in known.values():
        for config, seconds in took.items():
            lost[config].append(seconds / min(took.values()))
    ran = [config for config, found in lost.items() if len(found) > 0.9 * len(known)]
    return sorted(ran, key=lambda config: mean(lost[config]))[:CONFIGS]


def compilers(folder: Path) -> dict[str, tuple[str, str]]:
    """A script and a cache of its own for each."""
    made = {}
    for at, (name, words) in enumerate(COMPILERS.items()):
        script = folder / f"gcc-{at}"
        script.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && exec gcc "$1"\nexec gcc "$@" {words}\n'
        )
        script.chmod(0o700)
        made[name] = str(script), str(folder / f"cache-{at}")
    return made


def seconds(call: Any) -> float:
    call()
    took = []
    for _ in range(8):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return float(np.median(took))


def measured(a: Any, configs: list[str], made: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Seconds by compiler and configuration, the better of two interleaved rounds, and scipy's."""
    x = np.random.default_rng(0).random(a.shape[1]).astype(a.dtype)
    calls = {}
    for name, (script, cache) in made.items():
        os.environ |= {"EMBEDDB_CC": script, "XDG_CACHE_HOME": cache}
        for config in configs:
            calls[name, config] = embeddb.compile(a, "spmv", config=config, build=True)
    rounds = [{key: seconds(lambda f=f: f(x)) for key, f in calls.items()} for _ in range(2)]
    took = {key: min(one[key] for one in rounds) for key in calls}
    found = {name: {c: took[name, c] for c in configs} for name in made}
    return {**found, "scipy": seconds(lambda: a @ x)}


def main(folder: Path) -> None:
    with open_database("starter", readonly=True) as db:
        known = timings(db)
    configs = best(known)
    names = sorted(name for name in known if (folder / f"{name}.npz").is_file())[::EVERY]
    with TemporaryDirectory() as place:
        made = compilers(Path(place))
        cells = {n: measured(matrix(folder, n).astype(np.float32), configs, made) for n in names}
    over = {
        name: {
            "best": mean([min(c["gcc"].values()) / min(c[name].values()) for c in cells.values()]),
            "scipy over best": mean([c["scipy"] / min(c[name].values()) for c in cells.values()]),
            "by configuration": {
                config: mean([c["gcc"][config] / c[name][config] for c in cells.values()])
                for config in configs
            },
        }
        for name in COMPILERS
    }
    print(json.dumps({"about": about(), "speed over gcc": over, "seconds": cells}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
