"""Is the chance of failing worth its place in the ranking? First answers with and without it.

    python benchmarks/failures.py ginkgo SHARED_RUNS K20Xm P100 titanV > ...failures_ginkgo.json
    python benchmarks/failures.py held LOG_DB HELD_RUNS.csv PLATFORM.toml > ...failures_held.json

`ginkgo`: its spmv logs of some devices, failures kept (`completed`); whole groups held out, 5
folds. `held`: a database of a log, asked about matrices that it never held; what ran on these is in
HELD_RUNS.csv, which has `matrix`, `file`, `config` and `cycles` (empty: it failed). A first answer
that fails counts 0, another its share of the optimum; nothing is measured here, so figures repeat.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.index.failures import Failures
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import load_platform
from embeddb.ranking.build import build_query
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.failing import chances
from embeddb.ranking.recommendation import Candidate
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions
from tuners.evaluation.bench import Bench

SPMV = Op.parse("spmv:f64")
FOLDS, SEED = 5, 0
ARMS = ("before", "after", "penalised")


def blind(query: Query) -> Query:
    """The question as it was before: without chances of failing."""
    return replace(query, vote=replace(query.vote, failures=Failures()))


def answered(query: Query, count: int) -> list[Candidate]:
    return answer(query, count, rng=np.random.default_rng(SEED)).candidates


def penalised(query: Query) -> list[Candidate]:
    """What was not taken: every gain less by the logarithm of the chance that it does not fail."""
    made = answered(blind(query), len(query.vote.configs))
    cost = -np.log1p(-np.minimum(chances(query, [Config(c.config) for c in made]), 0.95))
    order = sorted(range(len(made)), key=lambda at: made[at].score + cost[at])
    return [made[at] for at in order[:5]]


def shares(query: Query, times: Mapping[Config, float]) -> dict[str, tuple[float, float]]:
    """The share of the optimum at 1 and at 5 of each arm; nan where what was proposed never ran."""
    best = min(t for t in times.values() if math.isfinite(t))
    found = {}
    for arm, made in (
        ("before", answered(blind(query), 5)),
        ("after", answered(query, 5)),
        ("penalised", penalised(query)),
    ):
        ran = [times.get(Config(c.config), math.nan) for c in made]
        each = [0.0 if math.isinf(t) else best / t for t in ran]
        found[arm] = each[0], max((s for s in each if not math.isnan(s)), default=math.nan)
    default = times.get(query.default, math.nan)
    found["default"] = (0.0 if math.isinf(default) else best / default,) * 2
    return found


def summary(rows: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, Any]:
    """Means over the questions that the first answers of all arms can be judged on, how many first
    answers failed, and how many are others than before."""
    judged = [r for r in rows if not any(math.isnan(r[arm][0]) for arm in ARMS)]
    told: dict[str, Any] = {"questions": len(judged)}
    for arm in (*ARMS, "default"):
        first = np.array([r[arm][0] for r in judged])
        told[arm] = {
            "of_optimum@1_failure_is_0": float(np.nanmean(first)),
            "of_optimum@5_failure_is_0": float(np.nanmean([r[arm][1] for r in judged])),
            "failed_first": int((first == 0.0).sum()),
        }
    told["other_first"] = {arm: sum(r["before"][0] != r[arm][0] for r in judged) for arm in ARMS}
    return told


def of_ginkgo(folder: Path, devices: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home, Database.create(Path(home) / "db") as db:
        features = folder / "ginkgo/matrix_features.csv.gz"
        log = folder / "ginkgo/spmv_times.csv.gz"
        ingest(db.store, log, options=ReadOptions(features=features))
        embed(db.index)
        return by_device(db, devices)


def by_device(db: Database, devices: Sequence[str]) -> dict[str, Any]:
    told = {}
    for op, scope in db.index.scopes():
        if scope.partition("@")[2] in devices:
            bench = Bench(db.index, op, scope)
            asked = bench.queries(FOLDS, SEED)
            told[scope] = summary(shares(query, bench.truth(row).times) for row, query in asked)
            print(scope, told[scope], file=sys.stderr, flush=True)
    return told


def of_held(place: Path, runs: Path, toml: Path) -> dict[str, Any]:
    by_matrix: dict[str, dict[Config, float]] = {}
    with runs.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            time = float(row["cycles"]) if row["cycles"] else math.inf
            by_matrix.setdefault(row["file"], {})[Config.parse(row["config"])] = time
    op = Op.parse("spmm:64")
    told, rows = {}, []
    with Database.open(place) as db:
        (partition,) = [p for p in db.store.partitions() if p.op == op]
        platform = load_platform(toml).at(partition.platform.partition("@")[2])
        for file, times in by_matrix.items():
            query = build_query(db.index, read_pattern(file), platform, op)
            rows.append(shares(query, times))
            told[Path(file).stem] = rows[-1]
    return {"summary": summary(rows), "matrices": told}


def main(arguments: list[str]) -> None:
    what, *rest = arguments
    told = of_ginkgo(Path(rest[0]), rest[1:]) if what == "ginkgo" else of_held(*map(Path, rest))
    print(json.dumps({"about": about(), "simulated": what == "held", "result": told}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
