"""An analytical ranker of sparse kernels beside what is learned: max(transfer, compute) of every
configuration, from the pattern and the machine's constants (`embeddb.dynamics.roofline`).

    python benchmarks/rooflines.py DATABASE MATRICES [--op spmv ...] [--seeds 1] [--limit 0] \
        > benchmarks/results/rooflines.json

DATABASE is the starter, MATRICES the folder of its matrix files; of each op the rows of the machine
that ran most matrices, those of which the file is there. The table is that of `embeddb eval`,
families held out, with rows `roofline` and `roofline+transfer` (joined with the neighbours' vote,
the weight chosen on training families). Constants are the micro-measurements of
`roofline_cpu.json`, made on that machine; nothing is fitted to the runs that are judged.

`mape` is the mean of |modelled - measured| / measured over all runs of at least 5 microseconds, the
model scaled by one coefficient an op, measured over modelled seconds of all defaults ("A Learned
Performance Model for Tensor Processing Units", Section 5.2); `total_ape` is its Equation 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from roofline_ranker import RooflineScorer, roofline_ranker

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.dynamics.roofline import Machine
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import Table

_FOLDS = 5
_LEAST_S = 5e-6
_BOUNDS = Path(__file__).parent / "results" / "roofline_cpu.json"


def machine_of(environment: Mapping[str, str]) -> Machine:
    """Of the judged instance, with what was measured of the same machine in a benchmark."""
    bounds = json.loads(_BOUNDS.read_text())
    threads = int(environment.get("threads", bounds["about"]["cores"]))
    told = {
        "stream_l2_gb_s": bounds["bounds"]["second level"],
        "stream_l3_gb_s": bounds["bounds"]["last level"],
        "stream_memory_gb_s": bounds["bounds"]["memory"],
        "multiply_add_gflop_s": bounds["bounds"]["flops"] / threads,
    }
    return Machine.of({**{name: str(value) for name, value in told.items()}, **environment})


def bench_of(db: Database, op: Op, scope: str, patterns: Mapping[str, Pattern]) -> Bench:
    """The rows of the machine that has most, of matrices whose structure is there."""
    evidence, _ = db.index.evidence(op, scope)
    [(instance, _)] = Counter(row.platform for row in evidence.rows).most_common(1)
    bench = Bench(db.index, op, scope, instance=instance)
    bench.vectors = {
        name: {i: v for i, v in own.items() if i in patterns} for name, own in bench.vectors.items()
    }
    asked = [row for row in bench.counted if bench.evidence.rows[row].pattern_id in patterns]
    bench.counted = np.array(asked, dtype=np.int64)
    return bench


def judged(bench: Bench, patterns: Mapping[str, Pattern], seeds: int) -> dict[str, Any]:
    platform = bench.platforms[bench.instance]
    machine = machine_of(platform.environment)
    vectors = next(iter(bench.vectors.values()))
    scorer = RooflineScorer(patterns, vectors, machine)
    start = time.process_time()
    errors = errors_of(bench, scorer)
    cpu_s = time.process_time() - start
    table = Table(bench, {"roofline": roofline_ranker(scorer)})
    rows = [row.document() for row in table.rows(range(seeds), _FOLDS, None)]
    found = {"op": str(bench.op), "machine": repr(machine), **errors, "rows": rows}
    return {**found, "cpu_s_a_matrix": round(cpu_s / max(len(bench.counted), 1), 4)}


def errors_of(bench: Bench, scorer: RooflineScorer) -> dict[str, Any]:
    """How far modelled seconds are from measured ones; makes all that the table asks for."""
    platform, vectors = bench.platforms[bench.instance], next(iter(bench.vectors.values()))
    modelled, measured, defaults = [], [], []
    for row in bench.counted.tolist():
        times = bench.truth(row).times
        vector = vectors[bench.evidence.rows[row].pattern_id]
        told = scorer.seconds(vector, platform, bench.op, list(times))
        modelled.append(told)
        measured.append(np.array(list(times.values())))
        default = scorer.seconds(vector, platform, bench.op, [bench.default(row)])
        defaults.append((float(bench.evidence.default_s[row]), float(default[0])))
    actual, model = (sum(pair) for pair in zip(*defaults, strict=True))
    told, true = np.concatenate(modelled) * actual / model, np.concatenate(measured)
    kept = np.isfinite(true) & (true >= _LEAST_S)
    apart = np.abs(told - true)[kept] / true[kept]
    return {
        "matrices": len(bench.counted),
        "configurations": len(bench.evidence.configs),
        "coefficient": round(actual / model, 4),
        "mape": round(100 * float(apart.mean()), 1),
        "median_ape_of_seconds": round(100 * float(np.median(apart)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("--op", action="append", default=[], help="all there are")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="the smallest files alone")
    asked = parser.parse_args()
    with Database.open(asked.database, readonly=True) as db:
        known = {info.id for info in db.store.patterns()}
        files = sorted(matrix_files(asked.matrices), key=lambda f: f.stat().st_size)
        read = (read_pattern(f, name=matrix_name(f)) for f in files[: asked.limit or None])
        patterns = {p.id: p for p in read if p.id in known}
        rows = []
        for op, scope in db.index.scopes():
            if op.kind == "matrix" and (not asked.op or str(op) in asked.op):
                rows.append(judged(bench_of(db, op, scope, patterns), patterns, asked.seeds))
                print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps({"about": about(), "seeds": asked.seeds, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
