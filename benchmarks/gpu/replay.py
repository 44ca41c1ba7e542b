"""How good the starter's answers for platform `cuda` are, families held out, by replay.

    replay.py DB RESULTS OUT.json [OP…]

RESULTS is the folder with the seconds of cuSPARSE's algorithms. Beside the answers stand the
default, the best fixed configuration, plain neighbours, stock extremely randomised trees
(scikit-learn's defaults, on the same statistics and one column per parameter value; where it is
installed) and the oracle; `exact` leaves configurations of reduced precision out for all of them.
`trees` are those of `embeddb train costmodel --predictor trees`, learned in each fold, `with trees`
the answers by their mean with the neighbours' vote. Every configuration ran on the matrix that is
asked about.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from csv import DictReader
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import PlainNeighbours
from tuners.evaluation.learned import Seen, outcome_of, seen_by
from tuners.evaluation.learned_rankers import learned_rankers
from tuners.ranking import StaticBestTuner

OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
FOLDS, COUNT = 5, 5
Rank = Callable[[NDArray[np.float32]], list[Config]]


def main(place: str, results: Path, out: Path, ops: Sequence[str]) -> None:
    library = library_seconds(results)
    done: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    with Database.open(place, readonly=True) as db:
        for op in ops:
            started = time.process_time()
            bench = Bench(db.index, Op.parse(op), "cuda")
            done[op] = figures(bench, {m: s for (o, m), s in library.items() if o == op})
            done[op]["cpu_s"] = round(time.process_time() - started, 1)
            out.write_text(json.dumps(done, indent=1) + "\n")
            print(op, json.dumps(done[op]["methods"]["answers"]), flush=True)


def library_seconds(results: Path) -> dict[tuple[str, str], float]:
    """Seconds of cuSPARSE's fastest algorithm of the last session, by operation and matrix."""
    last: dict[tuple[str, str, str], float] = {}
    with lzma.open(results / "cusparse.csv.xz", "rt", newline="") as f:
        for row in sorted(DictReader(f), key=lambda row: row["session"]):
            last[row["op"], row["matrix"], row["algorithm"]] = float(row["time_us"]) / 1e6
    best: dict[tuple[str, str], float] = {}
    for (op, matrix, _), seconds in last.items():
        best[op, matrix] = min(seconds, best.get((op, matrix), math.inf))
    return best


def figures(bench: Bench, library: dict[str, float]) -> dict[str, Any]:
    logs: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    kernel = next(iter(bench.platforms.values())).kernel(bench.op)
    for train, test in bench.folds(FOLDS, 0):
        known = bench.evidence.take(train).pruned()
        vectors = next(iter(bench.unlearned.values()))
        plain = PlainNeighbours(known, vectors)
        trees = ExtraTrees(known, vectors) if find_spec("sklearn") else None
        for row, query in bench.queries_of(train, test):
            truth, name = bench.truth(row), query.pattern.name
            exact = {c for c in truth.times if kernel.is_exact(c)}
            vector = vectors[query.pattern.id]
            for suffix, able in (("", set(truth.times)), (", exact", exact)):
                best = min(truth.times[c] for c in able)
                for method, order in proposals(query, able, vector, plain, trees, truth.times):
                    one, five = truth.after(order, 1), truth.after(order, COUNT)
                    over = library[name] / one
                    logs[method + suffix].append(
                        (best / one, best / five, truth.default_s / one, over)
                    )
        scorer = bench.learned(learned_rankers()["boosted"], train)
        for seen in seen_by(bench, scorer, train, test):
            for method, figures_of in by_trees(seen, kernel.is_exact):
                one, five, best = figures_of
                over = library[seen.query.pattern.name] * one / best
                logs[method].append((one, five, seen.truth.default_s * one / best, over))
    return {
        "matrices": len(logs["default"]),
        "configurations": bench.tried,
        "methods": {method: summary(np.array(values)) for method, values in logs.items()},
    }


def by_trees(
    seen: Seen, is_exact: Callable[[Config], bool]
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Shares of the optimum at 1 and at 5 by the trees, alone and with the vote, and the seconds of
    the optimum."""
    times = seen.truth.times
    exact = {config: seconds for config, seconds in times.items() if is_exact(config)}
    for suffix, able in (("", times), (", exact", exact)):
        part = replace(seen, truth=replace(seen.truth, times=able))
        for method, weight in (("trees", 1.0), ("with trees", 0.5)):
            outcome = outcome_of(part, weight)
            best = min(able.values())
            one, five = math.exp(outcome.of_optimum_1), math.exp(outcome.of_optimum_5)
            yield method + suffix, (one, five, best)


def proposals(
    query: Query,
    able: set[Config],
    vector: NDArray[np.float32],
    plain: PlainNeighbours,
    trees: ExtraTrees | None,
    times: Any,
) -> Iterator[tuple[str, list[Config]]]:
    """Proposals of each method among the configurations that may be used, best first."""
    rng = np.random.default_rng(0)
    yield "default", [query.default]
    static = StaticBestTuner(query, rng=rng).ask(len(times))
    yield "static best", [c for one in static if (c := Config(one.config)) in able]
    order = np.argsort(-plain.vote(vector), kind="stable")
    yield "plain neighbours", [plain.configs[i] for i in order if plain.configs[i] in able]
    if trees is not None:
        yield "extra trees", [c for c in trees.ranked(vector) if c in able]
    ranked = answer(query, len(times)).candidates
    yield "answers", [c for one in ranked if (c := Config(one.config)) in able]
    yield "oracle", sorted(able, key=lambda c: times[c])


class ExtraTrees:
    """scikit-learn's trees with their defaults: statistics and parameters to the log of the gain
    over the default."""

    def __init__(self, evidence: Any, vectors: Any) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        self.configs = evidence.configs
        values = sorted({item for c in self.configs for item in c.items()}, key=str)
        columns = [[c.get(name) == value for name, value in values] for c in self.configs]
        self.encoded = np.array(columns, dtype=np.float32)
        gains = evidence.gains(np.arange(len(evidence.rows)))
        rows, at = np.nonzero(np.isfinite(gains))
        raw = np.array([vectors[row.pattern_id] for row in evidence.rows], dtype=np.float32)
        self.model = ExtraTreesRegressor(random_state=0)
        self.model.fit(np.hstack([raw[rows], self.encoded[at]]), gains[rows, at])

    def ranked(self, vector: NDArray[np.float32]) -> list[Config]:
        same = np.repeat(vector[None, :], len(self.configs), axis=0)
        gains = self.model.predict(np.hstack([same, self.encoded]))
        return [self.configs[at] for at in np.argsort(-gains, kind="stable")]


def summary(values: NDArray[np.float64]) -> dict[str, float]:
    """Geometric means over matrices. Shapes: float64[matrices, 4]."""
    at_1, at_5, gain, over = np.exp(np.mean(np.log(values), axis=0))
    return {
        "of_optimum_1": round(float(at_1), 4),
        "of_optimum_5": round(float(at_5), 4),
        "p10_1": round(float(np.quantile(values[:, 0], 0.1)), 4),
        "over_default": round(float(gain), 3),
        "over_cusparse": round(float(over), 3),
        "slower_than_cusparse": round(float(np.mean(values[:, 3] < 0.99)), 4),
        "slower_by_5_percent": round(float(np.mean(values[:, 3] < 0.95)), 4),
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] or OPS)
