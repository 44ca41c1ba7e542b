"""What simulated counters of a matrix are worth beside plain statistics, as neighbours of it.

    python benchmarks/dynamics.py DATABASE MATRICES ROWS [--op spmv ...] [--seeds 3] \
        > benchmarks/results/dynamics.json

DATABASE is the starter, MATRICES the folder of its matrix files; of each op the rows of the machine
that ran most matrices. Families are held out throughout. What was made is kept in ROWS, a line a
part: started again, the script goes on.

- answers: share of the optimum at 1 and at 5 of the product's answers with that featurizer alone
  (5 folds), and the mean difference to `stats` in log share, matrix by matrix, with the standard
  error of that, families drawn anew;
- similarity ("Performance Embeddings", Section 4, Table 1): the coefficient of variation of a
  figure over a matrix and its three nearest of other families. Figures are flop/s and best gain,
  and those of the paper: bytes a second over three boundaries and the locality Q/D at each. Seconds
  are measured, of the default; bytes are simulated for two threads with that machine's caches,
  cold, sampled beyond 131,072 accesses.

`reuse distance` is the paper's baseline of four numbers, of the first 500 non-zeros in a cache of
the size of L1. `random` and `the metric itself` bound what neighbours can do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from neighbourhoods import (
    chosen_by_chance,
    clustered_error,
    local_variation,
    nearest_others,
)
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.dynamics import Cache, profile
from embeddb.dynamics.caches import LINE_BYTES
from embeddb.dynamics.execution import plain
from embeddb.featurizers.dynamics import DynamicsFeatures
from embeddb.featurizers.stats import Stats
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern
from embeddb.ranking.fallback import answer
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import judge

Vectors = Mapping[str, NDArray[np.float32]]
_FOLDS, _DRAWS = 5, 20
_ITERATIONS = 500
_L1 = (Cache(1, 32 << 10, False),)
#: The Zen 5 that ran most of the starter: caches of a core, L3 of all.
_CACHES = (Cache(1, 48 << 10, False), Cache(2, 1 << 20, False), Cache(3, 32 << 20, True))
_THREADS, _ACCESSES = 2, 1 << 17
_BOUNDARIES = {
    "memory": ("CAS_COUNT_RD", "CAS_COUNT_WR", "locality_l3"),
    "l3": ("L2_LINES_IN_ALL", "L2_TRANS_L2_WB", "locality_l2"),
    "l2": ("L1D_REPLACEMENT", "L1D_M_EVICT", "locality_l1"),
}
_STATS = "stats"
#: Whose answers are judged; all are told apart by similarity.
_ANSWERING = (_STATS, "dynamics", "stats and dynamics")


class Kept:
    """Parts by name, a line each; made once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._parts: dict[str, Any] = dict(map(json.loads, lines))

    def __getitem__(self, name: str) -> Any:
        return self._parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def put(self, name: str, part: Any) -> None:
        self._parts[name] = part
        with self._path.open("a") as file:
            file.write(json.dumps([name, part]) + "\n")
        print(name, file=sys.stderr)


# -- vectors ---------------------------------------------------------------------------------------


def described(pattern: Pattern, ops: Sequence[Op]) -> dict[str, Any]:
    """Vectors by featurizer, what the default moves by op, and seconds of the processor."""
    found: dict[str, Any] = {"vectors": {}, "cpu_s": {}}
    for name, embed in ((_STATS, Stats().embed), ("dynamics", DynamicsFeatures().embed)):
        start = time.process_time()
        found["vectors"][name] = embed(pattern).tolist()
        found["cpu_s"][name] = time.process_time() - start
    found["vectors"]["reuse distance"] = reuse_distance(pattern)
    found["moved"] = {str(op): moved(pattern, op) for op in ops}
    return found


