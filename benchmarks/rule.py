"""Rules in C: how good their choices are on groups held out, and what a decision costs.

    python benchmarks/rule.py figures > figures.json          # of the starter
    python benchmarks/rule.py figures MATRICES > figures.json # and of the structures themselves
    python benchmarks/rule.py logs SHARED_RUNS_FOLDER > logs.json
    python benchmarks/rule.py cost MATRICES > cost.json
    python benchmarks/rule.py joined figures.json cost.json > benchmarks/results/rule.json

The starter keeps no structures: rules learn from the statistics that came with its runs. `MATRICES`
has the structures, so there the held-out choices are judged as C makes them. Nothing but the cost
is measured; there, turns of features, decision and a plain SpMV loop follow one another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound
from embeddb.core.pattern import Pattern
from embeddb.database import Database, open_database
from embeddb.matrix_files import read_pattern
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions
from tuners.evaluation.figures import Outcome, summarise
from tuners.rule.features import NAMES, features_of
from tuners.rule.learn import RuleData, other_outcomes, rule_data, rule_outcomes, unjudged_rule

INSTANCE = "cpu@70882216"
OPS = ("spmm:32", "spmm:128", "spmv", "sddmm:128")
KERNELS = (4, 8, 12)
SEEDS = (0, 1)
LOGS = (
    "ginkgo/spmv_times.csv.gz",
    "lcm/spmm_tiles_niagara.csv.gz",
    "ra-spmm/rtx3090_sweep.csv",
)


#: Of those that ginkgo ran on; every one would take an hour.
DEVICES = ("A100", "V100_SXM2")


def note(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


def structures(folder: Path, ids: Sequence[str]) -> dict[str, Pattern]:
    """Patterns of a folder by id, those that are asked for."""
    wanted = set(ids)
    found = (read_pattern(str(file)) for file in sorted(folder.glob("*.npz")))
    return {pattern.id: pattern for pattern in found if pattern.id in wanted}


def ids_of(data: RuleData) -> list[str]:
    return [data.bench.evidence.rows[int(row)].pattern_id for row in data.rows]


def judged(
    data: RuleData, kernels: Sequence[int], seeds: Sequence[int], seen: NDArray[np.float64] | None
) -> dict[str, Any]:
    """Every method; `seen` are features float64[r,d] of the structures."""
    done: dict[str, list[list[Outcome]]] = {}
    for seed in seeds:
        one: dict[str, list[Outcome]] = {}
        for train, test in data.folds(seed):
            for name, outcome in one_fold(data, kernels, train, test, seen):
                one.setdefault(name, []).append(outcome)
        for name, outcomes in one.items():
            done.setdefault(name, []).append(outcomes)
    rows = {}
    for name, by_seed in done.items():
        figures, spread = summarise(by_seed)
        names = ("of_optimum@1", "slower_than_default", "speedup@1")
        rows[name] = {key: figures[key] for key in names} | {"spread": spread}
    answers = rows["answers of the database"]["of_optimum@1"]
    for many in kernels:
        rows[f"rule of {many}"]["of_answers"] = rows[f"rule of {many}"]["of_optimum@1"] / answers
    return {
        "platform": data.platform,
        "op": str(data.bench.op),
        "matrices": len(data.rows),
        "groups": int(np.unique(data.measured.groups).size),
        "left_out": data.left_out,
        "features": [NAMES[at] for at in data.used],
        "methods": rows,
    }


def one_fold(
    data: RuleData,
    kernels: Sequence[int],
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    seen: NDArray[np.float64] | None,
) -> Iterator[tuple[str, Outcome]]:
    for many in kernels:
        one = data.fitted(train, many)
        for name, outcome in rule_outcomes(data, one, test, data.measured.features[test]):
            yield f"{name} of {many}", outcome
        if seen is not None:
            for name, outcome in rule_outcomes(data, one, test, seen[test]):
                if name == "rule":
                    yield f"rule of {many}, by structure", outcome
    yield from other_outcomes(data, train, test)


def figures(folder: Path | None) -> dict[str, Any]:
    found = []
    with open_database("starter", readonly=True) as db:
        known: dict[str, NDArray[np.float64]] = {}
        for op in OPS:
            data = rule_data(db.index, INSTANCE, Op.parse(op))
            seen = None
            if folder is not None:
                new = [i for i in ids_of(data) if i not in known]
                held = structures(folder, new) if new else {}
                known |= {i: features_of(pattern) for i, pattern in held.items()}
                seen = np.array([known[i] for i in ids_of(data)])
            found.append(judged(data, KERNELS, SEEDS, seen))
            note(json.dumps(found[-1]["methods"]))
    return {"about": about(), "seeds": len(SEEDS), "rules": found}


def logs(folder: Path) -> dict[str, Any]:
    """What others measured; one seed."""
    found = []
    with tempfile.TemporaryDirectory() as home, Database.create(Path(home) / "db") as db:
        for log in LOGS:
            features = folder / "ginkgo/matrix_features.csv.gz" if "ginkgo" in log else None
            ingest(db.store, folder / log, options=ReadOptions(features=features))
        embed(db.index)
        for op, scope in db.index.scopes():
            if "spmv-formats" in scope and not scope.endswith(DEVICES):
                continue
            note(f"{op} on {scope}")
            try:
                found.append(judged(rule_data(db.index, scope, op), (12,), (0,), None))
                note(json.dumps(found[-1]["methods"]))
            except NothingFound as e:
                found.append({"platform": scope, "op": str(op), "refused": str(e)})
    return {"about": about(), "rules": found}


def cost(folder: Path) -> dict[str, Any]:
    """Nanoseconds of C on every matrix of the starter, and whether Python chooses the same."""
    found: dict[str, Any] = {}
    with open_database("starter", readonly=True) as db:
        for op in OPS:
            data = rule_data(db.index, INSTANCE, Op.parse(op))
            rule = unjudged_rule(data, max(KERNELS))
            held = structures(folder, ids_of(data))
            note(f"{op}: {len(held)} matrices")
            with tempfile.TemporaryDirectory() as place:
                Path(place, "rule.h").write_text(rule.header())
                lines = timed(Path(place), rule.symbol, held.values())
            chosen = [rule.index(pattern) for pattern in held.values()]
            found[op] = {
                "matrices": len(held),
                "configs": len(rule.configs),
                "trees": len(rule.forest.root),
                "header_bytes": len(rule.header()),
                "other_choices_in_c": int(np.sum(lines[:, 3] != chosen)),
                "features_over_spmv": spread_of(lines[:, 0] / lines[:, 2]),
                "features_at_most_2_spmv": float(np.mean(lines[:, 0] <= 2 * lines[:, 2])),
                "decide_ns": spread_of(lines[:, 1]),
                "features_ns": spread_of(lines[:, 0]),
            }
            note(found[op])
    return {"about": about(), "rules": found}


def timed(place: Path, symbol: str, patterns: Any) -> NDArray[np.float64]:
    """float64[q,5]: nanoseconds of features, decision and SpMV; the choice; a result."""
    source = Path(__file__).with_name("rule_timing.c")
    words = ["gcc", "-std=c11", "-O2", f"-DRULE={symbol}", f"-I{place}", str(source)]
    subprocess.run([*words, "-o", str(place / "timing")], check=True)
    text = b"".join(
        np.array([*p.shape, p.nnz], dtype=np.int64).tobytes()
        + p.indptr.astype(np.int32).tobytes()
        + p.indices.tobytes()
        for p in patterns
    )
    done = subprocess.run([place / "timing"], input=text, capture_output=True, check=True)
    return np.array([line.split() for line in done.stdout.splitlines()], dtype=np.float64)


def spread_of(values: NDArray[np.float64]) -> dict[str, float]:
    parts = np.quantile(values, [0.5, 0.9, 1.0]).tolist()
    return dict(zip(("median", "p90", "max"), parts, strict=True))


def joined(files: Sequence[str]) -> dict[str, Any]:
    names = ("figures", "cost")
    return {n: json.loads(Path(f).read_text()) for n, f in zip(names, files, strict=True)}


def main(task: str, *args: str) -> None:
    if task == "figures":
        result = figures(Path(args[0]) if args else None)
    elif task == "joined":
        result = joined(args)
    else:
        result = {"logs": logs, "cost": cost}[task](Path(args[0]))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
