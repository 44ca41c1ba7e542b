"""How well seconds of fused kernels are predicted (Section 5.2 of "A Learned Performance Model for
Tensor Processing Units"): every method on the runs of a database, whole programs or families held
out.

    OMP_NUM_THREADS=1 python benchmarks/fused.py DB --rows ROWS [--minutes 15] \\
        [--noise NOISE.json] > benchmarks/results/fused.json

DB is what `embeddb kernel measure --op fusion` made; probes in it are learned from, by all methods,
and never held out. Each result is a line of ROWS: a second call
goes on from there. By program: the mean absolute percentage error of kernels of 50 microseconds or
more, and Kendall's tau among them. The noise floor is what runs of one kernel say of each other: of
kernels with several runs, or of NOISE, a file such as
`benchmarks/results/fusion_noise_rounds.json`.

The analytical model is a roofline (bytes, flops, functions), beside the time of the shortest kernel
of the training part, times a factor for each type of kernel: the median there, which suits the
error better than the paper's ratio of sums.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernel_baselines import SECONDS
from kernel_rows import Rows, ahead, over_seeds, trained
from machine import about

from embeddb.core.config import Op
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.database import open_database
from embeddb.store import Store
from embeddb.tensors.roofline.analysis import fused_seconds, type_of
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.tensor_graph import TensorGraph, is_probe
from indexer.training.tensors.figures import LEAST_S, fused_figures
from indexer.training.tensors.fitting import KernelTraining, recipe
from indexer.training.tensors.operations import summed_card, summed_predictions, summed_weights
from indexer.training.tensors.samples import (
    SPLITS,
    KernelRuns,
    KernelSample,
    content_of,
    runs_of,
    split,
)

OP = Op("fused")
SEEDS = (0, 1, 2)
#: Of operations, what tells: trees, a network, both.
MEMBERS = {
    "operation trees": ("trees",),
    "operation network": ("network",),
    "operations": ("trees", "network"),
}
METHODS = ("constant", "analytic", "trees", *MEMBERS, "nearest", "learned")
#: Of a training: what one core does in two minutes.
EPOCHS, PATIENCE, KERNELS = 60, 10, 64

#: Seconds of a kernel.
Predicting = Callable[[KernelSample], float]


def main() -> None:
    given = arguments()
    with open_database(given.db, readonly=True) as db:
        runs = runs_of(db.store, OP, given.platform)
        kernels = {s.id: db.store.tensor(s.id) for s in runs.samples}
        floor = noise(db.store, runs)
    told = Told(runs, {at: kernel for at, kernel in kernels.items() if kernel is not None})
    if given.noise is not None:
        floor = {"kernels": floor, "beside": json.loads(given.noise.read_text(encoding="utf-8"))}
    rows = Rows(given.rows, given.minutes)
    real = [sample for sample in runs.samples if not is_probe(sample.group)]
    long = [sample for sample in real if sample.seconds.min() >= LEAST_S]
    result = {
        "about": about(),
        "kernels": len(real),
        "probes": len(runs.samples) - len(real),
        "kernels_50_us": len(long),
        "programs": len({s.program for s in long}),
        "families": len({s.group for s in long}),
        "noise": floor,
        "splits": compared(told, rows, given),
        "not_done": rows.left,
    }
    print(json.dumps(result, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--platform", default="")
    parser.add_argument("--noise", type=Path)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--hidden", type=int, default=0)
    return parser.parse_args()


class Told:
    """Measured kernels, and what the roofline says of each."""

    def __init__(self, runs: KernelRuns, kernels: Mapping[str, TensorGraph]) -> None:
        self.samples, self.kernels = runs.samples, kernels
        self._learned: dict[tuple[str, int, str], dict[str, Any]] = {}
        self.content = content_of(runs.samples)
        machine = Machine.of(runs.platform.environment)
        self.types = {at: type_of(kernel) for at, kernel in kernels.items()}
        self.roofline = {at: fused_seconds(kernel, machine) for at, kernel in kernels.items()}

    def operations(self, train: Sequence[KernelSample], key: Mapping[str, Any]) -> Predicting:
        """Each member is learned once, whatever is made of it."""
        members, weights = MEMBERS[key["method"]], {}
        for one in members:
            at = (key["by"], key["seed"], one)
            if at not in self._learned:
                self._learned[at] = summed_weights(train, key["seed"], (one,))
            weights |= self._learned[at]
        model = OperationSums(summed_card(members), weights)
        return lambda sample: float(np.exp(summed_predictions(model, [sample])[0][0]))

    def analytic(self, train: Sequence[KernelSample]) -> Predicting:
        """A call, and the roofline times the factor of its type."""
        call = min(float(sample.seconds.min()) for sample in train)
        ratios: dict[str, list[float]] = {}
        for sample in train:
            beyond = max(float(sample.seconds.min()) - call, 0.0)
            ratio = beyond / max(self.roofline[sample.id], 1e-9)
            if sample.seconds.min() >= LEAST_S:
                ratios.setdefault(self.types[sample.id], []).append(ratio)
        every = statistics.median([ratio for each in ratios.values() for ratio in each])
        factor = {name: statistics.median(each) for name, each in ratios.items()}
        return lambda sample: (
            call + factor.get(self.types[sample.id], every) * self.roofline[sample.id]
        )


def noise(store: Store, runs: KernelRuns) -> dict[str, float]:
    """Of kernels of 50 microseconds or more that ran several times: how far, in percent, one of two
    runs is from the other, by mean and median; nothing where each ran once."""
    apart = []
    for sample in runs.samples:
        found = store.runs(runs.platform.id, OP, sample.id)
        told = [run.seconds for run in found if run.measurement.ok]
        if len(told) > 1 and min(told) >= LEAST_S:
            apart.append(100 * abs(told[1] - told[0]) / told[0])
    if not apart:
        return {"kernels": 0}
    means = {"mean": statistics.mean(apart), "median": statistics.median(apart)}
    return {"kernels": len(apart), **means}


def compared(told: Told, rows: Rows, given: argparse.Namespace) -> dict[str, Any]:
    """By split and method."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    # What is quick first, whatever the time is enough for.
    for method, seed, by in itertools.product(METHODS, SEEDS, SPLITS[::-1]):
        key = {"method": method, "by": by, "seed": seed, "data": told.content}
        if method == "learned":
            key |= {"epochs": given.epochs, "hidden": given.hidden}
        print(f"{method}, {by}, seed {seed}", file=sys.stderr, flush=True)
        row = rows.of(key, lambda k=key: judged(told, rows, k))
        if row is not None:
            found.setdefault((by, method), {})[seed] = row
    return {by: of_split(found, by) for by in SPLITS}


