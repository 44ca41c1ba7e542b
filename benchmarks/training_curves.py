"""How training goes, with a CPU model to start from and without: PRL, OPA and tau by epoch.

    python benchmarks/training_curves.py CPU_DATABASE SPADE_DATABASE WORK \\
        > benchmarks/results/training_curves.json
    for start in alone transfer; do embeddb plot training WORK/$start/member-0/curve.jsonl \\
        -o benchmarks/results/training_$start.svg; done

COGNATE's settings on SpMM, K = 128, of the timing model of SPADE, no hardware: 50 matrices x 10
samples, of which a tenth of the families is held out; the source is 100 matrices x 100 samples of
the CPU. Training goes to its last epoch, so that the curves can be compared. As COGNATE's Figure 6.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import about

from embeddb.core.config import Op
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from indexer.training.cost_model.samples import Samples, samples_of
from indexer.training.cost_model.train import curves, paper, train
from indexer.training.curves import read_curve

_OP = Op.parse("spmm:128")
_SEEDS = 3
_NAMES = ("valid_prl", "valid_opa", "valid_tau")
_EPOCHS = (1, 5, 10, 25, 50, 100)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("spade", type=Path)
    parser.add_argument("work", type=Path)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    source, target = _samples(asked.cpu, "cpu"), _samples(asked.spade, "spade")
    rows = []
    for seed in range(_SEEDS):
        few = target.limited(50, 10, seed)
        known = set(few.groups.tolist())
        # A family that the source knows must not be the one that is held out here.
        apart = [i for i, row in enumerate(source.rows) if row.group not in known]
        start = train(source.take(apart).limited(100, 100, seed), replace(paper(), seed=seed))
        for name, first in (("alone", None), ("transfer", start)):
            folder = asked.work / (name if seed == 0 else f"{name}-{seed}")
            rows.append({"start": name, "seed": seed, **_curve(few, first, folder, seed)})
    told = {"about": about(), "made_by": "timing model", "settings": "COGNATE", "rows": rows}
    print(json.dumps(told, indent=1))


def _samples(database: Path, platform: str) -> Samples:
    with Database.open(database, readonly=True) as db:
        return samples_of(db.index, db.platform(platform), [_OP])


def _curve(few: Samples, start: CostModel | None, folder: Path, seed: int) -> dict[str, Any]:
    """The figures on held-out families after some epochs."""
    train(few, replace(paper(), seed=seed), start=start, folder=folder)
    (file,) = curves(folder)
    lines = {int(line["epoch"]): line for line in read_curve(file)}
    return {
        "epochs": {at: {name: lines[at][name] for name in _NAMES} for at in _EPOCHS if at in lines}
    }


if __name__ == "__main__":
    main()
