"""A database of SPADE's timing model: every legal configuration on matrices of all sizes.

    python benchmarks/spade_runs.py MATRICES DATABASE [--per-bin 20] [--most 300000] [--op OP ...]

MATRICES is a folder with a MANIFEST.csv (columns file, name, family, class, rows, nnz). Matrices
are taken from COGNATE's bins of rows as `spade_sensitivity.py` does; their families are the groups
that are held out. Started again it goes on where it was stopped. No time in the database is of
real hardware: every run says `source = simulator`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from spade_sensitivity import choose

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.arguments import families
from indexer.embed import embed
from indexer.library import info_of
from indexer.runners.base import RunOptions
from indexer.runners.spade import SpadeRunner

_OPS = ("spmm:128", "sddmm:128")


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
    db.store.put_structure(pattern, info_of(pattern))
    measured = runner.run(pattern, op, missing, options=RunOptions())
    db.store.append(
        Run(pattern.id, op, platform.id, config, measurement) for config, measurement in measured
    )


if __name__ == "__main__":
    main()
