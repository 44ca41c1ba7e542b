"""Answers on a machine that is left out, when some of its runs are given back.

    python benchmarks/machines.py DB OUT.json [--op spmv] [--processor "AMD EPYC (26/2/1)"]

DB holds runs of several machines (the starter, or with `embeddb db import` of further ones). Half
of the families is asked about on one machine; the other half teaches: on all other machines and, as
local runs, here. Shares of the fastest run of a matrix, of the first answer and the best of five,
by the code that answers queries, but for the model's threshold, among the configurations that ran
on the matrix. The model is one forest of all other machines' runs and of the local ones, which
count more, as `calibrate` trains it, combined with a process of the local runs where there are
enough; `without the process` is the forest alone. `before learning` are answers by a forest of the
others' runs alone (what `train --every-machine` makes is the mean of forests that leave out a
machine each), and `trained here, too` those of one for which all local runs count as others' do.
The third figure of a method that predicts gains over the default is the predicted one as a share of
the true one.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.cost_model import Problem
from embeddb.cost_model.combined import Combined
from embeddb.cost_model.encoders.inputs import ConfigColumns, TreeTable
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.fit import FitInput
from embeddb.index.held_out import split_groups
from embeddb.learning import LEAST_GROUPS, LEAST_RUNS, boosting
from embeddb.learning.boosting import levelled
from embeddb.learning.calibration import calibrated
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn
from embeddb.learning.samples import Samples, join, samples_of_machines
from embeddb.platforms.machines import display_name
from embeddb.ranking.fallback import answer
from embeddb.ranking.prediction import Scorer, correlate_of
from embeddb.ranking.query import Query
from indexer.training.cost_model import trees
from indexer.training.cost_model.local import JOINED_WEIGHT, OWN_WEIGHT
from indexer.training.cost_model.machines import machine_of, mean_facts
from indexer.training.cost_model.settings import forest
from indexer.training.cost_model.train import tree_card
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import judge
from tuners.evaluation.learned import MACHINES_WEIGHT

LOCAL = (0, 1, 2, 5, 10, 20, 52)
#: Rows that are asked about in each half, and runs of each row that are learned from.
ASKED, PER_ROW = 40, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--processor", action="append", default=[])
    options = parser.parse_args()
    results: dict[str, Any] = {}
    document = {"about": about(), "ops": results}
    with Database.open(options.db) as db:
        for name in options.op or ["spmm:32", "spmm:128", "spmv", "sddmm:128"]:
            runs = Runs.of(db, Op.parse(name))
            for machine, own in processors(runs.samples, options.processor):
                shares = of_machine(runs, own)
                if not shares:
                    continue
                results.setdefault(name, {})[machine] = shares
                print(name, machine, json.dumps(results[name][machine]), flush=True)
                options.out.write_text(json.dumps(document, indent=1) + "\n")


class Runs(NamedTuple):
    """Runs of an op on all machines: as rankers learn from them, and as they vote. `row` int64[r]
    are the places of the samples' rows in the evidence (-1: not asked about)."""

    samples: Samples
    bench: Bench
    row: np.ndarray

    @classmethod
    def of(cls, db: Database, op: Op) -> Runs:
        platform = db.platform("cpu")
        samples = samples_of_machines(db.index, platform, [op])
        (scope,) = (scope for _, scope in db.index.scopes(platform.name, op))
        bench = Bench(db.index, op, scope)
        place = {row[:2]: at for at, row in enumerate(bench.evidence.rows)}
        keys = zip(samples.rows, samples.machines, strict=True)
        row = np.array([place.get((r.pattern_id, m.id), -1) for r, m in keys])
        return cls(samples, bench, row)

    def index(self, rows: np.ndarray) -> AnswerIndex:
        """The index of some rows of the samples."""
        evidence = self.bench.evidence.take(self._places(rows)).pruned()
        named = {row.platform for row in evidence.rows}
        facts = {name: self.bench.platforms[name].environment for name in named}
        given = FitInput(evidence, self.bench.unlearned, facts)
        return AnswerIndex.build(given, scope=self.bench.scope)

    def with_local(self, index: AnswerIndex, rows: np.ndarray) -> AnswerIndex:
        """The index with further rows of the samples, as new runs join it."""
        newer = self.bench.evidence.take(self._places(rows)).pruned()
        vectors = self.bench.vectors[index.featurizer]
        new = {row.pattern_id for row in newer.rows} - set(index.ids)
        facts = {name: p.environment for name, p in self.bench.platforms.items()}
        return index.grown(newer, {i: vectors[i] for i in new & vectors.keys()}, facts)

    def _places(self, rows: np.ndarray) -> np.ndarray:
        return np.sort(self.row[rows][self.row[rows] >= 0])


