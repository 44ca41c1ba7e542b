"""What a finite number of calls does to answers: the default, averages, neighbours and cost models.

    python benchmarks/calls_cpu.py DATABASE > benchmarks/results/calls_cpu.json

DATABASE is the starter database. Whole matrix families are held out, 5 folds, one seed. Boosted
trees learn anew in every fold; how much they count against the vote is chosen on the other folds,
at calls without end. A configuration costs its seconds per call and its part of the preparation,
and so does the optimum: `of_optimum@1` of 0.9 is a total that the best of the measured
configurations needs nine tenths of. Methods:

    default               the platform's
    static-best           the best mean gain at that number of calls
    transfer              neighbours, whose gains have the preparation in them
    rank, without price   the cost model as if preparation were free
    rank                  the cost model with the predicted preparation
    transfer+rank         neighbours and that, joined
    rank, told the price  the same with what preparation really took: what its prediction costs

`ratio` says how well preparation itself was predicted: the root mean square error of its natural
logarithm by neighbours, and by the average over all matrices.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.preparation.table import PreparationCost
from embeddb.ranking.build import with_evidence
from embeddb.ranking.prediction import shared_out
from embeddb.ranking.query import Query
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Outcome, Truth, judge, summarise
from tuners.evaluation.fit import Scorer
from tuners.evaluation.learned import Seen, best_weight
from tuners.evaluation.learned_rankers import learned_rankers
from tuners.ranking import RankTuner, StaticBestTuner, TransferRankTuner, TransferTuner

OPS = ("spmm:32", "sddmm:128", "spmv")
CALLS = (1.0, 10.0, 100.0, 1000.0, math.inf)
_FOLDS, _K = 5, 5
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Price:
    """Preparation as it was, in calls of the default; stands in for `PreparationCost`."""

    known: Mapping[Config, float]
    spread: float = 0.0

    def of(self, configs: tuple[Config, ...]) -> Floats:
        return np.array([self.known.get(config, 0.0) for config in configs])


@dataclass(frozen=True, slots=True)
class Held:
    """A matrix held out: its row, the question at each number of calls, what the model says."""

    row: int
    queries: Mapping[float, Query]
    gain: Floats
    spread: Floats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database", type=Path)
    parser.add_argument("--op", action="append", help="only these")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    with Database.open(asked.database, readonly=True) as db:
        for op in asked.op or OPS:
            started = time.perf_counter()
            found, ratios[op] = judged(Bench(db.index, Op.parse(op), "cpu"))
            rows += found
            print(f"{op}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    print(json.dumps({"about": about(), "rows": rows, "ratio": ratios}, indent=1))


def judged(bench: Bench) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows by calls and method of one op, and how well preparation was predicted."""
    folds = [list(held_out(bench, train, test)) for train, test in bench.folds(_FOLDS, 0)]
    done: dict[tuple[float, str], list[Outcome]] = defaultdict(list)
    for at, fold in enumerate(folds):
        weight = best_weight(
            [seen(bench, h) for n, other in enumerate(folds) if n != at for h in other]
        )
        for held in fold:
            for calls, method, outcome in answers(bench, held, weight):
                done[calls, method].append(outcome)
    rows = []
    for (calls, method), outcomes in sorted(done.items(), key=lambda item: item[0][0]):
        figures, _ = summarise([outcomes])
        told = ("of_optimum@1", "of_optimum@5", "speedup@1", "slower_than_default")
        rows.append(
            {
                "op": str(bench.op),
                "calls": calls if math.isfinite(calls) else None,
                "method": method,
                "matrices": len(outcomes),
                **{name: figures[name] for name in told},
            }
        )
    return rows, ratio_errors(bench, [held for fold in folds for held in fold])


