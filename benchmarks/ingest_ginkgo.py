"""All of ginkgo's SpMV runs into a fresh database, against a plain csv.DictReader pass.

python benchmarks/ingest_ginkgo.py SHARED_RUNS_FOLDER > benchmarks/results/ingest_ginkgo.json
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

from machine import about, spread

from embeddb.database import Database
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions

ROUNDS = 5


def plain_pass(file: Path) -> float:
    started = time.perf_counter()
    with gzip.open(file, "rt", newline="") as lines:
        rows = sum(1 for _ in csv.DictReader(lines))
    assert rows > 0
    return time.perf_counter() - started


def ingested(file: Path, features: Path) -> tuple[float, int, int]:
    with tempfile.TemporaryDirectory() as folder, Database.create(Path(folder) / "db") as db:
        started = time.perf_counter()
        report = ingest(db.store, file, options=ReadOptions(features=features))
        return time.perf_counter() - started, report.rows, db.store.size_bytes()


def main(folder: Path) -> None:
    file, features = folder / "spmv_times.csv.gz", folder / "matrix_features.csv.gz"
    plain, ours = [], []
    rows = size = 0
    for _ in range(ROUNDS):
        plain.append(plain_pass(file))
        seconds, rows, size = ingested(file, features)
        ours.append(seconds)
    ratios = [b / a for a, b in zip(plain, ours, strict=True)]
    result = {
        "about": about(),
        "rows": rows,
        "dictreader_s": spread(plain),
        "ingest_s": spread(ours),
        "ratio": spread(ratios),
        "runs_per_s": spread([rows / s for s in ours]),
        "store_bytes_per_run": size / rows,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "ginkgo")
