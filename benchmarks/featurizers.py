"""What neighbours found by the learned featurizer are worth, beside those by plain statistics.

    python benchmarks/featurizers.py DATABASE MATRICES MANIFEST NAME=WEIGHTS... \
        > benchmarks/results/featurizers.json

DATABASE is the starter database, MATRICES the folder of its matrix files, MANIFEST their CSV with
columns name and class. For each featurizer (`stats`, each NAME, and each NAME joined to `stats`):

- the product's own answers with that featurizer alone, whole families held out, 5 folds, 3 seeds;
- retrieval: how often the nearest other pattern is of the same class, and how often a pattern whose
  blocks of rows and columns were permuted, or of which a window of 80 % a side was cut out, finds
  the pattern it came from;
- performance similarity (Performance Embeddings, Section 4): mean relative standard deviation of a
  figure over a pattern and its three nearest ones of other families.

Weights were trained without run times, but on these very patterns unless they say otherwise.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.featurizers.scnn import Scnn
from embeddb.featurizers.stats import Stats
from embeddb.index.vote import plain_metric
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern
from indexer.training.featurizer.augment import crop, permute_blocks
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import Table

Vectors = dict[str, NDArray[np.float32]]
_SEEDS, _FOLDS = (0, 1, 2), 5
#: The harness's plain baseline reads the first featurizer: here the one asked about.
_METHODS = {
    "static-best": "static-best",
    "static-top-k": "static-top-k",
    "knn-stats": "plain-knn",
    "embeddb": "embeddb",
}
_FIGURES = ("of_optimum@1", "of_optimum@5", "speedup@1", "speedup@5", "regret_p95@1")
#: Blocks of rows and of columns that are permuted, and the share of a side that a window keeps.
_BLOCKS, _KEPT = 8, 0.8


def main(database: Path, matrices: Path, manifest: Path, weights: Mapping[str, Path]) -> None:
    embedders: dict[str, Callable[[Pattern], NDArray[np.float32]]] = {"stats": Stats().embed}
    embedders |= {name: Scnn(path).embed for name, path in weights.items()}
    with Database.open(database, readonly=True) as db:
        known = {info.id: info.group for info in db.store.patterns()}
        patterns = _patterns(matrices, known)
        asked = {how: _changed(patterns, how) for how in ("itself", "permuted", "cropped")}
        vectors = {
            how: {name: _embedded(embed, group) for name, embed in embedders.items()}
            for how, group in asked.items()
        }
        for of in vectors.values():
            of |= {f"stats+{name}": _joined(of["stats"], of[name]) for name in weights}
        result: dict[str, Any] = {"about": about(), "patterns": len(patterns), "rows": []}
        classes = _classes(manifest, patterns)
        for name, own in vectors["itself"].items():
            row = {"featurizer": name, **_retrieval(name, vectors, known, classes)}
            row["answers"] = [_answers(db, op, scope, own) for op, scope in db.index.scopes()]
            row["similarity"] = [_similarity(db, op, scope, own) for op, scope in db.index.scopes()]
            result["rows"].append(row)
            print(json.dumps(row), file=sys.stderr)
    print(json.dumps(result, indent=1))


def _patterns(matrices: Path, known: Mapping[str, str]) -> dict[str, Pattern]:
    found = (read_pattern(f, name=matrix_name(f)) for f in matrix_files(matrices))
    return {p.id: p for p in found if p.id in known}


def _classes(manifest: Path, patterns: Mapping[str, Pattern]) -> dict[str, str]:
    with manifest.open(newline="", encoding="utf-8") as lines:
        by_name = {row["name"]: row["class"] for row in csv.DictReader(lines)}
    return {p.id: by_name[p.name] for p in patterns.values()}


def _changed(patterns: Mapping[str, Pattern], how: str) -> dict[str, Pattern]:
    out = {}
    for at, (pattern_id, pattern) in enumerate(patterns.items()):
        rng = np.random.default_rng(at)
        m, n = pattern.shape
        if how == "permuted":
            rows, cols = (rng.permutation(min(_BLOCKS, size)) for size in (m, n))
            pattern = permute_blocks(pattern, rows, rows if m == n else cols)
        elif how == "cropped":
            (r, r2), (c, c2) = (_window(size, rng) for size in (m, n))
            pattern = crop(pattern, (r, r2), (c, c2))
        out[pattern_id] = pattern
    return out


def _window(size: int, rng: np.random.Generator) -> tuple[int, int]:
    kept = max(1, int(size * _KEPT))
    start = int(rng.integers(size - kept + 1))
    return start, start + kept


def _embedded(embed: Callable[..., NDArray[np.float32]], group: Mapping[str, Pattern]) -> Vectors:
    return {pattern_id: embed(pattern) for pattern_id, pattern in group.items()}


def _joined(a: Vectors, b: Vectors) -> Vectors:
    return {key: np.concatenate([a[key], b[key]]) for key in a}


def _retrieval(
    name: str,
    vectors: Mapping[str, Mapping[str, Vectors]],
    groups: Mapping[str, str],
    classes: Mapping[str, str],
) -> dict[str, float]:
    own = vectors["itself"][name]
    ids = list(own)
    raw = np.array([own[i] for i in ids])
    metric = plain_metric(raw)
    base = metric.apply(raw)
    out = {}
    for how in ("permuted", "cropped"):
        asked = metric.apply(np.array([vectors[how][name][i] for i in ids]))
        nearest = np.argmin(_distances(asked, base), axis=1)
        out[f"same_matrix_{how}"] = float(np.mean(nearest == np.arange(len(ids))))
    away = _distances(base, base)
    family = np.array([groups[i] for i in ids])
    away[family[:, None] == family[None, :]] = np.inf
    kind = np.array([classes[i] for i in ids])
    out["same_class"] = float(np.mean(kind[np.argmin(away, axis=1)] == kind))
    return out


def _distances(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.array([((b - one) ** 2).sum(axis=1) for one in a], dtype=np.float64)


def _answers(db: Database, op: Op, scope: str, own: Vectors) -> dict[str, Any]:
    bench = Bench(db.index, op, scope)
    bench.vectors = {"asked": own}
    rows = {}
    for row in Table(bench).rows(_SEEDS, _FOLDS, None):
        if row.method in _METHODS:
            rows[_METHODS[row.method]] = {k: row.document()[k] for k in (*_FIGURES, "spread")}
    return {"op": str(op), "platform": scope, "methods": rows}


def _similarity(db: Database, op: Op, scope: str, own: Vectors) -> dict[str, Any]:
    evidence, _ = db.index.evidence(op, scope)
    rows = [i for i, r in enumerate(evidence.rows) if r.pattern_id in own]
    gains = evidence.gains(np.array(rows, dtype=np.int64))
    nnz = np.array([_nnz(db, evidence.rows[i].pattern_id) for i in rows])
    figures = {
        "default_flops": 2.0 * op.width * nnz / evidence.default_s[rows],
        "best_gain": np.exp(np.nanmax(gains, axis=1)),
    }
    metric_in = np.array([own[evidence.rows[i].pattern_id] for i in rows])
    base = plain_metric(metric_in).apply(metric_in)
    away = _distances(base, base)
    family = evidence.groups[rows]
    away[family[:, None] == family[None, :]] = np.inf
    near = np.argsort(away, axis=1, kind="stable")[:, :3]
    four = np.column_stack([np.arange(len(rows)), near])
    out: dict[str, Any] = {"op": str(op), "platform": scope}
    for name, values in figures.items():
        local = values[four]
        out[name] = float(np.nanmean(local.std(axis=1) / local.mean(axis=1)))
    return out


def _nnz(db: Database, pattern_id: str) -> int:
    info = db.store.pattern(pattern_id)
    return 0 if info is None else info.nnz


if __name__ == "__main__":
    named = dict(item.split("=", 1) for item in sys.argv[4:])
    main(*(Path(a) for a in sys.argv[1:4]), {name: Path(file) for name, file in named.items()})
