"""What counters are worth to who looks for neighbours of loop nests: the same answers by each
featurizer, with and without what was counted.

    embeddb nest count DB --all --source model && embeddb embed DB
    python benchmarks/nest_counters.py DB > benchmarks/results/nest_counters.json

Whole programs are held out, 5 folds, 3 seeds, by replay of what ran (docs/evaluation.md), the
product's own answers with one featurizer alone and plain neighbours by it. All of them are judged
on the nests that have counters on the platform instance that counted most.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from machine import about

from embeddb.core.config import Op
from embeddb.database import Database, open_database
from embeddb.store.counters import counting_platforms
from tuners.evaluation.bench import Bench, Vectors
from tuners.evaluation.evaluate import Table

OP, SCOPE = Op("nest"), "nest-cpu"
SEEDS, FOLDS = (0, 1, 2), 5
#: The harness's plain neighbours read the first featurizer: here the one asked about.
METHODS = {"embeddb": "embeddb", "knn-stats": "plain-knn", "static-best": "static-best"}
FIGURES = ("of_optimum@1", "of_optimum@5", "speedup@1", "speedup@5", "regret_p95@1", "spread")


def vectors_of(db: Database, platform: str) -> tuple[Vectors, dict[str, str]]:
    """By featurizer, of the nests that were counted on a platform instance; and the versions."""
    plugs = db.index.featurizers().counting(platform)
    ids = [info.id for info in db.store.patterns() if info.kind == "nest"]
    found = {
        name: vectors
        for name, plug in plugs.items()
        if (vectors := db.store.vectors.get(name, plug.version, ids, dim=plug.dim))
    }
    counted = [v.keys() for name, v in found.items() if "+counters@" in name]
    if not counted:
        sys.exit(f"no nest has a vector with counters of {platform}")
    both = set.intersection(*map(set, counted))
    kept = {name: {i: v[i] for i in both & v.keys()} for name, v in found.items()}
    return kept, {name: plugs[name].version for name in kept}


def judged(bench: Bench, own: Any) -> dict[str, Any]:
    bench.vectors = {"asked": own}
    rows = {}
    for row in Table(bench).rows(SEEDS, FOLDS, None):
        if row.method in METHODS:
            told = row.document()
            rows[METHODS[row.method]] = {key: told[key] for key in FIGURES}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("db")
    parser.add_argument("--platform", default="", help="The instance whose counters are taken.")
    asked = parser.parse_args()
    with open_database(asked.db) as db:
        counting = counting_platforms(db.store)
        if not counting:
            sys.exit("no nest was counted: embeddb nest count DB --all")
        platform = asked.platform or max(counting, key=lambda place: len(counting[place]))
        vectors, versions = vectors_of(db, platform)
        found: dict[str, Any] = {}
        for name, own in vectors.items():
            print(name, file=sys.stderr)
            found[name] = {
                "version": versions[name],
                "nests": len(own),
                "methods": judged(Bench(db.index, OP, SCOPE), own),
            }
        chosen = db.index.by_counters(OP, db.platform(platform))
        document = {
            "about": about(),
            "counted_on": platform,
            "seeds": list(SEEDS),
            "folds": FOLDS,
            "featurizers": found,
            "chosen": None if chosen is None else chosen.featurizer,
        }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
