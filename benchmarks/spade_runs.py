"""A database of SPADE's timing model: every legal configuration on matrices of all sizes.

    python benchmarks/spade_runs.py MATRICES DATABASE [--per-bin 20] [--most 300000] [--op OP ...]

MATRICES is a folder with a MANIFEST.csv (columns file, name, family, class, rows, nnz). Matrices
are taken evenly from COGNATE's bins of rows; their families are the groups
that are held out. Started again it goes on where it was stopped. No time in the database is of
real hardware: every run says `source = simulator`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run, WorkloadInfo
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.arguments import families
from indexer.embed import embed
from indexer.runners.base import RunOptions
from indexer.runners.spade import SpadeRunner

_OPS = ("spmm:128", "sddmm:128")
#: COGNATE, Section 4.1: the bins of rows that its matrices are balanced over.
_BINS = (8192, 32768, 65536, 131072)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("matrices", type=Path)
    parser.add_argument("database", type=Path)
    parser.add_argument("--per-bin", type=int, default=20)
    parser.add_argument("--most", type=int, default=300_000, help="non-zeros")
    parser.add_argument("--op", action="append")
    asked = parser.parse_args()
    groups = families(str(asked.matrices / "MANIFEST.csv"))
    files = [file for _, file in choose(asked.matrices, asked.per_bin, asked.most)]
    make = Database.open if asked.database.exists() else Database.create
    with make(asked.database) as db:
        runner = SpadeRunner()
        platform = runner.platform()
        db.store.put_platform(platform)
        started = time.perf_counter()
        for at, file in enumerate(files, 1):
            pattern = read_pattern(file, group=groups.get(file.stem, file.stem))
            for op in map(Op.parse, asked.op or _OPS):
                _time(db, runner, platform, pattern, op)
            left = (time.perf_counter() - started) / at * (len(files) - at)
            print(f"{at} of {len(files)}: {file.stem}, {left:.0f} s left", file=sys.stderr)
        embed(db.index)


def _time(db: Database, runner: SpadeRunner, platform: Platform, pattern: Pattern, op: Op) -> None:
    """All legal configurations of one matrix, unless they are there."""
    configs = list(platform.space(op, pattern.sizes).enumerate())
    done = {run.config for run in db.store.runs(platform.id, op, pattern.id)}
    missing = [config for config in configs if config not in done]
    if not missing:
        return
    db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
    measured = runner.run(pattern, op, missing, options=RunOptions())
    db.store.append(
        Run(pattern.id, op, platform.id, config, measurement) for config, measurement in measured
    )


def choose(folder: Path, per_bin: int, most: int) -> list[tuple[int, Path]]:
    """Bin and file; in each bin, matrices of the classes that were taken least often so far."""
    with (folder / "MANIFEST.csv").open(newline="", encoding="utf-8") as lines:
        rows = [r for r in csv.DictReader(lines) if r["file"].endswith(".npz")]
    order = np.random.default_rng(0).permutation(len(rows))
    taken: Counter[str] = Counter()
    chosen = []
    for at in range(len(_BINS) + 1):
        fits = [rows[i] for i in order if _bin(int(rows[i]["rows"])) == at]
        fits = [r for r in fits if 1000 <= int(r["nnz"]) <= most]
        for _ in range(min(per_bin, len(fits))):
            row = min(fits, key=lambda r: taken[r["class"]])
            fits.remove(row)
            taken[row["class"]] += 1
            chosen.append((at, folder / row["file"]))
    return chosen


def _bin(rows: int) -> int:
    return sum(rows >= edge for edge in _BINS)


if __name__ == "__main__":
    main()
