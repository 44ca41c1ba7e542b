"""Seconds of one query by stage, store open, on a pattern of a million non-zeros.

    python benchmarks/query_latency.py DATABASE > benchmarks/results/query_latency.json

DATABASE holds CPU SpMM runs (the starter database). The pattern is a scale-free graph made here,
read from a compressed .npz each time. Reading and answering are interleaved.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from machine import about, spread

from embeddb.database import Database
from embeddb.matrix_files import read_pattern

ROUNDS = 15
CLI_ROUNDS = 25
IMPORTS = "import numpy, scipy.sparse, lmdb, faiss"


def million(path: Path) -> None:
    """A 200,000 x 200,000 pattern with about 1.0 M non-zeros and a heavy tail."""
    rng = np.random.default_rng(0)
    n, draws = 200_000, 1_020_000
    rows = (n * rng.random(draws) ** 2).astype(np.int32)
    cols = (n * rng.random(draws) ** 3).astype(np.int32)
    matrix = sp.coo_array((np.ones(draws, np.int8), (rows, cols)), shape=(n, n)).tocsr()
    matrix.sum_duplicates()
    sp.save_npz(path, matrix)


def in_process(database: Path, file: Path) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {}
    with Database.open(database) as db:
        for at in range(ROUNDS + 2):
            started = time.perf_counter()
            pattern = read_pattern(file)
            read = time.perf_counter() - started
            made = db.query(pattern, platform="cpu", op="spmm:128")
            explained = time.perf_counter()
            db.explain(made.id)
            stages = {"read": read, **made.stages_s}
            stages["explain"] = time.perf_counter() - explained
            stages["search+transfer+explain"] = (
                stages["search"] + stages["transfer"] + stages["explain"]
            )
            stages["features/read"] = stages["features"] / read
            for stage, value in stages.items() if at >= 2 else ():
                seen.setdefault(stage, []).append(value)
    return seen


def timed(command: list[str]) -> float:
    """Seconds of a command as a user runs it: with compiled bytecode kept between runs."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - started


def cold(database: Path, file: Path) -> dict[str, list[float]]:
    """The whole command against importing its four libraries."""
    query = [sys.executable, "-m", "embeddb.ui.cli.main", "query", str(database), str(file)]
    query += ["--platform", "cpu", "--op", "spmm:128", "--json"]
    seen: dict[str, list[float]] = {"imports_s": [], "query_s": [], "help_s": [], "ratio": []}
    timed(query)
    for _ in range(CLI_ROUNDS):
        seen["imports_s"].append(timed([sys.executable, "-c", IMPORTS]))
        seen["query_s"].append(timed(query))
        seen["help_s"].append(timed([sys.executable, "-m", "embeddb.ui.cli.main", "--help"]))
        seen["ratio"].append(seen["query_s"][-1] / seen["imports_s"][-1])
    return seen


def main(database: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder) / "million.npz", Path(folder) / "small.npz"
        million(file)
        sp.save_npz(small, sp.random_array((500, 500), density=0.01, rng=np.random.default_rng(0)))
        copy = Path(folder) / "db"
        shutil.copytree(database, copy)
        with Database.open(copy) as db:
            runs = db.store.count_runs()
        result = {
            "about": about(),
            "runs": runs,
            "stages": {k: spread(v) for k, v in in_process(copy, file).items()},
            "cli": {k: spread(v) for k, v in cold(copy, small).items()},
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
