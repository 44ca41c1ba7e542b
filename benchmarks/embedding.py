"""Two towers beside statistics, whole families held out: neighbours found with the matrix's vector,
configurations ranked and retrieved by the inner product, and the time of a search over 10^5.

    python benchmarks/embedding.py starter --platform cuda --draws 5
    python benchmarks/embedding.py starter --platform cpu@70882216 --draws 5

Each draw takes families out until at least 84 matrices are; towers, metric and vote are fitted to
the others. Either kind of neighbours votes with the settings that were best within the training
families. Each test matrix is asked among the configurations that ran on it.
Results are added to benchmarks/results/embedding.json under the platform; started again with more
draws it goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import about

from embeddb.core.config import Op
from embeddb.core.sizes import Sizes
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.cost_model.towers import ConfigTower
from embeddb.index.features import Features
from embeddb.index.trial import Trial
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.ui.cli.arguments import open_database
from indexer.training.towers import TowerData, Unit, fitted_towers, judge, tower_data

RESULTS = Path(__file__).parent / "results" / "embedding.json"
TEST_MATRICES = 84
SEARCH = "100,800 configurations, CPU seconds"
#: A space of 100,800 configurations.
LARGE = """
name = "large"
version = "1"
title = "A large space"

[[space]]
kernels = ["spmm"]

[space.params]
rows = { type = "int", values = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] }
cols = { type = "int", values = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] }
unroll = { type = "int", values = [1, 2, 4, 8, 16, 32, 64] }
threads = { type = "int", values = [1, 2, 4, 8, 16, 32] }
order = { type = "choice", values = ["a", "b", "c", "d", "e", "f"] }
format = { type = "choice", values = ["csr", "coo", "ell", "bcsr"] }

[space.default]
rows = 1
cols = 1
unroll = 1
threads = 1
order = "a"
format = "csr"
"""


def quiet(task: str, done: int, total: int = 0) -> None:
    del task, done, total


def split(data: TowerData, draw: int) -> np.ndarray:
    """bool[p]: the test matrices of a draw, whole families."""
    rng = np.random.default_rng(1000 + draw)
    test = np.zeros(len(data.ids), dtype=np.bool_)
    for family in rng.permutation(np.unique(data.groups)):
        if test.sum() >= TEST_MATRICES:
            break
        test |= data.groups == family
    return test


def gains_of(unit: Unit) -> np.ndarray:
    """float64[r,c] log gains over the default; nan: not run."""
    samples = unit.samples
    out = np.full((len(samples.rows), len(samples.configs)), np.nan)
    for at in range(len(samples.rows)):
        part = samples.part(at)
        out[at, samples.column[part]] = samples.gain[part]
    return out


def neighbours(unit: Unit, vectors: np.ndarray, out: np.ndarray) -> float:
    """The share of the optimum of the first answers on the rows `out` bool[r], by neighbours among
    the others by raw vectors float32[r,d]."""
    gains, groups = gains_of(unit), unit.samples.groups
    ids = [row.pattern_id for row in unit.samples.rows]
    whole = Trial.of(Features.plain(vectors), gains, groups, ids=ids)
    choices = whole.only(~out).answers(whole, out, None)
    answered = np.isfinite(choices.measured)
    return math.exp(-(choices.best - choices.measured)[answered].mean())


def drawn(data: TowerData, draw: int) -> dict[str, dict[str, float]]:
    """Figures of one draw by operation."""
    test = split(data, draw)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "towers.safetensors"
        towers = fitted_towers(data, ~test, (0, 1), out, seed=draw, progress=quiet)
    held: dict[str, list[dict[str, float]]] = {}
    for key, figures in judge(towers, data, test):
        held.setdefault(key, []).append(figures)
    found = {}
    for unit in data.units:
        ids = [row.pattern_id for row in unit.samples.rows]
        places = [towers.rows[i] for i in ids]
        with torch.no_grad():
            vectors = towers.vectors(ids).numpy()
        own, stats = test[places], data.stats[places]
        mean = {name: np.mean([one[name] for one in held[unit.key]]) for name in held[unit.key][0]}
        found[str(unit.op)] = {
            "matrices": int(own.sum()),
            "neighbours by stats @1": neighbours(unit, stats, own),
            "neighbours by tower @1": neighbours(unit, vectors, own),
            "neighbours by both @1": neighbours(unit, np.hstack([stats, vectors]), own),
            "inner product @1": math.exp(-mean["lost@1"]),
            "inner product @5": math.exp(-mean["lost@5"]),
            "recall @10": float(mean["in@10"]),
            "recall @50": float(mean["in@50"]),
        }
    return found


def large_space(times: int = 20) -> dict[str, float]:
    """CPU seconds of one thread: vectors of 100,800 configurations, and the best 512 of them."""
    import faiss

    faiss.omp_set_num_threads(1)
    platform: Platform = parse_platform(LARGE)
    op, rng = Op.parse("spmm:128"), np.random.default_rng(0)
    inputs = HOMOGENEOUS_DIM + Layout(platform.kernel(op), whole=True).width
    shapes = {"first": (96, inputs), "second": (96, 96), "head": (17, 96)}
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = rng.normal(0, 0.1, shape).astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(shape[0], dtype=np.float32)
    tower = ConfigTower(platform, op, tensors)
    space = platform.space(op, Sizes(1000, 1000, 10_000))
    matrices = rng.normal(0, 1, (times + 1, 16)).astype(np.float32)
    began = time.process_time()
    tower.best(matrices[0], space, 512)
    first = time.process_time() - began
    took = []
    for matrix in matrices[1:]:
        began = time.process_time()
        tower.best(matrix, space, 512)
        took.append(time.process_time() - began)
    return {
        "configs": float(space.size() or 0),
        "vectors_s": first,
        "best_512_s": float(np.median(took)),
    }


def summary(draws: list[dict[str, dict[str, float]]], op: str) -> dict[str, list[float]]:
    """Mean and standard deviation of the draws, by figure."""
    return {
        name: [round(float(f([one[op][name] for one in draws])), 4) for f in (np.mean, np.std)]
        for name in draws[0][op]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db")
    parser.add_argument("--platform", default="cuda", help="Begin of the ids of its instances.")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with open_database(asked.db, readonly=True) as db:
        data = tower_data(db.index, progress=quiet, platform=asked.platform)
    document = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    draws = document.get(asked.platform, {}).get("each", [])
    for draw in range(len(draws), asked.draws):
        began = time.process_time()
        draws.append(drawn(data, draw))
        print(draw, f"{time.process_time() - began:.0f} s", json.dumps(draws[-1]), flush=True)
        document[asked.platform] = {
            **about(),
            "runs": data.runs,
            "matrices": len(data.ids),
            "draws": len(draws),
            "operations": {op: summary(draws, op) for op in draws[0]},
            "each": draws,
        }
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
    if SEARCH not in document:
        document[SEARCH] = large_space()
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
