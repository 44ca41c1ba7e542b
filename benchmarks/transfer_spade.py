"""The papers' table: a cost model of CPU runs teaches one of SPADE's timing model.

    python benchmarks/spade_runs.py MATRICES SPADE_DATABASE --per-bin 1000 --most 600000
    PYTHONPATH=. python benchmarks/transfer_spade.py CPU_DATABASE SPADE_DATABASE CELLS \\
        > benchmarks/results/transfer_spade.json

Of the matrix families in SPADE_DATABASE two parts of five are held out, by seed; nothing of them is
learned from, on either platform. The other families give the target's samples, and the CPU's runs
are the source's. Each cell of the table is a line of a file in the folder CELLS as soon as it is
known; started again it goes on with the missing ones. `--only TEXT` makes the cells whose method
contains it. SPADE's times come from a timing model, no hardware.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.held_out import split_groups
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.vote import effects, greedy_cover
from embeddb.learning.samples import Samples, samples_of
from embeddb.ranking.rankers.order import behind_default, order_to_try
from indexer.training.cost_model.settings import CostSettings, forest, paper
from indexer.training.cost_model.train import retarget, train
from reproductions.cost_models import MODELS, settings_of
from tuners.evaluation.figures import Outcome, Scorer, Truth, judge, ordering, summarise

#: Everything there is.
ALL = 1_000_000
#: Configurations of each matrix where matrices are counted.
_PER_MATRIX = 100
_PARTS, _HELD_PARTS = 5, 2
_OPS = ("spmm:128", "sddmm:128")
#: Matrices that vote where neighbours do.
_NEAREST = 5
#: Above any gain: what the fixed set holds comes before what it does not.
_FIRST = 100.0


@dataclass(frozen=True)
class Cell:
    """One line of the table: how many matrices teach, on the source and on the target (0: none;
    `ALL`: all with all their configurations), `per` configurations of each, and how."""

    method: str
    source: int = ALL
    target: int = 5
    settings: CostSettings = field(default_factory=CostSettings)
    kind: str = "model"
    per: int = _PER_MATRIX


#: Best from few samples of this platform; shipped for many (docs/explanation/cost-model.md).
_TREES = forest()
_NETWORK = CostSettings()


def cells() -> Iterator[Cell]:
    """The table, other ways to spend 500 samples, and the ablations. `ours` is trees that are told
    what a network trained on the CPU says; the ablations are of COGNATE's own settings, whose
    reference is `COGNATE's settings`."""
    yield Cell("random", 0, 5, kind="random")
    yield Cell("neighbours, 5 x 100", 0, 5, kind="neighbours")
    yield Cell("neighbours, all", 0, ALL, kind="neighbours")
    yield Cell("static, 5 x 100", 0, 5, kind="static")
    yield Cell("static, all", 0, ALL, kind="static")
    yield Cell("zero-shot", ALL, 0, _NETWORK)
    yield Cell("zero-shot, trees", 100, 0, _TREES)
    for name, settings in (("trees", _TREES), ("network", _NETWORK)):
        for count, told in ((5, "5 x 100"), (100, "100 x 100"), (ALL, "all")):
            yield Cell(f"no transfer, {name}, {told}", 0, count, settings)
    yield Cell("ours", ALL, 5, _TREES)
    for count in (5, 20, 100):
        yield Cell(f"ours, source {count} x 100", count, 5, _TREES)
    for count in (3, 7):
        yield Cell(f"ours, target {count} x 100", ALL, count, _TREES)
    for count, per in ((5, 20), (20, 25), (50, 10)):
        yield Cell(f"static, {count} x {per}", 0, count, kind="static", per=per)
        yield Cell(f"no transfer, trees, {count} x {per}", 0, count, _TREES, per=per)
        yield Cell(f"ours, {count} x {per}", ALL, count, _TREES, per=per)
    yield Cell("network, source all", ALL, 5, _NETWORK)
    yield from _published()


def _published() -> Iterator[Cell]:
    published = paper()
    yield Cell("COGNATE's settings", 100, 5, published)
    yield Cell("COGNATE's settings, zero-shot", 100, 0, published)
    yield Cell("COGNATE's settings, no transfer", 0, 5, published)
    yield Cell("COGNATE's settings, 50 x 10", 100, 50, published, per=10)
    yield Cell("COGNATE with tiles", 100, 5, replace(published, parts=(*published.parts, "tiles")))
    for model in MODELS:
        yield Cell(f"COGNATE, {model}", 100, 5, settings_of(model))


class Table:
    """All cells of one op and seed; source models are trained once and kept in `folder`."""

    def __init__(
        self, source: Samples, target: Samples, evidence: RunMatrix, folder: Path, seed: int
    ) -> None:
        (self.op,), self.platform = target.ops, target.platform
        self.seed, self.folder, self.evidence = seed, folder, evidence
        name = f"{source.platform.id}_{self.platform.id}_{self.op}_{seed}"
        self.file = folder / f"{name.replace(':', '-')}.jsonl"
        held = split_groups(target.groups, _PARTS, seed) < _HELD_PARTS
        families = set(target.groups[held].tolist())
        self.test = target.take(np.flatnonzero(held))
        self.target = target.take(np.flatnonzero(~held))
        ids = {row.pattern_id for row in self.test.rows}
        apart = [
            i
            for i, row in enumerate(source.rows)
            if row.group not in families and row.pattern_id not in ids
        ]
        self.source = source.take(apart)

    def missing(self, wanted: Iterable[Cell]) -> list[Cell]:
        done = {line["method"] for line in lines(self.file)}
        return [cell for cell in wanted if cell.method not in done]

    def make(self, cell: Cell) -> None:
        """Trains and judges one cell, and writes its line."""
        source, target = (
            self._limited(self.source, cell.source),
            self._limited(self.target, cell.target, cell.per),
        )
        settings = replace(cell.settings, seed=self.seed)
        started = time.perf_counter()
        if cell.kind == "random":
            outcomes = self._judged(_Random(self.seed))
        elif cell.kind in ("static", "neighbours"):
            outcomes = self._judged((_Static if cell.kind == "static" else _Neighbours)(target))
        else:
            outcomes = self._judged(self._model(source, target, settings))
        took_s = time.perf_counter() - started
        figures, _ = summarise([outcomes])
        beta = self.platform.cost_per_sample
        line = {
            "op": str(self.op),
            "platforms": f"{self.source.platform.id} -> {self.platform.id}",
            "seed": self.seed,
            "method": cell.method,
            "made_by": "timing model" if self.platform.simulated else "measured",
            "source": _told(source),
            "target": _told(target),
            "dce": _count(source) + beta * _count(target),
            "test_matrices": len(outcomes),
            **{name: None if math.isnan(v) else v for name, v in figures.items()},
            "took_s": took_s,
        }
        with self.file.open("a") as out:
            # The line break comes first: the last line may have been cut off by a stop.
            out.write("\n" + json.dumps(line))

    def _limited(self, samples: Samples, matrices: int, per: int = _PER_MATRIX) -> Samples | None:
        if not matrices:
            return None
        if matrices == ALL:
            return samples
        return samples.limited(matrices, per, self.seed)

    def _model(
        self, source: Samples | None, target: Samples | None, settings: CostSettings
    ) -> CostModel:
        start = None if source is None else self._trained(source, settings)
        if target is not None:
            return train(target, settings, start=start)
        assert start is not None
        return retarget(start, self.platform, (self.op,))

    def _trained(self, source: Samples, settings: CostSettings) -> CostModel:
        """The source's model; several cells start from the same one. Trees are told what a network
        says of the source, which it knows better (benchmarks/results/learned_cpu.json)."""
        if settings.predictor == "trees":
            settings = replace(_NETWORK, seed=self.seed)
        name = f"{self.op.name}_{self.seed}_{source.hash}_{digest(settings)}.safetensors"
        file = self.folder / name
        if not file.exists():
            train(source, settings).save(file)
        return CostModel.load(file)

    def _judged(self, scorer: Scorer) -> list[Outcome]:
        place = {row.pattern_id: at for at, row in enumerate(self.evidence.rows)}
        outcomes = []
        for at, row in enumerate(self.test.rows):
            seconds = self.evidence.times(place[row.pattern_id])
            ran = np.flatnonzero(np.isfinite(seconds))
            configs = [self.evidence.configs[c] for c in ran]
            vector = self.test.vectors[at]
            gain, spread = scorer.score(Problem(vector, self.platform, self.op, row.sizes), configs)
            default_s = float(self.evidence.default_s[place[row.pattern_id]])
            truth = Truth(dict(zip(configs, seconds[ran].tolist(), strict=True)), default_s)
            m, n, nnz = row.sizes
            default = self.platform.default(self.op, Sizes(m, n, nnz))
            at = configs.index(default) if default in configs else -1
            # The papers' models whole answer with the five best predicted; what has no spread does.
            known = math.nan if getattr(scorer, "plain", False) else 1.0
            order = order_to_try(configs, gain, spread * known)
            order = behind_default(order, gain, at, getattr(scorer, "guard", 0.0))[:5]
            opa, tau = ordering(-gain, seconds[ran], 0.0)
            outcome = judge(truth, [configs[i] for i in order])
            outcomes.append(replace(outcome, opa=opa, tau=tau))
        return outcomes


class _Static:
    """The best fixed set on the target's samples, best first, and behind it the mean gain of each
    configuration: as strong as a choice can be that does not look at the matrix."""

    def __init__(self, samples: Samples | None) -> None:
        assert samples is not None
        gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
        row = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
        gains[row, samples.column] = samples.gain
        level, mean = effects(gains)
        first = [int(mean.argmax()), *greedy_cover(gains - level[:, None], 16)]
        for place, at in enumerate(dict.fromkeys(first)):
            mean[at] += _FIRST / (1 + place)
        self._mean = dict(zip(samples.configs, mean, strict=True))

    def score(
        self, problem: Problem, configs: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        gain = np.array([self._mean.get(c, 0.0) for c in configs])
        return gain, np.full(len(gain), math.nan)


class _Random:
    """Any order, drawn anew for each matrix."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def score(
        self, problem: Problem, configs: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._rng.random(len(configs)), np.full(len(configs), math.nan)


