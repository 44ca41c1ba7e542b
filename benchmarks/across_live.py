"""What several databases answer on this machine, measured here: interleaved rounds, medians.

    python benchmarks/across_live.py OUT MATRICES MANIFEST LABEL=DATABASE [LABEL=DATABASE,TUNER ...]

On matrices of families that none of the databases has, the first five answers of each database, the
default and the best fixed schedule of each database are measured in three shuffled rounds, and
judged by the best of all that ran (so shares flatter where few proposals differ); what is fastest
in one round, judged by the others, is the ceiling. Every database
must know the same platform, `cpu`; answers are those of `embeddb query`, or with a TUNER those of
`--tuner`. The matrices are drawn; `--skip` leaves out the first of them, by which a rule was found,
and `--sizes` takes those with so many nonzeros, also of families that other machines ran.
With `--own DATABASE` its runs of this machine, and nothing else, give five fixed configurations and
five by a stock tree ensemble. An `--unlearned LABEL` answers without the process that queries learn
from a machine's own runs; its database has none saved.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from few_samples import levelled_gains
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.database import Database
from embeddb.index.vote import greedy_cover
from embeddb.learning.samples import samples_of
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform, load_platform, runner_for, space_of
from embeddb.ranking.answer import Request, recommend
from embeddb.ranking.recommendation import Recommendation
from indexer.runners.base import RunOptions
from tuners.by_name import answerer

_ROUNDS = 3
#: Share of a machine's matrices on which a fixed configuration ran.
_EVERYWHERE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("databases", nargs="+", metavar="LABEL=DATABASE[,TUNER]")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs=2, default=(60_000, 1_000_000))
    parser.add_argument("--own", metavar="DATABASE")
    parser.add_argument("--unlearned", metavar="LABEL", action="append", default=[])
    asked = parser.parse_args()
    named = dict(text.split("=", 1) for text in asked.databases)
    places = {label: text.partition(",") for label, text in named.items()}
    opened = {label: Database.open(of[0], readonly=True) for label, of in places.items()}
    answerers = {label: answerer(of[2]) for label, of in places.items()}
    for label in asked.unlearned:
        opened[label].index.learns = False
    ops = [Op.parse(text) for text in asked.op or ["spmm:32", "spmm:128", "spmv"]]
    drawn = _held_out(asked.matrices, asked.manifest, list(opened.values()), asked.sizes)
    patterns = drawn[asked.skip : asked.skip + asked.count]
    runner = runner_for(load_platform("cpu"))
    here = runner.platform()
    found: dict[str, Any] = {"machine": about(), "instance": here.id, "rounds": _ROUNDS}
    own = Database.open(asked.own, readonly=True) if asked.own else None
    for op in ops:
        simple = _of_own_runs(own, here, op) if own else {}
        outcomes: dict[str, list[dict[str, float]]] = defaultdict(list)
        for at, pattern in enumerate(patterns):
            made = {
                label: recommend(db.index, Request(pattern, here, op, answer_by=answerers[label]))
                for label, db in opened.items()
            }
            five = {label: choose(pattern) for label, choose in simple.items()}
            for label, outcome in _measured(runner, pattern, op, made, opened, at, five).items():
                outcomes[label].append(outcome)
            print(f"{op}: {at + 1} of {len(patterns)}", flush=True)
        found[str(op)] = {label: _figures(rows) for label, rows in outcomes.items()}
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _held_out(
    folder: Path, manifest: Path, opened: list[Database], sizes: Sequence[int]
) -> list[Pattern]:
    """One matrix of each family that no database measured on this platform's newest instance, in an
    order that is drawn."""
    with manifest.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["family"]]
    last = opened[-1]
    ids = {i for p in last.store.partitions() for i in last.store.members(p)}
    known = {info.name for info in last.store.patterns() if info.id in ids and _here(last, info.id)}
    families = {row["family"] for row in rows if row["name"] in known}
    found: dict[str, Pattern] = {}
    for row in sorted(rows, key=lambda r: r["name"]):
        file = folder / f"{row['name']}.npz"
        small, large = sizes
        fits = small <= int(row["nnz"]) <= large
        if fits and row["family"] not in families | found.keys() and file.exists():
            found[row["family"]] = read_pattern(file, name=row["name"], group=row["family"])
    order = np.random.default_rng(0).permutation(len(found))
    return [list(found.values())[i] for i in order]


def _here(db: Database, pattern_id: str) -> bool:
    here = runner_for(load_platform("cpu")).platform().id
    return any(
        pattern_id in db.store.members(p) for p in db.store.partitions() if p.platform == here
    )


def _of_own_runs(
    db: Database, here: Platform, op: Op
) -> dict[str, Callable[[Pattern], list[Config]]]:
    """Five configurations for a matrix by one machine's runs alone: fixed ones, the best on average
    first, and those that scikit-learn's extremely randomised trees predict to be fastest."""
    from sklearn.ensemble import ExtraTreesRegressor

    samples = samples_of(db.index, here, [op])
    gains = levelled_gains(samples)
    often = np.flatnonzero(np.isfinite(gains).mean(axis=0) >= _EVERYWHERE)
    first = often[np.nanmean(gains[:, often], axis=0).argmax()]
    fixed = dict.fromkeys([int(first), *map(int, often[greedy_cover(gains[:, often], 5)])])
    trees = ExtraTreesRegressor(200, min_samples_leaf=2, max_features=0.5, random_state=0)
    rows = range(len(samples.rows))
    inputs = [ConfigColumns(here, op, samples.ran(r)).on(samples.problem(r)) for r in rows]
    target = [gains[row, samples.column[samples.part(row)]] for row in rows]
    trees.fit(np.concatenate([np.hstack(one) for one in inputs]), np.concatenate(target))

    def predicted(pattern: Pattern) -> list[Config]:
        vector, lengths = db.index.vector(pattern, "stats"), db.index.lengths(pattern)
        able = [c for c in samples.configs if space_of(here, op, pattern).reason(c) is None]
        problem = Problem(np.asarray(vector), here, op, pattern.sizes, lengths)
        score = trees.predict(np.hstack(ConfigColumns(here, op, able).on(problem)))
        return [able[at] for at in np.argsort(-score, kind="stable")[:5]]

    def legal(pattern: Pattern) -> list[Config]:
        space = space_of(here, op, pattern)
        return [c for at in fixed if space.reason(c := samples.configs[at]) is None][:5]

    return {"fixed, own runs": legal, "stock trees, own runs": predicted}


