"""How well tiles of tensor kernels are ranked (Section 5.1 of "A Learned Performance Model for
Tensor Processing Units"): every method on the runs of a database, whole programs or families held
out.

    OMP_NUM_THREADS=1 python benchmarks/tiles.py DB --rows ROWS [--minutes 35] \\
        > benchmarks/results/tiles.json

DB is what `embeddb kernel measure` made. Each result is a line of ROWS: a second call goes on from
there, also in the middle of a training. By program: APE in percent (Eq. 2) where the first of the
ranking runs, or the best of the first ten, Kendall's tau within kernels, and the program's seconds
under the first, under the best of the first ten, untiled and at best, for Figure 4. The ceiling is
the order of one round of the same tiles, judged by another round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kernel_baselines import BASELINES
from kernel_rows import ByProgram, Rows, ahead, over_seeds, trained
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.database import open_database
from embeddb.store import Store
from embeddb.tensors.encoding.predictor import KernelNetwork
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.training.tensors.figures import program_seconds, tile_figures
from indexer.training.tensors.fitting import KernelTraining, Recipe, recipe
from indexer.training.tensors.grown_trees import grown, tree_predictions
from indexer.training.tensors.samples import (
    SPLITS,
    KernelRuns,
    KernelSample,
    content_of,
    runs_of,
    split,
)

OP = Op("tile")
SEEDS = (0, 1, 2)
#: Those that learn nothing slow first.
BEYOND = "analytical and trees"
METHODS = ("analytical", "untiled", "static best", "nearest", "trees", BEYOND, "learned")
#: Of a training: epochs that show each kernel about once. Those of `results/tiles.json` were 24 of
#: 80 batches; these are about as many batches of the same kernels.
HIDDEN, EPOCHS, PATIENCE, KERNELS, TILES = 64, 20, 6, 16, 16

Floats = NDArray[np.float64]
Scores = Sequence[Floats]


def main() -> None:
    given = arguments()
    with open_database(given.db, readonly=True) as db:
        runs = runs_of(db.store, OP, given.platform)
        kernels = {s.id: db.store.tensor(s.id) for s in runs.samples}
        told = Told(runs, {at: kernel for at, kernel in kernels.items() if kernel is not None})
        apart = rounds_of(db.store, runs)
    rows = Rows(given.rows, given.minutes)
    result = {
        "about": about(),
        "kernels": len(runs.samples),
        "programs": len({s.program for s in runs.samples}),
        "families": len({s.group for s in runs.samples}),
        "runs": sum(len(s.seconds) for s in runs.samples),
        "left_out": dict(runs.left_out),
        "ceiling": ceiling(*apart) if apart[0] else None,
    }
    result["splits"] = compared(told, rows, given)
    result["not_done"] = rows.left
    print(json.dumps(result, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--platform", default="")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    return parser.parse_args()


class Told:
    """Measured kernels, the graphs of them, and what the analytical model says of their tiles."""

    def __init__(self, runs: KernelRuns, kernels: Mapping[str, TensorGraph]) -> None:
        self.samples, self.kernels = runs.samples, kernels
        self.content, self.analysis = content_of(runs.samples), runs.analysis
        self.machine = Machine.of(runs.platform.environment)
        # Of what the analytical model says: a row is made again when it says something else.
        every = [s.analysed.ravel() for s in self.samples if s.analysed is not None]
        told = np.concatenate([np.empty(0), *every]).tobytes()
        self.said = hashlib.blake2b(told, digest_size=8).hexdigest()

    def scores(self, network: KernelNetwork, samples: Sequence[KernelSample]) -> list[Floats]:
        return [
            network.scores(self.kernels[s.id], list(s.configs)).astype(np.float64) for s in samples
        ]


# -- every method on every split -------------------------------------------------------------------


def compared(told: Told, rows: Rows, given: argparse.Namespace) -> dict[str, Any]:
    """By split and method; the seeds that are done of both count where two are compared."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for seed in SEEDS:
        for by in SPLITS[::-1]:
            for method in METHODS:
                key = key_of(told, given, method, by, seed)
                print(f"{method}, {by}, seed {seed}", file=sys.stderr, flush=True)
                row = rows.of(key, lambda k=key: judged(told, rows, k))
                if row is not None:
                    found.setdefault((by, method), {})[seed] = row
    return {by: of_split(found, by) for by in SPLITS}


def key_of(
    told: Told, given: argparse.Namespace, method: str, by: str, seed: int
) -> dict[str, Any]:
    """All that a row depends on."""
    key = {"method": method, "by": by, "seed": seed, "data": told.content}
    if method in ("analytical", BEYOND):
        key["said"] = told.said
    if method == "learned":
        key |= {"epochs": given.epochs, "hidden": given.hidden}
    return key


