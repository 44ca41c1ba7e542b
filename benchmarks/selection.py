"""Which samples to buy: the strategies replayed on complete grids, whole families held out.

    python benchmarks/selection.py DATABASE OP SCOPE RUNS.jsonl > benchmarks/results/selection.json

DATABASE has (nearly) every configuration of OP on every matrix, measured on the platform SCOPE.
For every strategy, seed and fold: buy `--budget` samples of the fold's other matrices, train, and
judge the order it gives on the matrices held out. `--model additive` is the strategies' own signal
(an effect of each parameter's value, the same for all matrices); `costmodel` trains boosted trees,
the cost model for few samples, on what was bought, told by `--start MODEL` if one is given.
`--judge costmodel` also gives EA and MAB their rewards by a cost model, trained after each round,
instead of the additive one. A strategy is named as for `campaign plan`, or with another number of
matrices, as `kmeans:5`.

RUNS.jsonl gets a line for every strategy, seed and fold; those it has are not done again. The
result: per strategy the geometric mean share of the optimum that the best of the first 1 and 5
reach, over all matrices held out, with the spread over seeds; samples used, and hands needed
(matrices that somebody has to get and set up).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about, spread
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.timing import Timing
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.run_matrix import join
from indexer.campaign.budget.sampler import (
    Pool,
    Sampler,
    Scorer,
    Told,
    additive,
    by_halves,
    ordered_pairs,
)
from indexer.campaign.budget.samplers import STRATEGIES, clusters_of, strategy
from indexer.training.cost_model.samples import from_evidence
from indexer.training.cost_model.train import forest, train
from tuners.evaluation.bench import Bench, split_groups

_FIRST = (1, 5)


class Board:
    """The grids, and what one fold needs of them; `budget` samples may be bought."""

    def __init__(self, bench: Bench, featurizer: str, start: CostModel | None) -> None:
        self.bench, self.start = bench, start
        self.evidence = bench.evidence.take(bench.counted)
        self.sizes = np.array(
            [(i.m, i.n, i.nnz) for i in (bench.infos[r.pattern_id] for r in self.evidence.rows)]
        )
        self.own = bench.vectors[featurizer]
        self.vectors = np.stack([self.own[r.pattern_id] for r in self.evidence.rows])
        self.seconds = np.stack([self.evidence.times(i) for i in range(len(self.evidence.rows))])
        self.place = {config: at for at, config in enumerate(self.evidence.configs)}
        self.platform = next(iter(bench.platforms.values()))

    def buy(
        self, name: str, rows: NDArray[np.int64], asked: argparse.Namespace, seed: int
    ) -> Sampler:
        """All samples that a strategy buys of the matrices in rows int64[t]."""
        known, _, most = name.partition(":")
        chosen = strategy(known)
        count = int(most) if most else chosen.most
        clusters = clusters_of(self.vectors[rows], chosen.clusters(count), seed)
        pool = Pool(self.sizes[rows], clusters, lambda at: self._configs(int(rows[at]), seed))
        buyer = Sampler(chosen.policy(count), pool, asked.budget, seed)
        if asked.judge == "costmodel":
            buyer.reward = by_halves(lambda told: self.model(told, rows, seed))
        while points := buyer.ask(asked.budget):
            found = [self.seconds[rows[p.matrix], self.place[p.config]] for p in points]
            buyer.tell(list(zip(points, found, strict=True)))
        return buyer

    def _configs(self, row: int, seed: int) -> Sequence[Config]:
        """What ran on a matrix, the default first, the others in an order of their own."""
        order = np.random.default_rng([seed, row]).permutation(len(self.evidence.configs))
        ran = [at for at in order if not np.isnan(self.seconds[row, at])]
        default = self.evidence.default_s[row]
        first = int(np.nanargmin(np.abs(self.seconds[row] - default)))
        return [self.evidence.configs[at] for at in dict.fromkeys([first, *ran])]

    def model(self, told: Sequence[Told], rows: NDArray[np.int64], seed: int) -> Scorer:
        """A cost model of what was told of the matrices in rows; the additive one where that is
        too little to train on."""
        held: dict[int, dict[Config, Timing]] = {}
        for one in told:
            status = "ok" if math.isfinite(one.seconds) else "invalid"
            curve = Timing(one.seconds, 0.0, 0.0, 1, status)
            held.setdefault(int(rows[one.matrix]), {})[one.config] = curve
        evidence = join(
            self.bench.op,
            [(self.evidence.rows[row], self._configs(row, seed)[0], c) for row, c in held.items()],
        )
        parts = (self.own, self.bench.infos, self.platform, self.bench.op)
        try:
            made = train(from_evidence(evidence, *parts), forest(seed=seed), start=self.start)
        except UsageError:
            return additive(told)

        def score(at: int, configs: Sequence[Config]) -> NDArray[np.float64]:
            m, n, nnz = (int(size) for size in self.sizes[rows[at]])
            vector = self.vectors[rows[at]]
            gain, _ = made.score(vector, self.platform, self.bench.op, configs, sizes=(m, n, nnz))
            return gain

        return score

    def judged(self, scorer: Scorer, row: int, at: int) -> dict[str, float]:
        """Shares of the optimum and ordered pair accuracy on a matrix that is held out."""
        ran = np.flatnonzero(~np.isnan(self.seconds[row]))
        seconds = self.seconds[row, ran]
        scores = scorer(at, [self.evidence.configs[i] for i in ran])
        order = np.argsort(-scores, kind="stable")
        best = seconds.min()
        # What fails is followed by the default: that is what trying it costs.
        tried = np.where(np.isfinite(seconds), seconds, self.evidence.default_s[row])
        found = {f"of_optimum@{k}": float(best / tried[order[:k]].min()) for k in _FIRST}
        return found | {"opa": ordered_pairs(scores, seconds) or 0.5}


def runs(board: Board, asked: argparse.Namespace, have: set[str]) -> Iterator[dict[str, Any]]:
    """One record per strategy, seed and fold that is not there yet."""
    for seed in range(asked.seeds):
        parts = split_groups(board.evidence.groups, asked.folds, seed)
        for fold in range(asked.folds):
            test, rows = np.flatnonzero(parts == fold), np.flatnonzero(parts != fold)
            for name in asked.strategies:
                model = asked.model + (f"+{asked.start.stem}" if asked.start else "")
                kind = f"{asked.op}/{name}/{model}/{asked.judge}/{asked.budget}"
                key = f"{kind}/{seed}/{fold}"
                if key in have or not len(test):
                    continue
                began = time.monotonic()
                buyer = board.buy(name, rows, asked, seed)
                told = [
                    Told(s.matrix, Config(c), o if isinstance(o, float) else math.inf)
                    for r in buyer.rounds
                    for s in r.shares
                    for c, o in zip(s.configs, s.outcomes, strict=True)
                ]
                bought_s = time.monotonic() - began
                every = np.concatenate([rows, test])
                model = (
                    board.model if asked.model == "costmodel" else lambda told, *_: additive(told)
                )
                scorer = model(told, every, seed)
                figures = [board.judged(scorer, int(r), len(rows) + i) for i, r in enumerate(test)]
                yield {
                    "key": key,
                    "strategy": name,
                    "seed": seed,
                    "samples": buyer.spent,
                    "matrices": len({one.matrix for one in told}),
                    "rounds": len(buyer.rounds),
                    "bought_s": bought_s,
                    "trained_s": time.monotonic() - began - bought_s,
                    **{name: [f[name] for f in figures] for name in figures[0]},
                }


def _additive(told: Sequence[Told], rows: NDArray[np.int64], seed: int) -> Scorer:
    return additive(told)


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per op, strategy, model, judge and budget."""
    found = []
    kinds = dict.fromkeys(line["key"].rsplit("/", 2)[0] for line in lines)
    for kind in kinds:
        op, name, model, judge, budget = kind.split("/")
        mine = [line for line in lines if line["key"].rsplit("/", 2)[0] == kind]
        row = {"op": op, "strategy": name, "model": model, "judge": judge, "budget": int(budget)}
        for figure in ("of_optimum@1", "of_optimum@5", "opa"):
            by_seed: dict[int, list[float]] = {}
            for line in mine:
                by_seed.setdefault(line["seed"], []).extend(line[figure])
            mean = np.mean if figure == "opa" else lambda x: np.exp(np.mean(np.log(x)))
            row[figure] = spread([float(mean(values)) for values in by_seed.values()])
        for count in ("samples", "matrices", "rounds", "bought_s", "trained_s"):
            row[count] = spread([line[count] for line in mine])
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database", type=Path)
    parser.add_argument("op", type=Op.parse)
    parser.add_argument("scope")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--model", choices=("additive", "costmodel"), default="costmodel")
    parser.add_argument("--judge", choices=("additive", "costmodel"), default="additive")
    parser.add_argument("--featurizer", default="stats")
    parser.add_argument("--start", type=Path)
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    asked = parser.parse_args()
    lines = []
    if asked.runs.exists():
        raw = asked.runs.read_text(encoding="utf-8")
        whole = raw[: raw.rfind("\n") + 1]  # a line cut by a kill is done again
        asked.runs.write_text(whole, encoding="utf-8")
        lines = [json.loads(line) for line in whole.splitlines()]
    start = CostModel.load(asked.start) if asked.start else None
    with Database.open(asked.database, readonly=True) as db:
        board = Board(
            Bench(db.index, asked.op, asked.scope, complete=True), asked.featurizer, start
        )
    with asked.runs.open("a", encoding="utf-8") as out:
        for line in runs(board, asked, {line["key"] for line in lines}):
            out.write(json.dumps(line) + "\n")
            out.flush()
            lines.append(line)
            print(line["key"], f"{line['trained_s']:.1f} s", file=sys.stderr)
    print(json.dumps({"about": about(), "rows": summary(lines)}, indent=1))


if __name__ == "__main__":
    main()