def reuse_distance(pattern: Pattern) -> list[float]:
    """Miss ratio, log2 of bytes read and written, and flops per byte, of SpMM with 32 columns."""
    rows = int(np.searchsorted(pattern.indptr, _ITERATIONS, side="left"))
    rows = max(1, min(rows, pattern.shape[0]))
    indptr = np.minimum(pattern.indptr[: rows + 1], _ITERATIONS)
    of = np.repeat(np.arange(rows), np.diff(indptr))
    first = Pattern.from_coo((rows, pattern.shape[1]), of, pattern.indices[: of.size])
    told = profile(first, Op("spmm", 32), plain(1), caches=_L1)
    lines = [told.counters[name].value for name in ("L1D_REPLACEMENT", "L1D_M_EVICT")]
    ratio = told.quantities["miss_ratio_l1"].value
    logs = [float(np.log2(1 + LINE_BYTES * line)) for line in lines]
    return [ratio, *logs, told.quantities["flops"].value / max(LINE_BYTES * sum(lines), 1)]


def moved(pattern: Pattern, op: Op) -> dict[str, float]:
    """Of the default's call: bytes over each boundary, and the locality there."""
    told = profile(pattern, op, plain(_THREADS), caches=_CACHES, max_accesses=_ACCESSES)
    found = {"flops": told.quantities["flops"].value}
    for name, (read, written, locality) in _BOUNDARIES.items():
        found[f"{name}_bytes"] = LINE_BYTES * sum(
            told.counters[event].value for event in (read, written)
        )
        found[f"{name}_locality"] = told.quantities[locality].value
    return found


def by_method(parts: Mapping[str, Any]) -> dict[str, Vectors]:
    """Vectors by method and pattern id: the whole of `dynamics`, its parts, and joined."""
    names = DynamicsFeatures().names
    columns = {
        "dynamics": list(range(len(names))),
        "dynamics, SpMV alone": [i for i, n in enumerate(names) if n.startswith("spmv")],
        "dynamics, SpMM alone": [i for i, n in enumerate(names) if not n.startswith("spmv")],
        "dynamics, counters alone": [
            i for i, n in enumerate(names) if n.endswith(("_min", "_max", "_mean", "_std", "_sum"))
        ],
    }
    raw = {
        kind: {i: np.array(p["vectors"][kind], dtype=np.float32) for i, p in parts.items()}
        for kind in (_STATS, "dynamics", "reuse distance")
    }
    found: dict[str, Vectors] = {}
    found[_STATS] = raw[_STATS]
    for name, chosen in columns.items():
        found[name] = {i: v[chosen] for i, v in raw["dynamics"].items()}
    found["stats and dynamics"] = {
        i: np.concatenate([v, raw["dynamics"][i]]) for i, v in raw[_STATS].items()
    }
    found["reuse distance"] = raw["reuse distance"]
    return found


# -- answers ---------------------------------------------------------------------------------------


def answers(bench: Bench, own: Vectors, seeds: int) -> dict[str, list[list[float]]]:
    """By pattern id, log shares of the optimum at 1 and 5, one pair per seed."""
    bench.vectors = {"asked": own}
    found: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        for row, query in bench.queries(_FOLDS, seed):
            proposed = answer(query, 5, rng=np.random.default_rng(0)).candidates
            outcome = judge(bench.truth(row), [Config(c.config) for c in proposed])
            shares = [outcome.of_optimum_1, outcome.of_optimum_5]
            found.setdefault(bench.evidence.rows[row].pattern_id, []).append(shares)
    return found


def compared(
    told: Mapping[str, Any], base: Mapping[str, Any], groups: Mapping[str, str]
) -> dict[str, float]:
    """Shares of the optimum, and how far they are above the base's on the same matrices."""
    ids = sorted(told.keys() & base.keys())
    own, other = (np.array([np.mean(x[i], axis=0) for i in ids]) for x in (told, base))
    of = np.array([groups[i] for i in ids])
    found: dict[str, float] = {"matrices": len(ids)}
    for at, k in enumerate((1, 5)):
        apart = own[:, at] - other[:, at]
        found[f"of_optimum@{k}"] = float(np.exp(own[:, at].mean()))
        found[f"above_stats@{k}"] = float(apart.mean())
        found[f"above_stats_error@{k}"] = clustered_error(apart, of)
    return {key: round(value, 4) for key, value in found.items()}


# -- similarity ------------------------------------------------------------------------------------