def of_split(found: Mapping[tuple[str, str], Mapping[int, Any]], by: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for method in METHODS:
        done = found.get((by, method), {})
        if not done:
            continue
        rows = [done[seed] for seed in sorted(done)]
        told[method] = {
            "seeds": sorted(done),
            **over_seeds([row["programs"] for row in rows]),
            "figure_4": figure_4([row["seconds"] for row in rows]),
            **{name: row for name, row in {"training": rows[0].get("training")}.items() if row},
        }
        for other in ("trees", "analytical", BEYOND):
            both = sorted(done.keys() & found.get((by, other), {}).keys())
            if method != "learned" or not both:
                continue
            theirs = [found[by, other][seed]["programs"] for seed in both]
            ours = [done[seed]["programs"] for seed in both]
            told[method][f"above_{other}"] = {
                name: ahead(ours, theirs, name) for name in ("ape", "tau")
            }
    return told


def judged(told: Told, rows: Rows, key: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and seconds by program of what is held out, and what its training took."""
    train, tests = split(told.samples, key["by"], key["seed"])
    method, more = key["method"], {}
    if method == "learned":
        how = training(recipe("tile", key["hidden"]), key)
        network, more["training"] = trained(train, how, rows.file(key))
        scores = told.scores(network, tests)
    else:
        began = time.process_time()
        if method == BEYOND:
            trees = grown(train, key["seed"], told.analysis)
            scores = [tree_predictions(trees, sample, analysed=True) for sample in tests]
        else:
            ranking = BASELINES[method](train, key["seed"])
            scores = [ranking(sample) for sample in tests]
        more["training"] = {"train_cpu_s": round(time.process_time() - began, 1)}
    return {"programs": figures(tests, scores), "seconds": seconds(tests, scores), **more}


def training(own: Recipe, key: Mapping[str, Any]) -> KernelTraining:
    """Early stopping by what is held out in the same way as the tests are."""
    return KernelTraining(
        own,
        epochs=key["epochs"],
        patience=PATIENCE,
        kernels=KERNELS,
        tiles=TILES,
        by=key["by"],
        seed=key["seed"],
    )


def figures(tests: Sequence[KernelSample], scores: Scores) -> ByProgram:
    first, ten = tile_figures(tests, scores), tile_figures(tests, scores, 10)
    return {program: {**own, "ape_10": ten[program]["ape"]} for program, own in first.items()}


def seconds(tests: Sequence[KernelSample], scores: Scores) -> dict[str, dict[str, float]]:
    """Of each program: with the first, with the best of ten, untiled, and at best."""
    best = [sample.seconds for sample in tests]
    untiled = [np.where(np.arange(len(s.configs)) == s.default, 0.0, 1.0) for s in tests]
    parts = {
        "1": program_seconds(tests, scores, 1),
        "10": program_seconds(tests, scores, 10),
        "untiled": program_seconds(tests, untiled, 1),
        "exhaustive": program_seconds(tests, best, 1),
    }
    return {p: {name: part[p] for name, part in parts.items()} for p in parts["1"]}


def figure_4(rows: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Geometric means over programs of every seed: by how much a program is faster than untiled."""
    gains: dict[str, list[float]] = {}
    for row in rows:
        for own in row.values():
            for name in ("1", "10", "exhaustive"):
                gains.setdefault(name, []).append(own["untiled"] / own[name])
    return {name: float(np.exp(np.mean(np.log(each)))) for name, each in gains.items()}


# -- the ceiling --------------------------------------------------------------------------------


def part(sample: KernelSample, places: NDArray[np.int64]) -> KernelSample:
    kept = np.sort(places)
    default = np.flatnonzero(kept == sample.default)
    return replace(
        sample,
        configs=tuple(sample.configs[int(at)] for at in kept),
        tiles=sample.tiles[kept],
        seconds=sample.seconds[kept],
        default=int(default[0]) if len(default) else -1,
    )


def rounds_of(store: Store, runs: KernelRuns) -> tuple[list[KernelSample], list[Floats]]:
    """The first round of every kernel, and the second round's seconds of the same tiles."""
    first, second = [], []
    for sample in runs.samples:
        told: dict[int, dict[Config, float]] = {1: {}, 2: {}}
        for run in store.runs(runs.platform.id, OP, sample.id):
            number = int(run.measurement.context.get("round", 0))
            if run.measurement.ok and number in told:
                told[number][run.config] = run.seconds
        both = [at for at, c in enumerate(sample.configs) if c in told[1] and c in told[2]]
        if len(both) > 1:
            own = part(sample, np.array(both))
            first.append(replace(own, seconds=np.array([told[1][c] for c in own.configs])))
            second.append(np.array([told[2][c] for c in own.configs]))
    return first, second


def ceiling(first: Sequence[KernelSample], second: Scores) -> dict[str, float]:
    """What the best of models could not do better: of all programs, the second round's order judged
    by the first."""
    return over_seeds([figures(first, second)])


if __name__ == "__main__":
    main()
