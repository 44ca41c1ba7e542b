"""What the CPU's schedule space offers, and how much of it depends on the matrix.

    python benchmarks/space_cpu.py DATABASE [MANIFEST] > benchmarks/results/space_cpu.json

Per operation, over all matrices that count and over those whose complete grid ran: best over
default, static best over default, best over static best (the static best chosen on the other
families, 5 folds, 3 seeds), distinct winners, and how much slower the best is without each order,
format, reordering, and without the choice of threads; with MANIFEST (CSV with columns name and
class) per class of matrices as well.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.database import Database
from embeddb.index.run_matrix import FAILED_GAIN, RunMatrix
from embeddb.index.vote import mean_gain
from tuners.evaluation.bench import Bench, split_groups

_SEEDS = (0, 1, 2)
_FEWEST = 20


def offered(evidence: RunMatrix, classes: dict[str, str]) -> dict[str, Any]:
    gains = evidence.gains()
    best = np.nanmax(gains, axis=1)
    winner = np.nanargmax(gains, axis=1)
    static = np.mean([_static(gains, evidence.groups, seed) for seed in _SEEDS], axis=0)
    places: dict[str, list[int]] = defaultdict(list)
    for at, row in enumerate(evidence.rows):
        places[classes.get(row.pattern_id, "unknown")].append(at)

    def figures(rows: NDArray[np.int64]) -> dict[str, Any]:
        return {
            "matrices": len(rows),
            "best_over_default": float(np.exp(best[rows].mean())),
            "static_over_default": float(np.exp(static[rows].mean())),
            "best_over_static": float(np.exp((best - static)[rows].mean())),
            "distinct_winners": len(set(winner[rows].tolist())),
        }

    by_class = {name: figures(np.array(rows)) for name, rows in sorted(places.items())}
    common = np.bincount(winner, minlength=len(evidence.configs))
    return {
        "configs": len(evidence.configs),
        **figures(np.arange(len(evidence.rows))),
        "worth": _worth(evidence, gains, best),
        "winners": {
            str(evidence.configs[i]): int(common[i]) for i in np.argsort(-common)[:10] if common[i]
        },
        "classes": by_class if len(by_class) > 1 else {},
    }


def _worth(
    evidence: RunMatrix, gains: NDArray[np.float64], best: NDArray[np.float64]
) -> dict[str, float]:
    """How many times slower the best would be without the configurations that have a value."""
    found = {}
    known = np.nan_to_num(gains, nan=FAILED_GAIN)
    for name in ("order", "format", "reorder", "threads", "schedule", "seams", "merge"):
        for value in sorted({str(c[name]) for c in evidence.configs if name in c}):
            left = [i for i, c in enumerate(evidence.configs) if str(c.get(name)) != value]
            rest = known[:, left].max(axis=1)
            found[f"{name}={value}"] = float(np.exp((best - rest).mean()))
    return found


def _static(gains: NDArray[np.float64], groups: NDArray[np.str_], seed: int) -> Any:
    """Log gain [r] of the static best of the other folds; where it failed, the default's."""
    fold = split_groups(groups, 5, seed)
    out = np.zeros(len(gains))
    for at in range(5):
        chosen = int(mean_gain(gains[fold != at]).argmax())
        out[fold == at] = np.nan_to_num(gains[fold == at, chosen])
    return out


def main(database: Path, manifest: Path | None = None) -> None:
    result: dict[str, Any] = {"about": about(), "ops": {}}
    with Database.open(database, readonly=True) as db:
        classes = _classes(db, manifest)
        for op, scope in db.index.scopes():
            entry = {}
            for name, complete in (("common", False), ("complete", True)):
                bench = Bench(db.index, op, scope, complete=complete)
                if bench.counted.size >= _FEWEST:
                    entry[name] = offered(bench.evidence.take(bench.counted), classes)
            result["ops"][f"{op} on {scope}"] = entry
    print(json.dumps(result, indent=1))


def _classes(db: Database, manifest: Path | None) -> dict[str, str]:
    """Class by pattern id."""
    if manifest is None:
        return {}
    with manifest.open(newline="", encoding="utf-8") as lines:
        named = {row["name"]: row["class"] for row in csv.DictReader(lines)}
    return {p.id: named[p.name] for p in db.store.patterns() if p.name in named}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