def held_out(bench: Bench, train: NDArray[np.int64], test: NDArray[np.int64]) -> Iterator[Held]:
    known = bench.evidence.take(train).pruned()
    facts = {i: p.environment for i, p in bench.platforms.items()}
    partition = AnswerIndex.build(known, bench.vectors, scope=bench.scope, facts=facts)
    scorer: Scorer = bench.learned(learned_rankers()["boosted"], train)
    for row in map(int, test):
        vector = bench.raw(row)
        queries = {calls: asked(bench, row, partition, calls) for calls in CALLS}
        query = queries[math.inf]
        if vector is not None and query.vote.configs and query.default in query.vote.configs:
            info = query.pattern
            sizes = info.m, info.n, info.nnz
            gain, spread = scorer.score(vector, query.platform, query.op, query.vote.configs, sizes)
            guard = getattr(scorer, "guard", 0.0)
            priced = {
                c: replace(q, prediction=replace(q.prediction, guard=guard))
                for c, q in queries.items()
            }
            yield Held(row, priced, gain - gain[query.vote.configs.index(query.default)], spread)


def asked(bench: Bench, row: int, partition: AnswerIndex, calls: float) -> Query:
    bare = called(bench.query(row, partition), calls)
    vector = bench.vectors[partition.featurizer].get(bench.evidence.rows[row].pattern_id)
    return with_evidence(bare, partition, vector)


def called(query: Query, calls: float) -> Query:
    return replace(query, calls=calls)


def predicted(query: Query, held: Held) -> Query:
    gain, spread = shared_out(query, query.vote.configs, held.gain, held.spread)
    return replace(
        query,
        prediction=replace(query.prediction, configs=query.vote.configs, gain=gain, spread=spread),
    )


def seen(bench: Bench, held: Held) -> Seen:
    return Seen(predicted(held.queries[math.inf], held), bench.truth(held.row))


def answers(bench: Bench, held: Held, weight: float) -> Iterator[tuple[float, str, Outcome]]:
    rng = np.random.default_rng(0)
    for calls, plain in held.queries.items():
        truth = total(bench, held.row, calls)
        query = predicted(plain, held)
        query = replace(query, prediction=replace(query.prediction, weight=weight))
        free = predicted(called(plain, math.inf), held)
        price: Any = Price(really(bench, held.row))
        priced = replace(plain, vote=replace(plain.vote, preparation=price))
        tuners = {
            "static-best": StaticBestTuner(query, rng=rng),
            "transfer": TransferTuner(query, rng=rng),
            "rank, without price": RankTuner(free, rng=rng),
            "rank": RankTuner(query, rng=rng),
            "transfer+rank": TransferRankTuner(query, rng=rng),
            "rank, told the price": RankTuner(predicted(priced, held), rng=rng),
        }
        yield calls, "default", judge(truth, [query.default])
        for method, tuner in tuners.items():
            yield calls, method, judge(truth, [Config(c.config) for c in tuner.ask(_K)])


def total(bench: Bench, row: int, calls: float) -> Truth:
    """Seconds per call with the preparation shared out."""
    e, plain = bench.evidence, bench.truth(row)
    runs = e.row(row)
    entries = zip(runs.column, runs.conversion, strict=True)
    extra = {e.configs[c]: float(s) / calls for c, s in entries}
    times = {config: s + extra[config] for config, s in plain.times.items()}
    return Truth(times, times[bench.default(row)])


def really(bench: Bench, row: int) -> dict[Config, float]:
    """Conversion seconds over the default's of what was measured on a row."""
    e = bench.evidence
    runs = e.row(row)
    ratios = runs.conversion / e.default_s[row]
    return {e.configs[c]: float(r) for c, r in zip(runs.column, ratios, strict=True)}


def ratio_errors(bench: Bench, held: list[Held]) -> dict[str, float]:
    near, usual = [], []
    every: dict[Config, list[float]] = defaultdict(list)
    for h in held:
        for config, ratio in really(bench, h.row).items():
            every[config].append(math.log(ratio) if ratio > 0 else math.nan)
    mean = {c: float(np.nanmean(v)) for c, v in every.items() if np.isfinite(v).any()}
    for h in held:
        cost: PreparationCost | None = h.queries[math.inf].vote.preparation
        told = {c: r for c, r in really(bench, h.row).items() if r > 0}
        if cost is None or not told:
            continue
        logs = np.log(list(told.values()))
        with np.errstate(divide="ignore"):
            off = np.log(cost.of(tuple(told))) - logs
        near += off[np.isfinite(off)].tolist()
        usual += (np.array([mean[c] for c in told]) - logs).tolist()
    return {"neighbours": _rms(near), "average": _rms(usual), "entries": len(near)}


def _rms(values: list[float]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


if __name__ == "__main__":
    main()