def processors(samples: Samples, wanted: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Each processor by name, and which of its rows bool[r] are asked about: those of the instance
    that a user of it would have, native code and all threads."""
    number = machine_of(samples)
    for one in np.unique(number):
        own = {p.id: p for p, at in zip(samples.machines, number, strict=True) if at == one}
        chosen = max(own.values(), key=_plainness)
        name = display_name(chosen.id, chosen.environment)
        if not wanted or any(text in str(chosen.environment["cpu"]) for text in wanted):
            yield name, np.array([p.id == chosen.id for p in samples.machines])


def _plainness(platform: Any) -> tuple[bool, bool, bool]:
    facts = platform.environment
    return "native" in facts["flags"], facts["threads"] != "1", "gcc" in facts["compiler"]


def of_machine(runs: Runs, own: np.ndarray) -> dict[str, Any]:
    """Shares at 1 and at 5 by method, of the rows bool[r] of one machine; of those that both halves
    could be judged by."""
    samples = runs.samples
    number = machine_of(samples)
    elsewhere = number != number[np.flatnonzero(own)[0]]
    half = split_groups(samples.groups, 2, 0)
    counted = np.isin(runs.row, runs.bench.counted)
    halves: list[dict[str, list[Figures]]] = [{}, {}]
    for part, shares in enumerate(halves):
        rng = np.random.default_rng(part)
        asked = rng.permutation(np.flatnonzero(own & counted & (half == part)))[:ASKED]
        local = rng.permutation(np.flatnonzero(own & (half != part)))
        others = np.flatnonzero(elsewhere & (half != part))
        for method, share in _half(runs, asked, local, others):
            shares.setdefault(method, []).append(share)
    both = {name: [*halves[0][name], *halves[1][name]] for name in halves[0] if name in halves[1]}
    if not both:
        return {}
    means = {n: [round(math.exp(x), 3) for x in _means(e)] for n, e in both.items()}
    return {**means, "asked": len(both["best fixed of others"])}


#: Log shares at 1 and at 5, and the log of the predicted gain over the true one (nan: unknown).
Figures = tuple[float, float, float]
Shares = Iterator[tuple[str, Figures]]


def _means(rows: list[Figures]) -> list[float]:
    """Of each column, without what is unknown; nothing for one of which nothing is known."""
    columns = np.array(rows).T
    return [float(np.nanmean(one)) for one in columns if np.isfinite(one).any()]


def _half(runs: Runs, asked: np.ndarray, local: np.ndarray, others: np.ndarray) -> Shares:
    """Method and log shares of each asked row, for every number of local rows."""
    samples = runs.samples
    known = samples.take(others).thinned(PER_ROW, 0)
    model, index = forest_of(known), runs.index(others)
    yield from _scored(runs, asked, "best fixed of others", fixed(known))
    for count in (n for n in LOCAL if n <= len(local)):
        here = np.sort(local[:count])
        given = runs.with_local(index, here) if count else index
        own = samples.take(here).thinned(PER_ROW, 0)
        learned = _with_own(known, own) if count else model
        weight = JOINED_WEIGHT if count else MACHINES_WEIGHT
        process = _process(own) if count else None
        yield from _answered(runs, asked, given, learned, f"{count} local", weight, process)
        if count:
            yield from _joined(
                runs, asked, given, model, f"before learning, {count} local", MACHINES_WEIGHT
            )
            yield from _scored(runs, asked, f"best fixed of {count} local", fixed(own))
        if process is not None:
            without = f"without the process, {count} local"
            yield from _joined(runs, asked, given, learned, without, weight)
            yield from _scored(runs, asked, f"process, {count} local alone", process)
            yield from _scored(runs, asked, f"stock trees, {count} local alone", _stock(own))
    both = np.concatenate([others, local])
    model = forest_of(samples.take(both).thinned(PER_ROW, 0))
    yield from _answered(runs, asked, runs.index(both), model, "trained here, too", MACHINES_WEIGHT)


def _with_own(known: Samples, own: Samples) -> CostModel:
    """Trees of all samples, those of the machine itself counting more."""
    both = join([known, own])
    weight = np.where(np.arange(len(both.rows)) < len(known.rows), 1.0, OWN_WEIGHT)
    return forest_of(both, weight)


def _process(here: Samples) -> CostModel | None:
    """The process that a query learns from local samples; None where there are too few."""
    if len(here.gain) < LEAST_RUNS or np.unique(here.groups).size < LEAST_GROUPS:
        return None
    return learn(here, process_card(here))


def _answered(
    runs: Runs,
    asked: np.ndarray,
    index: AnswerIndex,
    model: CostModel,
    what: str,
    weight: float,
    process: CostModel | None = None,
) -> Shares:
    """Answers, and those of the vote and the model alone."""
    for at in asked:
        query = runs.bench.query(int(runs.row[at]), index)
        yield f"vote, {what}", _judged(runs, at, query)
        yield f"model, {what}", _judged(runs, at, _predicted(runs, at, query, model, {"rank": 1.0}))
    yield from _joined(runs, asked, index, model, f"answer, {what}", weight, process)


def _joined(
    runs: Runs,
    asked: np.ndarray,
    index: AnswerIndex,
    model: CostModel,
    what: str,
    weight: float,
    process: CostModel | None = None,
) -> Shares:
    """Answers of the vote and the model together, the model combined with a process if given."""
    judged = {"rank": 1.0, "transfer+rank": 1.0}
    for at in asked:
        query = runs.bench.query(int(runs.row[at]), index)
        vector = runs.samples.problem(at).vector
        scorer = model if process is None else Combined(model, process, vector)
        yield what, _judged(runs, at, _predicted(runs, at, query, scorer, judged, weight))


def _predicted(
    runs: Runs,
    at: int,
    query: Query,
    model: Scorer,
    judged: dict[str, float],
    weight: float = 1.0,
) -> Query:
    """The query with the model's predictions for what ran on a row; joined with the vote where both
    are among the `judged` methods."""
    configs = tuple(runs.samples.ran(at))
    problem = runs.samples.problem(at)
    gain, spread = model.score(problem, configs)
    joins = "transfer+rank" in judged
    prediction = replace(
        query.prediction,
        configs=configs,
        gain=gain,
        spread=spread,
        correlate=correlate_of(model, problem),
        judged=judged,
        joins=joins,
        weight=weight,
    )
    return replace(query, prediction=prediction)


def _judged(runs: Runs, at: int, query: Query) -> Figures:
    found = answer(query, 5).candidates
    truth = runs.bench.truth(int(runs.row[at]))
    outcome = judge(truth, [Config(candidate.config) for candidate in found])
    predicted = found[0].expected_gain if found else None
    if predicted is None or not math.isfinite(truth.default_s):
        return outcome.of_optimum_1, outcome.of_optimum_5, math.nan
    return outcome.of_optimum_1, outcome.of_optimum_5, math.log(predicted) - outcome.gain_1


def _scored(runs: Runs, asked: np.ndarray, method: str, scorer: Scorer) -> Shares:
    """The five with the best scores of each asked row."""
    for at in asked:
        configs = runs.samples.ran(at)
        order = np.argsort(-scorer.score(runs.samples.problem(at), configs)[0], kind="stable")
        truth = runs.bench.truth(int(runs.row[at]))
        outcome = judge(truth, [configs[place] for place in order[:5]])
        yield method, (outcome.of_optimum_1, outcome.of_optimum_5, math.nan)


def forest_of(samples: Samples, weight: np.ndarray | None = None) -> CostModel:
    """Trees of all of the samples, with the facts of their machines, rows counting by `weight`."""
    card = tree_card(samples, forest(), facts=mean_facts(samples))
    card["settings"]["members"] = 1
    rows = trees.tables(samples, TreeTable.from_card(card), None)
    each = None if weight is None else np.repeat(weight, np.diff(samples.indptr))
    settings = {**boosting.EVERY_MACHINE, "seed": 0}
    booster = boosting.boosted(np.concatenate(rows), levelled(samples), settings, each)
    tensors = {f"member.0.{name}": array for name, array in boosting.weights(booster).items()}
    return calibrated({**card, "metrics": {}}, tensors, samples, [])


class _Stock(NamedTuple):
    """scikit-learn's extremely randomised trees of one machine's samples."""

    trees: Any

    def score(self, asked: Problem, configs: Any) -> tuple[np.ndarray, np.ndarray]:
        inputs = ConfigColumns(asked.platform, asked.op, configs).on(asked)
        return self.trees.predict(np.hstack(inputs)), np.full(len(configs), math.nan)


def _stock(own: Samples) -> _Stock:
    """Such trees with the settings of `few_samples.py`."""
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(200, min_samples_leaf=2, max_features=0.5, random_state=0)
    problems = [own.problem(row) for row in range(len(own.rows))]
    inputs = [
        np.hstack(ConfigColumns(each.platform, each.op, own.ran(row)).on(each))
        for row, each in enumerate(problems)
    ]
    return _Stock(trees.fit(np.concatenate(inputs), levelled(own)))


class _Fixed(NamedTuple):
    """Scores that are the same for every matrix."""

    mean: dict[Config, float]

    def score(self, _asked: Any, configs: Any) -> tuple[np.ndarray, np.ndarray]:
        mean = np.array([self.mean.get(config, -math.inf) for config in configs])
        return mean, np.full(len(mean), math.nan)


def fixed(known: Samples) -> Scorer:
    """The mean gain of a configuration in what is known, with three rows of no gain beside them."""
    total, count = np.zeros((2, len(known.configs)))
    for row in range(len(known.rows)):
        part = known.part(row)
        total[known.column[part]] += known.gain[part] - known.gain[part].mean()
        count[known.column[part]] += 1
    ran = np.flatnonzero(count)
    return _Fixed({known.configs[at]: float(total[at] / (count[at] + 3.0)) for at in ran})


if __name__ == "__main__":
    main()
