"""How many tiles of a kernel the network of kernels judges in a second, on one thread, for every
graph network and reduction.

    OPENBLAS_NUM_THREADS=1 python benchmarks/kernel_predictions.py [MODEL ...] \\
        > benchmarks/results/kernel_predictions.json

A kernel of 20 operations under 500 tiles, weights drawn at random (what they are does not matter);
`_ROUNDS` rounds over all networks, seconds of the processor, so that a busy machine disturbs less.
Encoding the kernel and its tiles is part of it, reading the file is not. Of every MODEL of op
`fused`, files as `embeddb train kernels` makes them: how often a second it tells the seconds of
such a kernel, and how many cuts of our own programs annealing on it makes and prices.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import about, spread

from embeddb.core.config import Config
from embeddb.cost_model.graph_model import GraphModel
from embeddb.cost_model.kernel_trees import predictor_of
from embeddb.tensors.check import computation
from embeddb.tensors.computation import Computation, Operation, Shape
from embeddb.tensors.edges import edges_of
from embeddb.tensors.encoding.forward import KernelNetwork
from embeddb.tensors.encoding.predictor import KernelPredictor
from embeddb.tensors.encoding.spec import GNNS, REDUCTIONS, NetworkSpec, shapes_of
from indexer.programs.tensors import program
from tuners.fusion_cuts import CutPrices, CutSteps
from tuners.search import Annealer, anneal

_ROUNDS, _TILES, _OPERATIONS, _HIDDEN, _SIDE = 5, 500, 20, 128, 256
_KERNELS = 200
#: What is annealed, from all in one kernel, and for how long.
_PROGRAMS, _ANNEALED_S = ("siren.large", "relation.large", "vgg.large"), 5.0


def main() -> None:
    kernel, tiles = asked()
    networks = {
        f"{gnn}-{reduction}": _network(NetworkSpec(gnn=gnn, reduction=reduction, hidden=_HIDDEN))
        for gnn in GNNS
        for reduction in REDUCTIONS
    }
    rates: dict[str, list[float]] = {name: [] for name in networks}
    models = {Path(file).stem: predictor_of(file) for file in sys.argv[1:]}
    told: dict[str, list[float]] = {name: [] for name in models}
    cuts: dict[str, dict[str, list[float]]] = {n: {p: [] for p in _PROGRAMS} for n in models}
    for _ in range(_ROUNDS):
        for name, network in networks.items():
            rates[name].append(rate(network, kernel, tiles))
        for name, model in models.items():
            told[name].append(seconds_rate(model, kernel))
            for annealed, found in cuts[name].items():
                found.append(cuts_rate(model, program(annealed)))
    result = {
        "about": about(),
        "operations": _OPERATIONS,
        "tiles": _TILES,
        "hidden": _HIDDEN,
        "per_s": {name: spread(found) for name, found in rates.items()},
        "kernels_per_s": {name: spread(found) for name, found in told.items()},
        "cuts_per_s": {
            name: {annealed: spread(found) for annealed, found in each.items()}
            for name, each in cuts.items()
        },
    }
    print(json.dumps(result, indent=1))


def asked() -> tuple[Computation, list[Config]]:
    """The kernel and its tiles."""
    sides = np.random.default_rng(0).integers(1, _SIDE, (_TILES, 3)).tolist()
    return _kernel(), [Config({"t1": a, "t2": b, "tr": c}) for a, b, c in sides]


def rate(network: KernelNetwork, kernel: Computation, tiles: Sequence[Config]) -> float:
    """Tiles a second of the processor's time."""
    began = time.process_time()
    network.scores(kernel, tiles)
    return len(tiles) / (time.process_time() - began)


def seconds_rate(model: KernelPredictor, kernel: Computation) -> float:
    """Kernels a second of the processor's time."""
    began = time.process_time()
    for _ in range(_KERNELS):
        model.seconds(kernel)
    return _KERNELS / (time.process_time() - began)


def cuts_rate(model: KernelPredictor, annealed: Computation) -> float:
    """Cuts a second of the processor's time, each kernel priced once."""
    prices = CutPrices(annealed, GraphModel(model))
    start, rng = edges_of(annealed).whole, np.random.default_rng(0)
    began = time.process_time()
    priced = anneal(
        Annealer(CutSteps(annealed), start, rng=rng),
        prices.seconds,
        lambda: time.process_time() - began,
        _ANNEALED_S,
    )
    return sum(1 for _ in priced) / (time.process_time() - began)


def _kernel() -> Computation:
    """A product, and what is added to it."""
    shape = (Shape("f32", (_SIDE, _SIDE)),)
    operations = [
        Operation("parameter", shape, (), {"number": 0}),
        Operation("parameter", shape, (), {"number": 1}),
        Operation("dot", shape, (0, 1), {"lhs_contracting": (1,), "rhs_contracting": (0,)}),
    ]
    while len(operations) < _OPERATIONS:
        operations.append(Operation("add", shape, (len(operations) - 1, 0)))
    return computation(operations, [_OPERATIONS - 1])


def _network(spec: NetworkSpec) -> KernelNetwork:
    rng = np.random.default_rng(0)
    drawn = {name: 0.1 * rng.standard_normal(shape) for name, shape in shapes_of(spec).items()}
    weights = {name: array.astype(np.float32) for name, array in drawn.items()}
    return KernelNetwork({"network": spec.card}, weights)


if __name__ == "__main__":
    main()
