"""The evaluation table on our own CPU runs, and what the space offers.

    python benchmarks/evaluate_cpu.py DATABASE > benchmarks/results/eval_cpu.json

DATABASE is the starter database. Whole matrix families are held out, 5 folds, 3 seeds.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from scipy.stats import kendalltau, spearmanr

from embeddb.db import Database
from embeddb.partition import build_evidence
from tuners.evaluate import counted_rows, evaluate


def rounds_agree(db: Database, platform: str, op: Any) -> dict[str, float]:
    """Rank agreement of the two rounds of each matrix: medians over matrices."""
    by_pattern: dict[str, dict[str, dict[str, float]]] = {}
    for run in db.store.runs(platform, op):
        if run.measurement.ok:
            number = run.campaign.rpartition(":")[2]
            rounds = by_pattern.setdefault(run.pattern_id, {})
            rounds.setdefault(number, {})[run.config.json] = run.measurement.seconds
    rho, tau = [], []
    for rounds in by_pattern.values():
        if len(rounds) == 2:
            first, second = rounds.values()
            both = sorted(set(first) & set(second))
            a, b = [first[c] for c in both], [second[c] for c in both]
            rho.append(float(spearmanr(a, b).statistic))
            tau.append(float(kendalltau(a, b).statistic))
    return {
        "matrices": len(rho),
        "spearman": float(np.median(rho)),
        "kendall": float(np.median(tau)),
    }


def space(db: Database, op: Any, scope: str) -> dict[str, Any]:
    evidence = build_evidence(db.store, op, scope)
    rows = counted_rows(evidence)
    winners: Counter[str] = Counter()
    for row in rows:
        winners[str(evidence.configs[int(np.nanargmin(evidence.times(int(row))))])] += 1
    return {
        "matrices": len(rows),
        "groups": int(np.unique(evidence.groups[rows]).size),
        "configs": len(evidence.configs),
        "failed": int(np.isinf(evidence.seconds).sum()),
        "distinct_winners": len(winners),
        "noise": evidence.noise,
    }


def main(database: Path) -> None:
    with Database.open(database, readonly=True) as db:
        rows = evaluate(db, progress=lambda what, at, of: print(what, at, of, file=sys.stderr))
        result = {
            "about": about(),
            "space": {str(op): space(db, op, scope) for op, scope in db.scopes()},
            "rounds": {
                f"{p.op} {p.platform}": rounds_agree(db, p.platform, p.op)
                for p in db.store.partitions()
            },
            "rows": [row.document() for row in rows],
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
