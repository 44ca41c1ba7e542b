"""How long a question about the tiles of a tensor kernel takes, with a learned model in the
database: boosted trees, and a network.

    OMP_NUM_THREADS=1 python benchmarks/kernel_query.py [--kernels 80] [--rounds 5] \\
        > benchmarks/results/kernel_query.json

The database is made here: kernels of our own programs whose runs are made up by the analytical
model of another machine, which trees have something to learn beyond their own of (what they took
does not matter to how long an answer takes), of 40 tiles each. Every fourth
kernel has none and is asked about; up to 500 of its tiles are predicted. Seconds of the processor,
one thread, each question a second time: medians of rounds, by kernel. Beside them what the
analytical model alone takes of the tiles that trees are asked for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run
from embeddb.database import Database, open_database
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import load_platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.analysis import Analysis, TileModel
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.tiles import why_not
from indexer.embed import embed
from indexer.programs.tensors import program, program_names
from indexer.programs.tensors.cutting import distinct_kernels
from indexer.training.tensors.presets import preset
from indexer.training.tensors.samples import about as about_runs
from indexer.training.tensors.samples import runs_of
from indexer.training.tensors.train import KernelTraining, train_kernels
from tuners.evaluation.kernel_models import judged_tiles

OP = Op("tile")
TILES, HIDDEN = 40, 64
#: The machine that runs are made up for.
OTHER = {"vector_bytes": "64", "l1_bytes": "16384", "stream_l2_gb_s": "40"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kernels", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    kernels = chosen(asked.kernels)
    measured, unmeasured = [k for n, k in enumerate(kernels) if n % 4], kernels[::4]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tiles.db"
        made_up(place, measured)
        found = {}
        for name in ("network", "trees"):
            learn(place, name)
            found[name] = answered(place, unmeasured, asked.rounds)
        # Of the tiles that trees are asked for: they were the last to learn.
        alone = analysed(place, unmeasured, asked.rounds)
    told = {"machine": about(), "known": len(measured), "asked": found, "analytical": alone}
    print(json.dumps(told, indent=1))


def chosen(count: int) -> list[Computation]:
    """Drawn from all programs, those with tiles alone."""
    every = distinct_kernels(program(name) for name in program_names()[::3])
    order = np.random.default_rng(0).permutation(len(every))
    there = (every[int(at)] for at in order)
    found: list[Computation] = []
    for kernel in there:
        if len(found) == count:
            break
        if not why_not(kernel) and kernel.root.elements >= 4096:
            found.append(kernel)
    return found


def made_up(place: Path, kernels: Sequence[Computation]) -> None:
    platform, rng = load_platform("tile-cpu"), np.random.default_rng(0)
    with Database.create(place) as db:
        for kernel in kernels:
            model = TileModel(kernel, Machine.of(OTHER))
            space, default = space_of(platform, OP, kernel), default_of(platform, OP, kernel)
            tiles = designed_tiles(space, default, TILES, rng=rng)
            took = [Measurement(times_s=(float(s),)) for s in model.seconds(tiles)]
            pairs = zip(tiles, took, strict=True)
            db.index.record(
                [Run(kernel.id, OP, platform.id, c, m) for c, m in pairs], kernel, platform
            )
        embed(db.index)


def learn(place: Path, predictor: str) -> None:
    """The database's own model, judged as `train kernels` does, and believed at once."""
    with open_database(place, readonly=True) as db:
        runs = runs_of(db.store, OP)

    def judge(card: Any, weights: Any, families: Any) -> dict[str, Any]:
        from embeddb.cost_model.graph_model import GraphModel
        from embeddb.cost_model.kernel_trees import predictor_from

        with open_database(place, readonly=True) as db:
            told = GraphModel(predictor_from(card, weights))
            found = judged_tiles(db.index, told, runs.platform, families)
        return {"held_out": {"tile": found["held_out"]}, "hidden": {"tile": found["hidden"]}}

    how = KernelTraining(preset("tile", hidden=HIDDEN), epochs=2, predictor=predictor)
    out = place / "models" / f"kernels-{runs.platform.id}-tile.safetensors"
    out.unlink(missing_ok=True)
    out.parent.mkdir(exist_ok=True)
    train_kernels(
        runs.samples,
        how,
        out,
        about=about_runs(runs),
        analysis=runs.analysis,
        judge=judge,
        progress=lambda *_: None,
    )


def answered(place: Path, kernels: Sequence[Computation], rounds: int) -> dict[str, Any]:
    """Milliseconds; how many tiles were predicted, and operations of the kernels."""
    with open_database(place, readonly=True) as db:
        platform = db.platform("tile-cpu")
        model, why = db.index.graph_model(platform, OP)
        assert model is not None, why
        took, predicted = [], []
        for kernel in kernels:
            took.append(median_ms(lambda k=kernel: db.query(k, platform=platform, op=OP), rounds))
            predicted.append(len(tiles_predicted(db, kernel)))
    sizes = [len(kernel.operations) for kernel in kernels]
    return {
        "ms": percentiles(took),
        "by_kernel_ms": [round(one, 1) for one in took],
        "tiles": predicted,
        "operations": sizes,
        "of_500_tiles_ms": of_most(took, predicted),
    }


def median_ms(asked: Callable[[], object], rounds: int) -> float:
    """Of the processor, the first time left out."""
    each = []
    for turn in range(rounds + 1):
        began = time.process_time()
        asked()
        if turn:
            each.append(1e3 * (time.process_time() - began))
    return float(np.median(each))


def percentiles(took: Sequence[float]) -> dict[str, float]:
    return {f"{q}th": round(float(np.percentile(took, q)), 1) for q in (50, 90, 100)}


def tiles_predicted(db: Database, kernel: Computation) -> Sequence[Config]:
    from embeddb.ranking.build import build_query

    return build_query(db.index, kernel, db.platform("tile-cpu"), OP).prediction.configs


def analysed(place: Path, kernels: Sequence[Computation], rounds: int) -> dict[str, Any]:
    """Milliseconds of the analytical model on what is predicted of each kernel."""
    with open_database(place, readonly=True) as db:
        analysis = Analysis(db.platform("tile-cpu").environment)
        took, tiles = [], []
        for kernel in kernels:
            configs = tiles_predicted(db, kernel)
            tiles.append(len(configs))
            took.append(median_ms(lambda k=kernel, c=configs: analysis.rows(k, c), rounds))
    return {"ms": percentiles(took), "of_500_tiles_ms": of_most(took, tiles)}


def of_most(took: Sequence[float], predicted: Sequence[int]) -> dict[str, float]:
    most = [ms for ms, count in zip(took, predicted, strict=True) if count >= 450]
    if not most:
        return {"kernels": 0}
    return {"kernels": len(most), **percentiles(most)}


if __name__ == "__main__":
    main()