def metrics_of(bench: Bench, rows: Sequence[int], parts: Mapping[str, Any]) -> dict[str, Any]:
    """float64[q] by figure, of rows whose default ran."""
    evidence, op = bench.evidence, str(bench.op)
    moved = [parts[evidence.rows[row].pattern_id]["moved"][op] for row in rows]
    seconds = evidence.default_s[list(rows)]
    gains = evidence.gains(np.array(rows, dtype=np.int64))
    found = {
        "flops": np.array([m["flops"] for m in moved]) / seconds,
        "best_gain": np.exp(np.nanmax(gains, axis=1)),
    }
    for name in _BOUNDARIES:
        found[f"{name}_bandwidth"] = np.array([m[f"{name}_bytes"] for m in moved]) / seconds
        found[f"{name}_locality"] = np.array([m[f"{name}_locality"] for m in moved])
    return found


def similarity(
    bench: Bench, methods: Mapping[str, Vectors], parts: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Mean coefficient of variation by method and figure."""
    evidence = bench.evidence
    rows = [row for row in bench.counted.tolist() if evidence.rows[row].pattern_id in parts]
    ids = [evidence.rows[row].pattern_id for row in rows]
    groups, asked = evidence.groups[rows], np.arange(len(rows))
    metrics = metrics_of(bench, rows, parts)

    def told(near: NDArray[np.int64]) -> dict[str, float]:
        return {
            m: round(float(local_variation(v, asked, near).mean()), 4) for m, v in metrics.items()
        }

    found = {
        name: told(nearest_others(np.stack([own[i] for i in ids]), groups, asked))
        for name, own in methods.items()
    }
    draws = [chosen_by_chance(groups, asked, np.random.default_rng(n)) for n in range(_DRAWS)]
    each = [told(near) for near in draws]
    found["random"] = {m: round(float(np.mean([e[m] for e in each])), 4) for m in metrics}
    found["the metric itself"] = {
        m: told(nearest_others(np.log2(1 + v[:, None]).astype(np.float32), groups, asked))[m]
        for m, v in metrics.items()
    }
    return found


# -- everything ------------------------------------------------------------------------------------


def bench_of(db: Database, op: Op, scope: str) -> Bench:
    """The rows of the machine that has most."""
    evidence, _ = db.index.evidence(op, scope)
    [(instance, _)] = Counter(row.platform for row in evidence.rows).most_common(1)
    return Bench(db.index, op, scope, instance=instance)


def judged(bench: Bench, parts: Mapping[str, Any], kept: Kept, seeds: int) -> dict[str, Any]:
    methods = by_method(parts)
    for name in _ANSWERING:
        part = f"answers {bench.op} {name}"
        if part not in kept:
            kept.put(part, answers(bench, methods[name], seeds))
    groups = {row.pattern_id: row.group for row in bench.evidence.rows}
    told = {name: kept[f"answers {bench.op} {name}"] for name in _ANSWERING}
    return {
        "op": str(bench.op),
        "platform": bench.instance,
        "answers": {name: compared(t, told[_STATS], groups) for name, t in told.items()},
        "similarity": similarity(bench, methods, parts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--op", action="append", default=[], help="all there are")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    kept = Kept(asked.rows)
    with Database.open(asked.database, readonly=True) as db:
        known = {info.id for info in db.store.patterns()}
        scopes = [pair for pair in db.index.scopes() if pair[0].kind == "matrix"]
        scopes = [pair for pair in scopes if not asked.op or str(pair[0]) in asked.op]
        ops = [op for op, _ in scopes]
        parts: dict[str, Any] = {}
        # The small ones first: what was made before it was stopped is of as many as can be.
        for file in sorted(matrix_files(asked.matrices), key=lambda f: f.stat().st_size):
            name = f"matrix {file.name}"
            if name not in kept:
                pattern = read_pattern(file, name=matrix_name(file))
                inside = pattern.id in known
                kept.put(name, [pattern.id, described(pattern, ops) if inside else None])
            pattern_id, part = kept[name]
            if part is not None:
                parts[pattern_id] = part
        rows = [judged(bench_of(db, *pair), parts, kept, asked.seeds) for pair in scopes]
    cpu = {
        name: round(float(np.median([p["cpu_s"][name] for p in parts.values()])), 4)
        for name in (_STATS, "dynamics")
    }
    document = {
        "about": about(),
        "matrices": len(parts),
        "seeds": asked.seeds,
        "median_cpu_s": cpu,
        "rows": rows,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
