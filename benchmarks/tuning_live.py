"""Whether what `benchmarks/tuning_replay.py` says of tuning by seconds comes true on the machine.

    python benchmarks/tuning_live.py rank DATABASE MATRICES ranked.json
    chrt -r 1 python benchmarks/tuning_live.py run ranked.json MATRICES CONSTANTS \\
        > benchmarks/results/tuning_live.json

Eight matrices with complete grids of SpMM, K = 128, of eight families, which the neighbours that
rank do not have. `rank` also compiles every kernel; in `run` searches are charged for kernels by
CONSTANTS and for all else by the clock. Two searches of 30 seconds a matrix: in the neighbours'
order, and annealing from the default; what was fastest after 10 and after 30 seconds runs again, in
five interleaved rounds beside the default and what was fastest in the recorded runs. `replayed` are
the same searches on recorded times.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tuning_replay as replay
from held_out import HeldOut
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.timing import timings_of
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.platforms.of_subject import space_of
from embeddb.platforms.platform import load_platform, platform_here, runner_for
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from tuners.evaluation.figures import Truth
from tuners.search import Annealer, SpaceSteps, anneal
from tuners.tune_matrix import MatrixTuneRequest

OP = Op("spmm", 128)
BUDGETS = (10.0, 30.0)
COUNT, ROUNDS = 8, 5
#: Of the configurations of a complete grid, at least so many ran.
GRID = 600


def rank(asked: Any) -> None:
    with (asked.matrices / "MANIFEST.csv").open(newline="", encoding="utf-8") as lines:
        listed = {row["name"]: row for row in csv.DictReader(lines)}
    runner = runner_for(load_platform("cpu"))
    here = platform_here(runner, threads=0)
    with Database.open(asked.database, readonly=True) as db:
        chosen: dict[str, tuple[str, dict[Config, Any]]] = {}
        infos = sorted(db.store.patterns(), key=lambda info: info.id)
        for info in infos:
            if info.group in chosen or info.name not in listed or len(chosen) == COUNT:
                continue
            times = timings_of(db.store.runs(here.id, OP, info.id))
            if len(times) >= GRID:
                chosen[info.group] = info.name, times
        known = HeldOut(db, here, set(chosen), [OP])
        found = {"platform": here.id, "matrices": {}}
        for name, times in chosen.values():
            pattern = read_pattern(asked.matrices / listed[name]["file"], name=name)
            query = known.query(pattern, OP)
            found["matrices"][name] = {
                "file": listed[name]["file"],
                "default": dict(query.default),
                "order": [c.config for c in NeighbourVote(query).candidates()],
                "times": [[dict(c), t.seconds, t.conversion_s] for c, t in times.items()],
            }
    asked.ranked.write_text(json.dumps(found), encoding="utf-8")
    runner.prepare(OP, [*space_of(here, OP, pattern).enumerate()])


class Live:
    """One search of one matrix: what ran, and the best by the seconds that were spent."""

    def __init__(self, runner: Any, pattern: Pattern, costs: replay.Costs) -> None:
        self.runner, self.pattern, self.costs = runner, pattern, costs
        self.spent, self.compiled = 0.0, set[Any]()
        self.seconds: dict[Config, float] = {}
        self.best: dict[float, Config] = {}

    def run(self, config: Config) -> float:
        """Seconds; the best of each budget is that before it was overdrawn."""
        begun = time.perf_counter()
        options = MatrixTuneRequest().options
        [(_, found)] = self.runner.run(self.pattern, OP, [config], options=options)
        self.spent += time.perf_counter() - begun + self.compiling(config)
        self.seconds[config] = found.seconds
        for budget in BUDGETS:
            if self.spent < budget or budget not in self.best:
                self.best[budget] = min(self.seconds, key=self.seconds.__getitem__)
        return found.seconds

    def compiling(self, config: Config) -> float:
        before = len(self.compiled)
        self.costs.of(config, self.compiled)
        return self.costs.compile_s if len(self.compiled) > before else 0.0

    @property
    def over(self) -> bool:
        return self.spent >= max(BUDGETS)


def judged(runner: Any, pattern: Pattern, told: Any, constants: Any) -> Any:
    times = {Config(c): math.inf if s is None else s for c, s, _ in told["times"]}
    default, order = Config(told["default"]), [Config(c) for c in told["order"]]
    truth = Truth(times, times[default])
    costs = replay.Costs(OP, constants, truth, {Config(c): s for c, _, s in told["times"]})
    runner.prepare(OP, [default])
    ranked, walk = (Live(runner, pattern, costs) for _ in range(2))
    for config in dict.fromkeys([default, *order]):
        if ranked.over:
            break
        if config in times:
            ranked.run(config)
    space = space_of(load_platform("cpu"), OP, pattern)
    annealer = Annealer(SpaceSteps(space), default, rng=np.random.default_rng(0))
    for _ in anneal(
        annealer,
        lambda c: walk.run(c) if c in times else math.inf,
        lambda: walk.spent,
        max(BUDGETS),
    ):
        pass
    best = min(times, key=times.__getitem__)
    winners = {("neighbours", b): c for b, c in ranked.best.items()}
    winners |= {("annealing", b): c for b, c in walk.best.items()}
    asked = list(dict.fromkeys([default, best, *winners.values()]))
    rounds: dict[Config, list[float]] = {config: [] for config in asked}
    for number in range(ROUNDS):
        turn = [asked[i] for i in np.random.default_rng(number).permutation(len(asked))]
        for config, m in runner.run(pattern, OP, turn, options=MatrixTuneRequest().options):
            rounds[config].append(m.seconds)
    again = {config: statistics.median(held) for config, held in rounds.items()}
    return {
        "matrix": pattern.name,
        "nonzeros": pattern.nnz,
        "gain": {f"{by} {b:g} s": again[default] / again[c] for (by, b), c in winners.items()},
        "gain_of_recorded_best": again[default] / again[best],
        "replayed": _replayed(truth, costs, default, order, SpaceSteps(space)),
        "recorded_gain_of_best": truth.default_s / truth.best_s,
        "default_ms": {"recorded": 1e3 * truth.default_s, "now": 1e3 * again[default]},
        "runs": {"neighbours": len(ranked.seconds), "annealing": len(walk.seconds)},
        "agreement": _agreement(times, ranked.seconds | walk.seconds),
    }


def _replayed(
    truth: Truth, costs: replay.Costs, default: Config, order: Any, steps: SpaceSteps
) -> dict[str, float]:
    """Gains over the default of the same searches on recorded times."""
    replay.BUDGETS = BUDGETS
    found = {}
    for budget, (best, _) in replay.replayed(order, costs, default).items():
        found[f"neighbours {budget:g} s"] = truth.default_s / best
    for budget in BUDGETS:
        best, _ = replay.walked(steps, costs, default, budget, 0)
        found[f"annealing {budget:g} s"] = truth.default_s / best
    return found


def _agreement(times: dict[Config, float], now: dict[Config, float]) -> dict[str, float]:
    """Of recorded and present seconds of all that ran in both: rank correlation, median ratio."""
    from scipy.stats import spearmanr

    both = [(times[c], s) for c, s in now.items() if math.isfinite(times[c]) and math.isfinite(s)]
    recorded, present = (np.array(part) for part in zip(*both, strict=True))
    return {
        "configurations": len(both),
        "spearman": round(float(spearmanr(recorded, present).statistic), 4),
        "median_ratio": round(float(np.median(present / recorded)), 4),
    }


def run(asked: Any) -> None:
    told = json.loads(asked.ranked.read_text(encoding="utf-8"))
    constants = json.loads(asked.constants.read_text(encoding="utf-8"))
    runner, rows = runner_for(load_platform("cpu")), []
    for name, one in told["matrices"].items():
        pattern = read_pattern(asked.matrices / one["file"], name=name)
        rows.append(judged(runner, pattern, one, constants))
        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    names = list(rows[0]["gain"])
    means = {
        part: {n: round(statistics.geometric_mean([r[part][n] for r in rows]), 4) for n in names}
        for part in ("gain", "replayed")
    }
    print(
        json.dumps(
            {
                "machine": about(),
                "platform": told["platform"],
                "geometric_mean": means,
                "rows": rows,
            },
            indent=1,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    first = verbs.add_parser("rank")
    for name in ("database", "matrices", "ranked"):
        first.add_argument(name, type=Path)
    first.set_defaults(do=rank)
    then = verbs.add_parser("run")
    for name in ("ranked", "matrices", "constants"):
        then.add_argument(name, type=Path)
    then.set_defaults(do=run)
    asked = parser.parse_args()
    asked.do(asked)


if __name__ == "__main__":
    main()