class _Neighbours:
    """Mean gain over the nearest matrices that ran a configuration, each beyond its own level, by
    statistics, closer ones counting more; what none of them ran comes behind."""

    def __init__(self, samples: Samples | None) -> None:
        assert samples is not None
        gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
        row = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
        gains[row, samples.column] = samples.gain
        level, _ = effects(gains)
        self._gains = gains - level[:, None]
        self._center = samples.vectors.mean(axis=0)
        self._scale = np.maximum(samples.vectors.std(axis=0), 1e-6)
        self._vectors = (samples.vectors - self._center) / self._scale
        self._column = {config: at for at, config in enumerate(samples.configs)}

    def score(
        self, problem: Problem, configs: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        far = np.linalg.norm(self._vectors - (problem.vector - self._center) / self._scale, axis=1)
        near = np.argsort(far)[:_NEAREST]
        weight = 1.0 / (far[near] + 1e-6)
        known = np.isfinite(self._gains[near])
        total = np.where(known, self._gains[near] * weight[:, None], 0.0).sum(axis=0)
        of = (known * weight[:, None]).sum(axis=0)
        mean = np.where(of > 0, total / np.maximum(of, 1e-12), -_FIRST)
        gain = np.array([mean[self._column[c]] if c in self._column else -_FIRST for c in configs])
        return gain, np.full(len(gain), math.nan)


def _count(samples: Samples | None) -> int:
    return 0 if samples is None else len(samples.gain)


def _told(samples: Samples | None) -> dict[str, int]:
    return {"matrices": 0 if samples is None else len(samples.rows), "samples": _count(samples)}


def digest(settings: CostSettings) -> str:
    import hashlib

    return hashlib.blake2b(repr(settings).encode(), digest_size=6).hexdigest()


def lines(file: Path) -> list[dict[str, Any]]:
    """Whole lines of a file; one that was cut off by a stop is made again."""
    found = []
    for text in filter(None, file.read_text().splitlines() if file.exists() else []):
        try:
            found.append(json.loads(text))
        except ValueError:
            print(f"{file.name}: a torn line is left out", file=sys.stderr)
    return found


def work(cpu: Path, spade: Path, folder: Path, op: str, seed: int, only: str) -> None:
    """All missing cells of one op and seed, in one process."""
    what = Op.parse(op)
    with Database.open(cpu, readonly=True) as db:
        source = samples_of(db.index, db.platform("cpu"), [what])
    with Database.open(spade, readonly=True) as db:
        target = samples_of(db.index, db.platform("spade"), [what])
        evidence, _ = db.index.evidence(what, target.platform.id)
    table = Table(source, target, evidence, folder, seed)
    fill(table, [cell for cell in cells() if only in cell.method])


def fill(table: Table, wanted: Iterable[Cell]) -> None:
    """Makes those cells that the table lacks, telling of each."""
    for cell in table.missing(wanted):
        started = time.perf_counter()
        table.make(cell)
        took_s = time.perf_counter() - started
        told = f"{table.file.stem}: {cell.method}, {took_s:.0f} s"
        print(told, file=sys.stderr, flush=True)


def summary(folder: Path) -> list[dict[str, Any]]:
    """Mean over seeds of every figure, and `of_optimum@1` of each seed."""
    held: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        for line in lines(file):
            held[line["platforms"], line["op"], line["method"]].append(line)
    rows = []
    for (platforms, op, method), found in held.items():
        numbers = [n for n, v in found[0].items() if isinstance(v, float)]
        of_optimum = [line["of_optimum@1"] for line in found]
        rows.append(
            {
                **{n: found[0][n] for n in ("made_by", "source", "target", "test_matrices", "dce")},
                "platforms": platforms,
                "op": op,
                "method": method,
                "seeds": len(found),
                **{n: float(np.mean([line[n] for line in found])) for n in numbers},
                "spread": max(of_optimum) - min(of_optimum),
                "by_seed": {line["seed"]: line["of_optimum@1"] for line in found},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("spade", type=Path)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--op", action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes below: one core each
    asked.cells.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, mp_context=context) as pool:
        running = [
            pool.submit(work, asked.cpu, asked.spade, asked.cells, op, seed, asked.only)
            for seed in range(asked.seeds)
            for op in asked.op or _OPS
        ]
        for done in as_completed(running):
            done.result()
    result = {
        "about": about(),
        "source_of_times": "timing model, no hardware",
        "rows": summary(asked.cells),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