def _static(db: Database, made: Recommendation, op: Op) -> Config:
    """The schedule that is best on average by a database's own view of this machine."""
    simpler = {s.method: s.config for s in made.insight.simpler}
    return Config(simpler.get("static-best", made.default))


def _measured(
    runner: Any,
    pattern: Pattern,
    op: Op,
    made: dict[str, Recommendation],
    opened: dict[str, Database],
    seed: int,
    more: dict[str, list[Config]],
) -> dict[str, dict[str, float]]:
    answers = {label: [Config(c.config) for c in m.candidates[:5]] for label, m in made.items()}
    for label, one in made.items():
        answers[f"static best of {label}"] = [_static(opened[label], one, op)]
    answers |= more
    default = Config(next(iter(made.values())).default)
    answers["default"] = [default]
    configs = list(dict.fromkeys([default, *(c for given in answers.values() for c in given)]))
    runner.prepare(op, configs)
    times: dict[Config, list[float]] = defaultdict(list)
    for number in range(_ROUNDS):
        order = np.random.default_rng([seed, number]).permutation(len(configs))
        asked = [configs[i] for i in order]
        for config, measurement in runner.run(pattern, op, asked, options=RunOptions()):
            times[config].append(measurement.seconds)
    took = {config: float(np.median(times[config])) for config in configs}
    best, base = min(took.values()), took[default]
    found = {
        label: _outcome(took, best, base, given, made.get(label))
        for label, given in answers.items()
    }
    found["fastest of one round"] = _ceiling(times, default)
    return found


def _ceiling(times: dict[Config, list[float]], default: Config) -> dict[str, float]:
    """What was fastest in the first round, judged by the others: no choice can be told to be
    better than that."""
    order = sorted(times, key=lambda config: times[config][0])
    rest = {config: float(np.median(each[1:])) for config, each in times.items()}
    return _outcome(rest, min(rest.values()), rest[default], order[:5], None)


def _outcome(
    took: dict[Config, float],
    best: float,
    base: float,
    given: list[Config],
    made: Recommendation | None,
) -> dict[str, float]:
    costs = [took[c] if math.isfinite(took[c]) else base for c in given]
    found = {
        "at_1": math.log(best / costs[0]),
        "at_5": math.log(best / min(costs)),
        "got": math.log(base / costs[0]),
        "slower": float(costs[0] > base * 1.02),
    }
    first = made.candidates[0] if made is not None and made.candidates else None
    if first is not None and first.expected_gain:
        found["promised"] = math.log(first.expected_gain)
        if first.gain_low is not None and first.gain_high is not None:
            low, high = math.log(first.gain_low), math.log(first.gain_high)
            found["covered"] = float(low - 1e-9 <= found["got"] <= high + 1e-9)
    return found


def _figures(rows: list[dict[str, float]]) -> dict[str, float]:
    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in rows if name in row] or [math.nan]))

    shares = {f"of_best@{k}": math.exp(mean(f"at_{k}")) for k in (1, 5)}
    gains = {name: math.exp(mean(name)) for name in ("got", "promised")}
    rest = {"covered": mean("covered"), "slower_by_2_percent": mean("slower")}
    told = {"matrices": len(rows), **shares, **gains, **rest}
    return {name: round(value, 4) for name, value in told.items() if not math.isnan(value)}


if __name__ == "__main__":
    main()
