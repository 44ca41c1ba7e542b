"""Answers at a width that nobody measured, on a machine that nobody measured: of each instance of
the starter all runs are left out, and of all others those at the asked width; its matrices are then
asked about, and the truth is what it measured.

    python benchmarks/unmeasured_width.py > benchmarks/results/unmeasured_width.json

`known`: other machines ran these very matrices at other widths; `unknown`: their families are left
out too. Beside the answer: the default, the schedule that is best on average in what is left, and
the vote with a guard of 2.2 times (log gain 0.79), which is what the product had before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.database import Database, open_database
from embeddb.index.lookup import Lookup
from embeddb.ranking.build import build_query
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.choose import Rankers
from indexer.embed import embed
from indexer.exchange.exchange import export_file, import_file

OPS = ("spmm:32", "spmm:128")
INSTANCES = ("cpu@0e3785dc", "cpu@bfb97e83", "cpu@cc58252c")
#: Others of the same processor are the same machine, and left out too.
SAME = {"cpu@cc58252c": {"cpu@a076ff17", "cpu@3f72d30d", "cpu@80d9638b", "cpu@f21b90b6"}}
FOLDS = 2
OLD_GUARD = 0.79
_MOST = 400

Truth = dict[str, dict[Config, float]]


def lines() -> Iterator[tuple[str, Any]]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "starter.jsonl"
        with open_database("starter", readonly=True) as db:
            export_file(db.index, file, platform="cpu")
        with file.open(encoding="utf-8") as told:
            for line in told:
                yield line, json.loads(line)


class Starter:
    """The lines of the starter, and what they number."""

    def __init__(self) -> None:
        self.all = list(lines())
        self.platforms: dict[int, str] = {}
        self.ops: dict[int, str] = {}
        self.group: dict[int, str] = {}
        self.group_of: dict[str, str] = {}
        for _, told in self.all:
            if not isinstance(told, list):
                continue
            if told[0] == "platform":
                self.platforms[told[1]] = told[2]
            elif told[0] == "op":
                self.ops[told[1]] = told[2]
            elif told[0] == "pattern":
                self.group[told[1]] = self.group_of[told[2]] = told[7] or told[6]

    def without(self, file: Path, instances: set[str], op: str, groups: set[str]) -> None:
        """An export without instances, an op of everybody, and all runs of families."""
        with file.open("w", encoding="utf-8") as out:
            for line, told in self.all:
                if isinstance(told, list) and told[0] == "run":
                    _, pattern, ran, platform, *_ = told
                    if (
                        self.platforms[platform] in instances
                        or self.ops[ran] == op
                        or self.group[pattern] in groups
                    ):
                        continue
                elif isinstance(told, list) and told[0] == "end":
                    continue
                out.write(line)


def truth_of(db: Database, instance: str, op: Op) -> Truth:
    held: dict[str, dict[Config, list[float]]] = {}
    for run in db.store.runs(instance, op):
        if run.measurement.ok:
            by_config = held.setdefault(run.pattern_id, {})
            by_config.setdefault(run.config, []).append(run.measurement.seconds)
    return {
        pattern: {config: float(np.median(s)) for config, s in found.items()}
        for pattern, found in held.items()
    }


def asked(db: Lookup, whole: Database, instance: str, op: Op, truth: Truth) -> list[dict[str, Any]]:
    """Of each matrix the seconds of what each method would run first, over its best."""
    platform = whole.platform(instance)
    rows = []
    for pattern, took in truth.items():
        info = whole.store.pattern(pattern)
        assert info is not None
        query = build_query(db, info, platform, op)
        if query.default not in took:
            continue
        promise = query.vote.promise._replace(guard=OLD_GUARD)
        before = replace(query, vote=replace(query.vote, promise=promise))
        static = Rankers(query, rng=np.random.default_rng(0)).static_best
        order = [Config(c.config) for c in islice(static.candidates(), _MOST)]
        best = min(took.values())
        rows.append(
            {
                "answer": ran(firsts(query), took) / best,
                "guard before": ran(firsts(before), took) / best,
                "static best": ran(order, took) / best,
                "default": took[query.default] / best,
            }
        )
    return rows


def firsts(query: Query) -> list[Config]:
    found = answer(query, _MOST, rng=np.random.default_rng(0))
    return [Config(c.config) for c in found.candidates]


def ran(configs: list[Config], took: dict[Config, float]) -> float:
    """Seconds of the first one that the machine measured on this matrix."""
    return next(took[config] for config in configs if config in took)


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By method the share of the optimum and the gain over the default, geometric means, and on
    which share of the matrices it is slower than the default by 5 %."""
    told: dict[str, Any] = {"matrices": len(rows)}
    for name in rows[0]:
        over = np.array([row[name] for row in rows])
        base = np.array([row["default"] for row in rows])
        told[name] = {
            "of optimum": round(float(np.exp(-np.log(over).mean())), 3),
            "gain": round(float(np.exp(np.log(base / over).mean())), 3),
            "slower by 5 %": round(float((over > 1.05 * base).mean()), 3),
        }
    return told


def case(starter: Starter, whole: Database, instance: str, text: str) -> dict[str, Any]:
    op, gone = Op.parse(text), {instance, *SAME.get(instance, ())}
    truth = truth_of(whole, instance, op)
    families = sorted({starter.group_of[pattern] for pattern in truth})
    rows: dict[str, list[dict[str, Any]]] = {"known": [], "unknown": []}
    folds = [
        ("known", set(families)),
        *(("unknown", set(families[at::FOLDS])) for at in range(FOLDS)),
    ]
    for name, out in folds:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rest.jsonl"
            starter.without(file, gone, text, out if name == "unknown" else set())
            with open_database(Path(folder) / "db", create=True) as db:
                import_file(db.index, file, rejects=False)
                embed(db.index, build=False)
                part = {p: t for p, t in truth.items() if starter.group_of[p] in out}
                rows[name] += asked(db.index, whole, instance, op, part)
        print(instance, text, name, len(rows[name]), file=sys.stderr)
    return {name: figures(found) for name, found in rows.items()}


def main() -> None:
    starter = Starter()
    with open_database("starter", readonly=True) as whole:
        found = {
            instance: {op: case(starter, whole, instance, op) for op in OPS}
            for instance in INSTANCES
        }
    print(json.dumps({"about": about(), "cases": found}, indent=1))


if __name__ == "__main__":
    main()
