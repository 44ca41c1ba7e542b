"""Few-shot on real devices: ginkgo's machines as targets of each other.

    python benchmarks/transfer_devices.py SHARED_RUNS_FOLDER WORK \\
        > benchmarks/results/transfer_devices.json

SpMV formats of ginkgo on GPUs and a CPU, measured by others; the features of the matrices are those
that come with the runs. A model of one device learns from ten matrices of another: 50 runs, as
fewer than 40 are not learned from. Two parts of five of the groups are held out, by seed. WORK
keeps the database, models and lines that are done; started again it goes on with the missing ones.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from machine import about
from transfer_spade import ALL, Cell, Table, fill, summary

from embeddb.core.config import Op
from embeddb.database import Database
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions
from indexer.training.cost_model.samples import samples_of
from indexer.training.cost_model.train import forest

_OP = Op.parse("spmv:f64")
_FEATURIZER = "given"
#: Alike, another maker's, another kind of machine, and the way back; all with the same formats.
_PAIRS = (
    ("V100_SXM2", "A100"),
    ("V100_SXM2", "MI100"),
    ("MI100", "V100_SXM2"),
    ("V100_SXM2", "Xeon_Gold_6230"),
    ("Xeon_Gold_6230", "V100_SXM2"),
)


def cells() -> list[Cell]:
    return [
        Cell("static, 10 matrices", 0, 10, kind="static"),
        Cell("static, all", 0, ALL, kind="static"),
        Cell("zero-shot", 100, 0),
        Cell("no transfer, 10 matrices", 0, 10),
        Cell("no transfer, 100 matrices", 0, 100),
        Cell("ours, 10 matrices", 100, 10),
        Cell("trees, 10 matrices", 0, 10, forest()),
        Cell("trees, 100 matrices", 0, 100, forest()),
        Cell("trees, 10 matrices and a source", 100, 10, forest()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    lines = asked.work / "cells"
    lines.mkdir(parents=True, exist_ok=True)
    with _database(asked.runs, asked.work / "runs.db") as db:
        for a, b in _PAIRS:
            source, target = (
                samples_of(
                    db.index, db.platform(f"spmv-formats@{name}"), [_OP], featurizer=_FEATURIZER
                )
                for name in (a, b)
            )
            evidence, _ = db.index.evidence(_OP, target.platform.id)
            for seed in range(asked.seeds):
                fill(Table(source, target, evidence, lines, seed), cells())
    print(json.dumps({"about": about(), "rows": summary(lines)}, indent=1))


def _database(runs: Path, place: Path) -> Database:
    """Ginkgo's runs with the features that come with them."""
    if place.exists():
        return Database.open(place)
    db = Database.create(place)
    options = ReadOptions(features=runs / "ginkgo/matrix_features.csv.gz")
    ingest(db.store, runs / "ginkgo/spmv_times.csv.gz", options=options)
    embed(db.index)
    return db


if __name__ == "__main__":
    main()