def of_split(found: Mapping[tuple[str, str], Mapping[int, Any]], by: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for method in METHODS:
        done = found.get((by, method), {})
        if not done:
            continue
        told[method] = {
            "seeds": sorted(done),
            **over_seeds([done[seed]["programs"] for seed in sorted(done)]),
            "training": training_of(found, by, method, min(done)),
        }
        trees = found.get((by, "trees"), {})
        both = sorted(done.keys() & trees.keys())
        if method == "learned" and both:
            parts = ([part[s]["programs"] for s in both] for part in (done, trees))
            ours, theirs = parts
            told[method]["above_trees"] = {n: ahead(ours, theirs, n) for n in ("mape", "tau")}
    return told


def training_of(
    found: Mapping[tuple[str, str], Mapping[int, Any]], by: str, method: str, seed: int
) -> dict[str, Any]:
    """What learning took; of several members that were there, what each took."""
    members = MEMBERS.get(method, ())
    alone = [name for name, one in MEMBERS.items() if len(one) == 1 and set(one) <= set(members)]
    told = [found[by, name][seed]["training"] for name in alone if len(members) > 1]
    own = found[by, method][seed]["training"]
    return {"train_cpu_s": round(sum(t["train_cpu_s"] for t in told), 1)} if told else own


def judged(told: Told, rows: Rows, key: Mapping[str, Any]) -> dict[str, Any]:
    train, tests = split(told.samples, key["by"], key["seed"])
    began = time.process_time()
    if key["method"] == "analytic":
        predicting = told.analytic(train)
    elif key["method"] in MEMBERS:
        predicting = told.operations(train, key)
    elif key["method"] == "learned":
        how = KernelTraining(
            recipe("fused", key["hidden"]),
            epochs=key["epochs"],
            patience=PATIENCE,
            kernels=KERNELS,
            tiles=1,
            by=key["by"],
            seed=key["seed"],
        )
        network, training = trained(train, how, rows.file(key))
        said = [network.seconds(told.kernels[sample.id]) for sample in tests]
        return {"programs": fused_figures(tests, said), "training": training}
    else:
        predicting = SECONDS[key["method"]](train, key["seed"])
    training = {"train_cpu_s": round(time.process_time() - began, 1)}
    said = [predicting(sample) for sample in tests]
    return {"programs": fused_figures(tests, np.asarray(said).tolist()), "training": training}


if __name__ == "__main__":
    main()
