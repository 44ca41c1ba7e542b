"""Is "what to measure next" worth following? Replayed on families that were held out.

    python benchmarks/next_runs.py DATABASE [--op spmm:32 ...] [--platform cpu] [--seed 0]
        [--most 0] > benchmarks/results/next_runs.json

Every counted matrix of the machine that ran most is asked about with its family held out, and the
answer is measured beside the default. Then up to five more are bought: as named by what measuring
them is worth (`next`: `insight.next`, nothing asked again between them; `next, one by one`: asked
anew after each), in the order of the proposals (`proposals`: what `query --measure` runs), or by
chance among what ran there (the mean of `_DRAWS` draws). `of_optimum` is the geometric mean of the
share of the optimum of what ran after 0, 1, 2, 3 and 5 bought; who names fewer buys no more.

`told` compares what is said of the named runs with what came: `worth` (log gains over the answer,
nothing where it is slower) and `chance`, means of both, and over the fourth of the runs that were
promised most and the fourth promised least.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.timing import Timing
from embeddb.database import Database
from embeddb.ranking.alternatives import insight
from embeddb.ranking.diagnostics import NextRun
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Truth

_BOUGHT = (0, 1, 2, 3, 5)
_FOLDS, _DRAWS = 5, 8


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One held-out matrix: its question, what was measured, and what is bought by whom."""

    query: Query
    truth: Truth
    first: Config
    told: list[NextRun]
    proposals: list[Config]

    def reached(self, bought: Sequence[Config]) -> list[float]:
        """Log shares of the optimum, by the number bought after the answer and the default."""
        start = [self.first, self.query.default]
        ends = [self.truth.after([*start, *bought[:n]], n + 2) for n in _BOUGHT]
        return [math.log(self.truth.best_s / seconds) for seconds in ends]

    def gain(self, config: Config) -> float:
        """The log gain over the answer; -inf where it failed."""
        seconds = self.truth.times.get(config, math.inf)
        return math.log(self.truth.after([self.first], 1) / seconds) if seconds < math.inf else -1e9


@dataclass(slots=True)
class Figures:
    shares: dict[str, list[list[float]]] = field(default_factory=dict)
    told: list[tuple[float, float, float, float]] = field(default_factory=list)

    def add(self, one: Asked, rng: np.random.Generator) -> None:
        named = [Config(n.config) for n in one.told]
        ways = {
            "next": one.reached(named),
            "next, one by one": one.reached(list(_one_by_one(one))),
            "proposals": one.reached(one.proposals),
            "by chance": np.mean([one.reached(d) for d in _draws(one, rng)], axis=0).tolist(),
        }
        for way, reached in ways.items():
            self.shares.setdefault(way, []).append(reached)
        for said, config in zip(one.told, named, strict=True):
            got = one.gain(config)
            self.told.append((math.log1p(said.worth), max(got, 0.0), said.chance, float(got > 0)))

    def document(self) -> dict[str, Any]:
        told = np.array(self.told).reshape(-1, 4)
        order = np.argsort(-told[:, 0], kind="stable")
        parts = {
            "all": order,
            "most": order[: len(order) // 4],
            "least": order[-(len(order) // 4) :],
        }
        return {
            "of_optimum": {
                way: np.exp(np.mean(of, axis=0)).round(4).tolist()
                for way, of in self.shares.items()
            },
            "named": round(len(told) / max(len(self.shares["next"]), 1), 2),
            "told": {name: _means(told[at]) for name, at in parts.items()},
        }


def _means(told: np.ndarray) -> dict[str, float]:
    names = ("worth_promised", "worth_got", "chance_promised", "faster_got")
    means = told.mean(axis=0) if len(told) else np.full(4, math.nan)
    return {name: round(float(mean), 4) for name, mean in zip(names, means, strict=True)}


def _draws(one: Asked, rng: np.random.Generator) -> Iterator[list[Config]]:
    ran = [c for c in one.truth.times if c not in (one.first, one.query.default)]
    for _ in range(_DRAWS):
        yield [ran[at] for at in rng.permutation(len(ran))[: max(_BOUGHT)]]


def _one_by_one(one: Asked) -> Iterator[Config]:
    """What is named first, measured, and the question asked again."""
    known = dict.fromkeys([one.first, one.query.default])
    for _ in range(max(_BOUGHT)):
        timings = {config: _timing(one.truth, config) for config in known}
        query = replace(one.query, own=replace(one.query.own, timings=timings))
        found = insight(answer(query, 5, rng=np.random.default_rng(0)))
        ran = [c for n in found.next if (c := Config(n.config)) in one.truth.times]
        if not ran:
            return
        known[ran[0]] = None
        yield ran[0]


def _timing(truth: Truth, config: Config) -> Timing:
    seconds = truth.times.get(config, math.inf)
    status = "ok" if math.isfinite(seconds) else "error"
    return Timing(seconds=seconds, spread=0.0, conversion_s=0.0, runs=1, status=status)


def asked(query: Query, truth: Truth) -> Asked:
    found = answer(query, max(_BOUGHT) + 3, rng=np.random.default_rng(0))
    others = (Config(c.config) for c in found.candidates)
    proposals = [c for c in others if c not in (found.first, query.default)]
    return Asked(query, truth, found.first, insight(found).next, proposals)


def judged(db: Database, op: Op, scope: str, seed: int, most: int) -> dict[str, Any]:
    evidence, _ = db.index.evidence(op, scope)
    (instance, _), *_ = Counter(row.platform for row in evidence.rows).most_common(1)
    bench = Bench(db.index, op, scope, instance=instance)
    figures, rng = Figures(), np.random.default_rng(seed)
    for row, query in islice(bench.queries(_FOLDS, seed), most or None):
        figures.add(asked(query, bench.truth(row)), rng)
    about_op = {"op": str(op), "platform": instance, "matrices": len(figures.shares["next"])}
    return {**about_op, "bought": list(_BOUGHT), **figures.document()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("--op", action="append", default=[], help="all there are")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=0, help="matrices; 0: all")
    options = parser.parse_args()
    rows = []
    with Database.open(options.database, readonly=True) as db:
        for op, scope in db.index.scopes(options.platform):
            if not options.op or str(op) in options.op:
                rows.append(judged(db, op, scope, options.seed, options.most))
                print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps({"about": about(), "seed": options.seed, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
