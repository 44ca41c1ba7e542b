"""One model for every machine: each machine left out in turn, and some of its runs given back.

    python benchmarks/machines.py DB OUT.json [--op spmv] [--processor "AMD EPYC (26/2/1)"]

DB holds runs of several machines (the starter, or with `embeddb db import` of further ones). Half
of the families is asked about on one machine; the other half teaches, on all other machines, and
as local runs. Shares of the fastest run of a matrix, of the first answer and the best of five.
The model of the other machines is one forest of all of them; what `train --every-machine` makes is
the mean of forests that leave out a machine each. `stock trees` is one forest of the same inputs
and runs, local ones weighed eight times.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Op
from embeddb.cost_model.gaussian import Residuals
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.held_out import split_groups
from embeddb.learning.calibration import calibrated
from embeddb.learning.comparison import HeldOutChoices, judge
from embeddb.learning.few_samples import LEAST_GROUPS, LEAST_RUNS, process_card
from embeddb.learning.process import learn, source_scores
from embeddb.learning.samples import Samples, join, samples_of_machines
from embeddb.platforms.machines import display_name
from indexer.training.cost_model import trees
from indexer.training.cost_model.machines import machine_of, mean_facts
from indexer.training.cost_model.refinement import Replay, differences
from indexer.training.cost_model.settings import forest
from indexer.training.cost_model.train import tree_card, tree_columns

LOCAL = (0, 1, 2, 5, 10, 20, 52)
#: Rows that are asked about in each half, and runs of each that are learned from.
ASKED, PER_ROW = 80, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--processor", action="append", default=[])
    options = parser.parse_args()
    ops = options.op or ["spmm:32", "spmm:128", "spmv", "sddmm:128"]
    results: dict[str, Any] = {}
    document = {"about": about(), "ops": results}
    with Database.open(options.db) as db:
        for name in ops:
            op = Op.parse(name)
            samples = samples_of_machines(db.index, db.platform("cpu"), [op])
            for machine, rows in processors(samples, options.processor):
                results.setdefault(name, {})[machine] = of_machine(samples, op, rows)
                print(name, machine, json.dumps(results[name][machine]), flush=True)
                options.out.write_text(json.dumps(document, indent=1) + "\n")


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


def of_machine(samples: Samples, op: Op, own: np.ndarray) -> dict[str, Any]:
    number = machine_of(samples)
    there = number == number[np.flatnonzero(own)[0]]
    half = split_groups(samples.groups, 2, 0)
    choices: dict[str, list[HeldOutChoices]] = {}
    seconds: list[float] = []
    for part in (0, 1):
        rng = np.random.default_rng(part)
        asked = rng.permutation(np.flatnonzero(own & (half == part)))[:ASKED]
        local = rng.permutation(np.flatnonzero(own & (half != part)))
        others = samples.take(np.flatnonzero(~there & (half != part))).thinned(PER_ROW, 0)
        source = with_differences(forest_of(others), samples, number, half != part, own)
        questions = samples.take(np.sort(asked))
        add = choices.setdefault
        add("best fixed of others", []).append(judge(questions, fixed(others, questions)))
        for count in LOCAL:
            known = samples.take(np.sort(local[:count])).thinned(PER_ROW, 0)
            start = time.process_time()
            model = learn(known, process_card(known), source=source) if count else source
            seconds.append(time.process_time() - start)
            scores = source_scores(questions, model)
            add(f"every machine + {count} local", []).append(judge(questions, scores))
            if len(known.gain) >= LEAST_RUNS and np.unique(known.groups).size >= LEAST_GROUPS:
                alone = source_scores(questions, learn(known, process_card(known)))
                add(f"{count} local alone", []).append(judge(questions, alone))
                best = fixed(known, questions)
                add(f"best fixed of {count} local", []).append(judge(questions, best))
                both = join([others, known])
                weight = np.where(np.arange(len(both.rows)) < len(others.rows), 1.0, 8.0)
                stock = source_scores(questions, forest_of(both, weight))
                add(f"stock trees, {count} local", []).append(judge(questions, stock))
    figures: dict[str, Any] = {name: shares(parts) for name, parts in choices.items()}
    return {**figures, "asked": int(sum(len(c.at_1) for c in choices["best fixed of others"])),
            "most_seconds_to_learn": round(max(seconds), 1)}  # fmt: skip


def with_differences(
    model: CostModel, samples: Samples, number: np.ndarray, taught: np.ndarray, own: np.ndarray
) -> CostModel:
    """The model with the prior of differences of the machines it learned from: of each, to a forest
    of the others. `taught` bool[r] are rows of families that are not asked about."""
    left = number[np.flatnonzero(own)[0]]
    replays = []
    for one in np.unique(number[number != left]):
        rest = samples.take(np.flatnonzero((number != left) & (number != one) & taught))
        there = (number == one) & taught
        replays.append(Replay(forest_of(rest.thinned(PER_ROW // 2, 0)), there, ~there))
    parts = dict(differences(samples, number, np.ones(len(number), dtype=bool), replays, 0))
    prior = Residuals(list(parts.values())).prior()
    named = {f"differences.{samples.ops[0]}.{name}": array for name, array in prior.items()}
    return CostModel(model.card, {**model.tensors, **named})


def forest_of(samples: Samples, weight: np.ndarray | None = None) -> CostModel:
    """Trees of all of the samples, with the facts of their machines, rows counting by `weight`."""
    card = tree_card(samples, forest(), facts=mean_facts(samples))
    card["settings"]["members"] = 1
    rows = trees.tables(samples, tree_columns(card), None)
    each = None if weight is None else np.repeat(weight, np.diff(samples.indptr))
    settings = {**trees.SETTINGS, "min_data_in_leaf": trees.LEAF, "seed": 0}
    booster = trees.boosted(np.concatenate(rows), trees.levelled(samples), settings, each)
    tensors = {f"member.0.{name}": array for name, array in trees.weights(booster).items()}
    return calibrated({**card, "metrics": {}}, tensors, samples, [])


def fixed(known: Samples, asked: Samples) -> dict[int, np.ndarray]:
    """Scores of the entries of each row: the mean gain of a configuration in what is known, with
    three rows of no gain beside them."""
    total = np.zeros(len(known.configs))
    count = np.zeros(len(known.configs))
    for row in range(len(known.rows)):
        part = known.part(row)
        total[known.column[part]] += known.gain[part] - known.gain[part].mean()
        count[known.column[part]] += 1
    mean = np.where(count > 0, total / (count + 3.0), -math.inf)
    place = {config: at for at, config in enumerate(known.configs)}
    at = np.array([place.get(config, -1) for config in asked.configs])
    scores = np.where(at >= 0, mean[at], -math.inf)
    return {row: scores[asked.column[asked.part(row)]] for row in range(len(asked.rows))}


def shares(parts: list[HeldOutChoices]) -> list[float]:
    """Geometric means at 1 and at 5."""
    one = np.concatenate([part.at_1 for part in parts])
    five = np.concatenate([part.at_5 for part in parts])
    return [round(float(np.exp(x.mean())), 3) for x in (one, five)]


if __name__ == "__main__":
    main()
