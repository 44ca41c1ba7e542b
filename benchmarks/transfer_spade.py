"""The papers' table: a cost model of CPU runs teaches one of SPADE's timing model.

    python benchmarks/spade_runs.py MATRICES SPADE_DATABASE
    python benchmarks/transfer_spade.py CPU_DATABASE SPADE_DATABASE CELLS \\
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

from embeddb.config import Op
from embeddb.costmodel import CostModel, space_digest
from embeddb.db import Database
from embeddb.evidence import Evidence
from indexer.training import boosted
from indexer.training.costmodel import CostSettings, paper, retarget, train, waco_fa, waco_fm
from indexer.training.samples import Samples, samples_of
from tuners.judge import Outcome, Truth, judge, ordering, summarise
from tuners.learned import Scorer
from tuners.splits import split_groups

#: Everything there is.
ALL = 1_000_000
#: Configurations of each matrix where matrices are counted.
_PER_MATRIX = 100
_PARTS, _HELD_PARTS = 5, 2
_OPS = ("spmm:128", "sddmm:128")


@dataclass(frozen=True)
class Cell:
    """One line of the table: how many matrices teach, on the source and on the target (0: none;
    `ALL`: all with all their configurations), and how."""

    method: str
    source: int = ALL
    target: int = 5
    settings: CostSettings = field(default_factory=CostSettings)
    kind: str = "model"


def cells() -> Iterator[Cell]:
    """The table, and the ablations; `ours` is every row's reference."""
    yield Cell("static, 5 x 100", 0, 5, kind="static")
    yield Cell("static, all", 0, ALL, kind="static")
    if boosted.available():
        yield Cell("boosted, 5 x 100", 0, 5, kind="boosted")
        yield Cell("boosted, all", 0, ALL, kind="boosted")
    yield Cell("zero-shot", ALL, 0)
    for count, name in ((5, "5 x 100"), (100, "100 x 100"), (ALL, "all")):
        yield Cell(f"no transfer, {name}", 0, count)
    yield Cell("ours")
    for count in (5, 20, 100):
        yield Cell(f"source {count} x 100", source=count)
    for count in (3, 7):
        yield Cell(f"target {count} x 100", target=count)
    published = paper()
    yield Cell("COGNATE's settings", source=100, settings=published)
    yield Cell("COGNATE's settings, zero-shot", source=100, target=0, settings=published)
    yield Cell("WACO+FA", source=100, settings=waco_fa())
    yield Cell("WACO+FM", source=100, settings=waco_fm())
    ours = CostSettings()
    for part in ours.parts:
        left = tuple(p for p in ours.parts if p != part)
        yield Cell(f"without {part}", settings=replace(ours, parts=left))
    for latent in ("fa", "pca", "vae"):
        yield Cell(f"latent {latent}", settings=replace(ours, latent=latent))
    for predictor in ("lstm", "gru", "transformer"):
        yield Cell(f"predictor {predictor}", settings=replace(ours, predictor=predictor))
    for fusion in ("add", "concat"):
        if fusion != ours.fusion:
            yield Cell(f"fusion {fusion}", settings=replace(ours, fusion=fusion))


class Table:
    """All cells of one op and seed; source models are trained once and kept in `folder`."""

    def __init__(
        self, source: Samples, target: Samples, evidence: Evidence, folder: Path, seed: int
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
            self._limited(self.target, cell.target),
        )
        settings = replace(cell.settings, seed=self.seed)
        started = time.perf_counter()
        if cell.kind == "static":
            outcomes = self._judged(_Static(target))
        elif cell.kind == "boosted":
            outcomes = self._judged(boosted.train(target))
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

    def _limited(self, samples: Samples, matrices: int) -> Samples | None:
        if not matrices:
            return None
        if matrices == ALL:
            return samples
        return samples.limited(matrices, _PER_MATRIX, self.seed)

    def _model(
        self, source: Samples | None, target: Samples | None, settings: CostSettings
    ) -> CostModel:
        start = None if source is None else self._trained(source, settings)
        if target is not None:
            return train(target, settings, start=start)
        assert start is not None
        if start.card["platform"]["space"] == space_digest(self.platform, self.op):
            return start  # the same configurations: all that it learned holds as it is
        return retarget(start, self.platform, (self.op,))

    def _trained(self, source: Samples, settings: CostSettings) -> CostModel:
        """The source's model; several cells start from the same one."""
        name = f"{self.op.kernel}_{self.seed}_{source.hash}_{_digest(settings)}.safetensors"
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
            gain, _ = scorer.score(vector, self.platform, self.op, configs, row.sizes)
            default_s = float(self.evidence.default_s[place[row.pattern_id]])
            truth = Truth(dict(zip(configs, seconds[ran].tolist(), strict=True)), default_s)
            order = np.argsort(-gain, kind="stable")[:5]
            opa, tau = ordering(-gain, seconds[ran], 0.0)
            outcome = judge(truth, [configs[i] for i in order])
            outcomes.append(replace(outcome, opa=opa, tau=tau))
        return outcomes


class _Static:
    """The mean gain of each configuration over the target's samples."""

    def __init__(self, samples: Samples | None) -> None:
        assert samples is not None
        level = np.array([samples.gain[samples.part(i)].mean() for i in range(len(samples.rows))])
        centred = samples.gain - np.repeat(level, np.diff(samples.indptr))
        count = np.bincount(samples.column, minlength=len(samples.configs))
        total = np.bincount(samples.column, weights=centred, minlength=len(samples.configs))
        self._mean = dict(zip(samples.configs, total / (count + 1), strict=True))

    def score(
        self, vector: Any, platform: Any, op: Any, configs: Any, sizes: Any = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        gain = np.array([self._mean.get(c, 0.0) for c in configs])
        return gain, np.full(len(gain), math.nan)


def _count(samples: Samples | None) -> int:
    return 0 if samples is None else len(samples.gain)


def _told(samples: Samples | None) -> dict[str, int]:
    return {"matrices": 0 if samples is None else len(samples.rows), "samples": _count(samples)}


def _digest(settings: CostSettings) -> str:
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
        source = samples_of(db, db.platform("cpu"), [what])
    with Database.open(spade, readonly=True) as db:
        target = samples_of(db, db.platform("spade"), [what])
        evidence, _ = db.evidence(what, target.platform.id)
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
    """Mean over seeds of every figure, and the spread of `of_optimum@1`."""
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
