"""Neighbours by a featurizer that never saw the family it is asked about, in training neither.

    python benchmarks/featurizers_held_out.py DATABASE MATRICES MANIFEST WORK \
        > benchmarks/results/featurizers_held_out.json

benchmarks/featurizers.py compares featurizers whose weights were trained, without run times, on all
matrices. Here one network is trained for each of five folds on the families outside it (kept in
the folder WORK, so that it goes on where it stopped), and its neighbours are judged on the fold.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.featurizers.network.reduction import Reduction
from embeddb.featurizers.scnn import Scnn
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern
from embeddb.ranking.fallback import answer
from indexer.training.featurizer.dataset import Recipe, read_dataset
from indexer.training.featurizer.pretrain import Pretraining, pretrain
from indexer.training.trainer import Settings
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import judge
from tuners.evaluation.splits import split_groups

_FOLDS, _SEED = 5, 0
_EPOCHS, _COPIES = 30, 2


def main(database: Path, matrices: Path, manifest: Path, work: Path) -> None:
    with manifest.open(newline="", encoding="utf-8") as lines:
        families = {row["name"]: row["family"] for row in csv.DictReader(lines)}
    names = np.array(sorted(set(families.values())))
    fold_of = dict(zip(names.tolist(), split_groups(names, _FOLDS, _SEED).tolist(), strict=True))
    nets = [_network(matrices, families, fold_of, fold, work) for fold in range(_FOLDS)]
    with Database.open(database, readonly=True) as db:
        known = {info.id for info in db.store.patterns()}
        found = (read_pattern(f, name=matrix_name(f)) for f in matrix_files(matrices))
        patterns = [p for p in found if p.id in known]
        result: dict[str, Any] = {"about": about(), "seed": _SEED, "rows": []}
        vectors = [_embedded(net, patterns) for net in nets]
        folds = {p.id: fold_of[families[p.name]] for p in patterns}
        for op, scope in db.index.scopes():
            result["rows"].append(_judged(db, op, scope, vectors, folds))
            print(json.dumps(result["rows"][-1]), file=sys.stderr)
    print(json.dumps(result, indent=1))


def _network(
    matrices: Path, families: dict[str, str], fold_of: dict[str, int], fold: int, work: Path
) -> Scnn:
    """Trained on the families outside the fold; read again if it is there."""
    out = work / f"fold-{fold}.safetensors"
    if not out.exists():
        part = work / f"matrices-{fold}"
        part.mkdir(parents=True, exist_ok=True)
        for file in matrix_files(matrices):
            link = part / file.name
            if fold_of[families[matrix_name(file)]] != fold and not link.exists():
                link.symlink_to(file.resolve())
        recipe = Recipe(Reduction("grid", size=128), copies=_COPIES, seed=_SEED)
        data = read_dataset(part, recipe, groups=families, progress=_quiet)
        how = Pretraining("waco", recipe, Settings(epochs=_EPOCHS, seed=_SEED))
        pretrain(data, how, out, progress=_quiet)
    print(f"network of fold {fold} is ready", file=sys.stderr)
    return Scnn(out)


def _quiet(what: str, at: int, of: int) -> None:
    """Progress nobody reads."""


def _embedded(net: Scnn, patterns: list[Pattern]) -> dict[str, NDArray[np.float32]]:
    return {p.id: net.embed(p) for p in patterns}


def _judged(
    db: Database,
    op: Op,
    scope: str,
    vectors: list[dict[str, NDArray[np.float32]]],
    folds: dict[str, int],
) -> dict[str, Any]:
    bench = Bench(db.index, op, scope)
    stats = bench.vectors["stats"]
    row_fold = np.array([folds[row.pattern_id] for row in bench.evidence.rows])
    out: dict[str, Any] = {"op": str(op), "platform": scope}
    for name in ("stats", "scnn", "stats-scnn"):
        logs: list[tuple[float, float]] = []
        for fold, own in enumerate(vectors):
            joined = {i: np.concatenate([v, own[i]]) for i, v in stats.items()}
            bench.vectors = {"asked": {"stats": stats, "scnn": own, "stats-scnn": joined}[name]}
            train = np.flatnonzero(row_fold != fold)
            test = bench.counted[row_fold[bench.counted] == fold]
            for row, query in bench.queries_of(train, test):
                found = answer(query, 5, rng=np.random.default_rng(0)).candidates
                outcome = judge(bench.truth(row), [Config(c.config) for c in found])
                logs.append((outcome.of_optimum_1, outcome.of_optimum_5))
        # Outcomes hold logarithms.
        out[name] = np.exp(np.mean(logs, axis=0)).round(4).tolist()
    return out


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:]))
