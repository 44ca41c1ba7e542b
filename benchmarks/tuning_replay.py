"""What a ranker is worth when a matrix is tuned with seconds of hardware ("A Learned Performance
Model for Tensor Processing Units", Sections 7.2 and 7.3), replayed on complete grids.

    python benchmarks/tuning_replay.py DATABASE MATRICES CONSTANTS [--op spmm:128 ...] [--limit 0]
        [--learned boosted costmodel] > benchmarks/results/tuning_replay.json

DATABASE is the starter, MATRICES the folder of its files; of each op the matrices of the machine
that ran most on which nearly every configuration ran. Whole families are held out (five folds, one
seed). Rankers choose alone, or their order runs until 2, 10, 60 or 600 seconds are spent; beside
them runs by chance and annealing on hardware from the default (three seeds each), and all run.

What a run costs is charged by CONSTANTS, made on this machine by `benchmarks/tuning_costs.py`: a
kernel that the search compiles first, checking the result and all else beside the calls, a warm-up
and repeats as `embeddb tune` makes them, and converting (as recorded, each time). A recorded time
is what a search is told and what it is judged by, so nobody here has bad luck: `tuning_live.json`
has.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from rooflines import machine_of

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.dynamics.roofline import Roofline
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen
from embeddb.matrix_files import read_pattern
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Truth
from tuners.evaluation.learned_rankers import learned_rankers
from tuners.search import Annealer, SpaceSteps, anneal
from tuners.tune_matrix import MatrixTuneRequest

BUDGETS = (2.0, 10.0, 60.0, 600.0)
SEEDS = range(3)
FOLDS = 5
#: Faster ones say little of a ranking by seconds.
LEAST_S = 5e-6


class Costs:
    """Seconds that a run costs on one matrix, kernels compiled once in a search."""

    def __init__(self, op: Op, constants: dict[str, Any], truth: Truth, conversion: dict[Any, Any]):
        self.op, self.truth, self.conversion = op, truth, conversion
        told = constants["ops"][str(op)]
        self.compile_s, self.overhead_s = told["compile_s"], told["overhead_s"]
        self.calls = told["calls_beside"]
        self.options = MatrixTuneRequest().options
        self.variants: dict[Config, Any] = {}

    def of(self, config: Config, compiled: set[Any]) -> float:
        if config not in self.variants:
            lanes = cpu_build.vector_bytes()
            self.variants[config] = codegen.plan(config, self.op, vector_bytes=lanes)[0]
        variant, seconds = self.variants[config], self.truth.times[config]
        cost = self.overhead_s + (0.0 if variant in compiled else self.compile_s)
        compiled.add(variant)
        if not math.isfinite(seconds):
            return cost
        asked = self.options
        wanted = math.ceil(asked.min_time_s / seconds)
        repeats = min(max(wanted, asked.repeats), asked.max_repeats)
        return cost + self.conversion.get(config, 0.0) + (repeats + self.calls) * seconds


def replayed(
    order: Iterator[Config] | Sequence[Config], costs: Costs, default: Config
) -> dict[float, tuple[float, int]]:
    """By budget, the seconds of the best that ran, and how many did: the default first."""
    compiled: set[Any] = set()
    spent, count = costs.of(default, compiled), 1
    best = costs.truth.default_s
    found: dict[float, tuple[float, int]] = {}
    for config in order:
        while len(found) < len(BUDGETS) and spent >= BUDGETS[len(found)]:
            found[BUDGETS[len(found)]] = best, count
        if len(found) == len(BUDGETS):
            break
        if config == default or config not in costs.truth.times:
            continue
        spent += costs.of(config, compiled)
        count += 1
        best = min(best, costs.truth.times[config])
    return {budget: found.get(budget, (best, count)) for budget in BUDGETS}


def walked(
    steps: SpaceSteps, costs: Costs, default: Config, budget: float, seed: int
) -> tuple[float, int]:
    """Annealing on hardware. What nobody recorded costs nothing and is as bad as a failure."""
    compiled: set[Any] = set()
    spent, count, best = 0.0, 0, costs.truth.default_s

    def price(config: Config) -> float:
        nonlocal spent, count, best
        seconds = costs.truth.times.get(config, math.inf)
        if config in costs.truth.times:
            spent += costs.of(config, compiled)
            count += 1
            best = min(best, seconds)
        return seconds

    annealer = Annealer(steps, default, rng=np.random.default_rng(seed))
    for _ in anneal(annealer, price, lambda: spent, budget):
        pass
    return best, count


class Judge:
    """Of one op: outcomes by method, each (best seconds, default's, the optimum, runs)."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[float, float, float, float]]] = {}

    def add(self, name: str, truth: Truth, best: float, count: float) -> None:
        self.told.setdefault(name, []).append((best, truth.default_s, truth.best_s, count))

    def rows(self) -> dict[str, Any]:
        found = {}
        for name, outcomes in self.told.items():
            best, default, optimum, count = (np.array(c) for c in zip(*outcomes, strict=True))
            found[name] = {
                "of_optimum": round(float(np.exp(np.log(optimum / best).mean())), 4),
                "worst": round(float((optimum / best).min()), 4),
                "over_default": round(float(np.exp(np.log(default / best).mean())), 4),
                "ape": round(100 * float((best / optimum - 1).mean()), 2),
                "tile_size_ape": round(100 * float((best - optimum).sum() / optimum.sum()), 2),
                "runs": round(float(np.median(count)), 1),
                "searches": len(outcomes),
            }
        return found


def rankings(
    bench: Bench, row: int, query: Query, pattern: Any, learned: Mapping[str, Any]
) -> Iterator[tuple[str, list[Config]]]:
    yield "neighbours", [Config(c.config) for c in NeighbourVote(query).candidates()]
    platform = bench.platforms[bench.instance]
    configs = list(bench.truth(row).times)
    if pattern is not None:
        model = Roofline(pattern, machine_of(platform.environment))
        order = np.argsort(model.seconds(platform, bench.op, configs), kind="stable")
        yield "analytical", [configs[int(at)] for at in order]
    for name, model in learned.items():
        gain, _ = model.score(bench.raw(row), platform, bench.op, configs, query.pattern.sizes)
        yield name, [configs[int(at)] for at in np.argsort(-gain, kind="stable")]


def judged(bench: Bench, asked: Any, files: dict[str, Path], constants: Any, db: Any) -> Any:
    found, errors, exhaustive = Judge(), list[float](), list[float]()
    walks: dict[int | None, SpaceSteps] = {}
    kept = set(np.random.default_rng(0).permutation(bench.counted)[: asked.limit or None].tolist())
    for train, test in bench.folds(FOLDS, 0):
        test = np.array([row for row in test if int(row) in kept], dtype=np.int64)
        fits = learned_rankers() if asked.learned and test.size else {}
        learned = {name: bench.learned(fits[name], train) for name in asked.learned if fits}
        for row, query in bench.queries_of(train, test):
            truth, costs = _truth_and_costs(bench, row, constants, db)
            name = bench.infos[query.pattern.id].name
            pattern = read_pattern(files[name]) if name in files else None
            found.add("default", truth, truth.default_s, 0)
            for by, order in rankings(bench, row, query, pattern, learned):
                found.add(f"{by} alone", truth, truth.after(order, 1), 0)
                for budget, (best, count) in replayed(order, costs, query.default).items():
                    found.add(f"{by} + hardware {budget:g} s", truth, best, count)
            errors += _errors(query, truth)
            compiled: set[Any] = set()
            exhaustive.append(sum(costs.of(config, compiled) for config in truth.times))
            steps = walks.setdefault(query.space.size(), SpaceSteps(query.space))
            for seed in SEEDS:
                drawn = list(truth.times)
                drawn = [drawn[i] for i in np.random.default_rng(seed).permutation(len(drawn))]
                for budget, (best, count) in replayed(drawn, costs, query.default).items():
                    found.add(f"hardware {budget:g} s, by chance", truth, best, count)
                for budget in BUDGETS:
                    best, count = truth.best_s, float(len(truth.times))
                    if budget < exhaustive[-1]:  # else there is time for everything
                        best, count = walked(steps, costs, query.default, budget, seed)
                    found.add(f"hardware {budget:g} s, annealing", truth, best, count)
            sys.stderr.write(f"{bench.op} {name}\n")
    return {
        "op": str(bench.op),
        "instance": bench.instance,
        "matrices": len(exhaustive),
        "families": len({bench.evidence.groups[row] for row in kept}),
        "configurations": len(bench.evidence.configs),
        "exhaustive_s": {
            "median": round(float(np.median(exhaustive)), 1),
            "max": round(max(exhaustive), 1),
        },
        "mape_of_neighbours": round(100 * float(np.mean(errors)), 1),
        "methods": found.rows(),
    }


def _truth_and_costs(bench: Bench, row: int, constants: Any, db: Any) -> tuple[Truth, Costs]:
    truth = bench.truth(row)
    pattern_id = bench.evidence.rows[row].pattern_id
    conversion = {
        run.config: run.measurement.conversion_s or 0.0
        for run in db.store.runs(bench.instance, bench.op, pattern_id)
    }
    return truth, Costs(bench.op, constants, truth, conversion)


def _errors(query: Query, truth: Truth) -> list[float]:
    """|promised - measured| / measured of every configuration, from the default's measured time."""
    found = []
    for candidate in NeighbourVote(query).candidates():
        seconds = truth.times.get(Config(candidate.config), math.inf)
        if math.isfinite(seconds) and seconds >= LEAST_S and candidate.expected_gain:
            found.append(abs(truth.default_s / candidate.expected_gain - seconds) / seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("constants", type=Path)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--limit", type=int, default=0, help="so many matrices, by chance")
    parser.add_argument("--learned", nargs="+", default=[], choices=sorted(learned_rankers()))
    asked = parser.parse_args()
    with (asked.matrices / "MANIFEST.csv").open(newline="", encoding="utf-8") as lines:
        files = {row["name"]: asked.matrices / row["file"] for row in csv.DictReader(lines)}
    constants = json.loads(asked.constants.read_text(encoding="utf-8"))
    rows = []
    with Database.open(asked.database, readonly=True) as db:
        for text in asked.op or ["spmm:128", "spmv", "spmm:32", "sddmm:128"]:
            op = Op.parse(text)
            evidence, _ = db.index.evidence(op, "cpu")
            names = [row.platform for row in evidence.rows]
            instance = max(set(names), key=names.count)
            bench = Bench(db.index, op, "cpu", complete=True, instance=instance)
            rows.append(judged(bench, asked, files, constants, db))
            print(json.dumps(rows[-1]), file=sys.stderr)
    head = {"machine": about(), "costs": constants["ops"], "folds": FOLDS, "seeds": len(SEEDS)}
    print(json.dumps({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
