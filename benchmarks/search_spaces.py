"""Search guided by a cost model: how much of the best prediction it finds, and what that is worth.

    python benchmarks/search_spaces.py CPU_DATABASE WACO_DATABASE PARTS \\
        > benchmarks/results/search_spaces.json

Three parts. `enumerable`: the models that ship, on matrices of CPU_DATABASE (the starter), where
all is predicted to compare with. `large`: WACO's schedules, models of WACO's three matrices that
have a structure (WACO_DATABASE is `waco.db` of transfer_targets.py), compared with the best
prediction that any search found. Both count predictions, no run. `hidden`: complete grids of SpMM
K = 32; a share of the configurations is known to the model, the others ran on no matrix it learned
from, as what a search proposes. Judged on matrices it learned from and on families held out; seeds
0, 1, 2. Each part is kept in the folder PARTS; started again it goes on with the missing ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import PatternInfo
from embeddb.core.sizes import Sizes
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.run_matrix import RunMatrix
from embeddb.ranking.prediction import with_prediction
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import behind_default, order_to_try
from embeddb.ranking.rankers.search import Predicted, anneal, graph_search
from indexer.training.cost_model.samples import Samples, samples_of
from indexer.training.cost_model.train import CostSettings, forest, train
from tuners.evaluation.splits import split_groups

_SEEDS = (0, 1, 2)
_MATRICES = 30
_BUDGETS, _LARGE = (32, 64, 128, 256), (512, 1024, 2048, 4096)
_ENUMERABLE = ("spmm:128", "sddmm:128", "spmv")
_SHARES = (0.2, 0.05)
_SHIPPED = Path(__file__).parent.parent / "embeddb/data"
#: One network, and principal components for its autoencoder: a third of the time.
_MODELS = {"network": CostSettings(latent="pca", members=1), "trees": forest()}
#: Matrices of those learned from that are judged.
_SEEN = 50
#: The first so many proposals are one answer.
_K = 5

Floats = NDArray[np.float64]
Found = dict[str, dict[int, float]]


# -- how much of the best prediction is found ------------------------------------------------------


def question(samples: Samples, row: int, model: CostModel) -> Query:
    """A query about one matrix, with what the model predicts and nothing measured."""
    whose, platform = samples.rows[row], samples.platform
    m, n, nnz = whose.sizes
    space = platform.space(whose.op, Sizes(m, n, nnz))
    default = platform.default(whose.op, Sizes(m, n, nnz))
    info = PatternInfo(id=whose.pattern_id, m=m, n=n, nnz=nnz)
    bare = Query(info, platform, whose.op, space, default)
    return with_prediction(bare, model, samples.vectors[row])


def looked_up(query: Query) -> tuple[Query, float]:
    """The query with every prediction made in advance, and the best of them."""
    assert query.prediction.predict is not None
    gain, spread = query.prediction.predict(query.prediction.configs)
    place = {config: at for at, config in enumerate(query.prediction.configs)}

    def predict(asked: Sequence[Config]) -> tuple[Floats, Floats]:
        at = [place[c] for c in asked]
        return gain[at], spread[at]

    return replace(query, prediction=replace(query.prediction, predict=predict)), float(gain.max())


def searched(query: Query, budgets: Sequence[int], seed: int) -> tuple[Found, dict[str, float]]:
    """The best predicted log gain by way and number of predictions, and by way the seconds of one
    prediction, what is around it included."""
    found: Found = {}
    each_s: dict[str, float] = {}

    def timed(way: str, search: Callable[[], tuple[dict[int, float], int]]) -> None:
        started = time.perf_counter()
        found[way], count = search()
        each_s[way] = (time.perf_counter() - started) / max(count, 1)

    walked = Predicted(query, budgets[-1])
    timed("random", lambda: _traced(_random(query, budgets[-1], seed), budgets))
    timed("graph", lambda: _traced(_walk(walked, budgets[-1], seed), budgets))
    timed("anneal", lambda: _each(query, budgets, seed, ()))
    timed("graph, then anneal", lambda: _each(query, budgets, seed, list(walked.gain)))
    each_s["graph_predictions"] = walked.count
    return found, each_s


def _random(query: Query, most: int, seed: int) -> list[float]:
    drawn = Predicted(query, most)
    drawn.of([query.default, *query.space.sample(most, rng=np.random.default_rng(seed))])
    return list(drawn.gain.values())


def _walk(seen: Predicted, most: int, seed: int) -> list[float]:
    seen.of([seen.query.default])
    graph_search(seen, rng=np.random.default_rng(seed), most=most)
    return list(seen.gain.values())


def _traced(gains: Sequence[float], budgets: Sequence[int]) -> tuple[dict[int, float], int]:
    """A walk that stops earlier is the beginning of one that does not."""
    return {b: max(gains[:b]) for b in budgets}, len(gains)


def _each(
    query: Query, budgets: Sequence[int], seed: int, walked: Sequence[Config]
) -> tuple[dict[int, float], int]:
    """Annealing with each budget, of which at most half went to a walk."""
    found, count = {}, 0
    for budget in budgets:
        seen = Predicted(query, budget)
        seen.of([query.default, *walked[: budget // 2]])
        anneal(seen, rng=np.random.default_rng([seed, 1]))
        found[budget] = max(seen.gain.values())
        count += seen.count
    return found, count


def shares(found: Sequence[tuple[Found, float]]) -> list[dict[str, Any]]:
    """Of pairs (what was found, the best): share of the best predicted speed by way and budget."""
    rows = []
    for way in found[0][0]:
        for budget in found[0][0][way]:
            lost = np.array([best - one[way][budget] for one, best in found])
            rows.append(
                {
                    "way": way,
                    "predictions": budget,
                    "share": float(np.exp(-lost.mean())),
                    "share_p5": float(np.exp(-np.quantile(lost, 0.95))),
                    "found_it": float((lost < 1e-9).mean()),
                }
            )
    return rows


def enumerable(cpu: Path) -> list[dict[str, Any]]:
    rows = []
    for name in _ENUMERABLE:
        op = Op.parse(name)
        model = CostModel.load(_SHIPPED / f"costmodel-cpu-{op.kernel}.safetensors")
        with Database.open(cpu, readonly=True) as db:
            samples = samples_of(db.index, db.platform("cpu"), [op])
        chosen = np.random.default_rng(0).permutation(len(samples.rows))[:_MATRICES]
        found, sizes = [], []
        for at in chosen.tolist():
            query, best = looked_up(question(samples, at, model))
            sizes.append(len(query.prediction.configs))
            found += [(searched(query, _BUDGETS, seed)[0], best) for seed in _SEEDS]
        told = {"op": name, "matrices": len(chosen), "configs": float(np.median(sizes))}
        rows += [{**told, **row} for row in shares(found)]
        print(name, "searched", file=sys.stderr)
    return rows


def large(waco: Path) -> dict[str, Any]:
    with Database.open(waco, readonly=True) as db:
        samples = samples_of(db.index, db.platform("waco-cpu"), [Op("spmm", 256)])
    rows, clock = [], []
    for name, settings in _MODELS.items():
        model = train(samples, settings)
        found = []
        for at in range(len(samples.rows)):
            query = question(samples, at, model)
            held = [searched(query, _LARGE, seed) for seed in _SEEDS]
            best = max(g for one, _ in held for by in one.values() for g in by.values())
            found += [(one, best) for one, _ in held]
            clock += [{"model": name, **each_s} for _, each_s in held]
        rows += [{"model": name, **row} for row in shares(found)]
        print("waco,", name, "searched", file=sys.stderr)
    ways = [way for way in clock[0] if way not in ("model", "graph_predictions")]
    costs = [
        {
            "model": name,
            **{w: 1e6 * _median(clock, name, w) for w in ways},
            "graph_predictions": _median(clock, name, "graph_predictions"),
        }
        for name in _MODELS
    ]
    return {"matrices": len(samples.rows), "rows": rows, "us_per_prediction": costs}


def _median(clock: Sequence[Mapping[str, Any]], model: str, what: str) -> float:
    return float(np.median([c[what] for c in clock if c["model"] == model]))


# -- what a configuration nobody ran is worth ------------------------------------------------------


def hidden(cpu: Path) -> list[dict[str, Any]]:
    op = Op("spmm", 32)
    with Database.open(cpu, readonly=True) as db:
        samples = samples_of(db.index, db.platform("cpu"), [op])
        evidence, _ = db.index.evidence(op, "cpu")
    held: dict[tuple[Any, ...], list[Floats]] = defaultdict(list)
    for share in _SHARES:
        for seed in _SEEDS:
            for name, settings in _MODELS.items():
                started = time.perf_counter()
                for which, table in _hide(samples, evidence, share, seed, settings):
                    held[share, name, which].append(table)
                took_s = time.perf_counter() - started
                print(f"hidden, {share}, {name}, {seed}: {took_s:.0f} s", file=sys.stderr)
    rows = []
    for (share, name, which), tables in held.items():
        rows += _told({"known": share, "model": name, "matrices": which}, tables)
    return rows


def _hide(
    samples: Samples, evidence: RunMatrix, share: float, seed: int, settings: CostSettings
) -> list[tuple[str, Floats]]:
    """What `_worth` says of matrices learned from and of families held out."""
    rng = np.random.default_rng(seed)
    known = rng.random(len(samples.configs)) < share
    known[samples.configs.index(samples.platform.default(samples.ops[0]))] = True
    held = split_groups(samples.groups, 5, seed) == 0
    apart, seen = np.flatnonzero(held), np.flatnonzero(~held)
    model = train(_only(samples, known).take(seen), replace(settings, seed=seed))
    times = {row.pattern_id: evidence.times(at) for at, row in enumerate(evidence.rows)}
    place = {c: at for at, c in enumerate(evidence.configs)}
    order = [place[c] for c in samples.configs]
    told = []
    for which, rows in (("learned from", rng.permutation(seen)[:_SEEN]), ("held out", apart)):
        each = [
            _worth(model, samples, int(at), times[samples.rows[at].pattern_id][order], known)
            for at in rows
        ]
        told.append((which, np.array(each)))
    return told


def _only(samples: Samples, known: NDArray[np.bool_]) -> Samples:
    """Without the runs of other configurations."""
    kept = known[samples.column]
    ends = np.concatenate([[0], np.cumsum(kept)])[samples.indptr].astype(np.int64)
    return replace(samples, indptr=ends, column=samples.column[kept], gain=samples.gain[kept])


#: What is answered with, and by what it is judged: columns of `_worth`, logs of the optimum's time
#: over the time of the first and of the best of five.
_ANSWERS = (
    "default",
    "known, by the model",
    "all, by the model",
    "hidden, by the model",
    "known first, then all",
    "hidden, at random",
    "known, all measured",
    "known, all measured, and 5 hidden by the model",
)


def _worth(
    model: CostModel, samples: Samples, row: int, seconds: Floats, known: NDArray[np.bool_]
) -> Floats:
    """float64[8,4] for one matrix: log shares of the optimum at 1 and 5, log gain over the default
    at 1, and how much less that is than was promised (nan: nothing was)."""
    whose = samples.rows[row]
    ran = np.flatnonzero(np.isfinite(seconds))
    configs = [samples.configs[c] for c in ran]
    told = model.score(samples.vectors[row], samples.platform, whose.op, configs, whose.sizes)
    log_s, own = np.log(seconds[ran]), known[ran]
    default = configs.index(samples.platform.default(whose.op))

    def ordered(among: NDArray[np.bool_]) -> NDArray[np.int64]:
        at = np.flatnonzero(among)
        order = at[order_to_try([configs[i] for i in at], told[0][at], told[1][at])]
        return behind_default(order, told[0], default if among[default] else -1, model.guard)

    everywhere = np.ones(len(ran), dtype=np.bool_)
    old, every, new = ordered(own), ordered(everywhere), ordered(~own)
    mixed = np.array(list(dict.fromkeys([old[0], *every.tolist()])))
    drawn = np.random.default_rng(row).permutation(np.flatnonzero(~own))
    table = [_row(log_s, order, told[0], default) for order in ([default], old, every, new, mixed)]
    table.append([*_row(log_s, drawn, told[0], default)[:3], math.nan])
    for known_s in (log_s[own].min(), min(log_s[own].min(), log_s[new[:_K]].min())):
        lost = log_s.min() - known_s
        table.append([lost, lost, log_s[default] - known_s, math.nan])
    return np.array(table)


def _row(log_s: Floats, order: Any, gain: Floats, default: int) -> list[float]:
    first, got = log_s[order[0]], log_s[default] - log_s[order[0]]
    promised = float(gain[order[0]] - gain[default])
    return [log_s.min() - first, log_s.min() - log_s[order[:_K]].min(), got, promised - got]


def _told(what: dict[str, Any], tables: Sequence[Floats]) -> list[dict[str, Any]]:
    """Rows of one setting; `against_known` is the paired difference to the known configurations by
    the model, with its standard error over matrices and seeds."""
    both = np.concatenate(tables)
    rows = []
    for at, name in enumerate(_ANSWERS):
        first, five, gain, short = both[:, at].T
        gap = np.stack([first, five], axis=1) - both[:, 1, :2]
        error = gap.std(axis=0, ddof=1) / math.sqrt(len(gap))
        by_seed = [math.exp(t[:, at, 0].mean()) for t in tables]
        rows.append(
            {
                **what,
                "answer": name,
                "judged": len(both),
                "of_optimum@1": float(np.exp(first.mean())),
                "of_optimum@5": float(np.exp(five.mean())),
                "speedup@1": float(np.exp(gain.mean())),
                "slower_than_default": float((gain < -1e-12).mean()),
                "promised_too_much": None if np.isnan(short).all() else float(short.mean()),
                "against_known@1": float(gap[:, 0].mean()),
                "error@1": float(error[0]),
                "against_known@5": float(gap[:, 1].mean()),
                "error@5": float(error[1]),
                "spread": max(by_seed) - min(by_seed),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("waco", type=Path)
    parser.add_argument("parts", type=Path)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    asked.parts.mkdir(parents=True, exist_ok=True)
    made: dict[str, Callable[[], Any]] = {
        "hidden": lambda: hidden(asked.cpu),
        "enumerable": lambda: enumerable(asked.cpu),
        "large": lambda: large(asked.waco),
    }
    result: dict[str, Any] = {"about": about(), "seeds": list(_SEEDS)}
    for name, make in made.items():
        file = asked.parts / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(make()))
        result[name] = json.loads(file.read_text())
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
