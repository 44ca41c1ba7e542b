"""Other real targets of the cost model: GPU kernels (RA-SpMM) and TACO schedules (WACO).

    python benchmarks/transfer_targets.py SHARED_RUNS_FOLDER CPU_DATABASE WORK \\
        > benchmarks/results/transfer_targets.json

Runs of others; nothing is measured here. RA-SpMM: up to 51 graphs x 10 kernels on one GPU, judged
as in transfer_devices.py; what teaches is another width, or our CPU. The small sweep of that source
lacks row statistics and is left out. WACO: 10 matrices x about 85 schedules that hardly repeat. The
default never ran there, so there are no gains, and the optimum is the best that ran: rows say how
well each way orders a held-out matrix's own runs. Seven of the ten have no structure, so all are
taken as unknown matrices (one vector for all) but where a row says otherwise. CPU_DATABASE is the
starter. WORK keeps databases, models and lines that are done; started again it goes on with the
missing ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray
from transfer_spade import ALL, Cell, Table, fill, lines, summary

from embeddb.core.config import Config, Op
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.ranking.rankers.order import order_to_try
from indexer.embed import adopt_stubs, embed
from indexer.ingest import ingest
from indexer.library import Library
from indexer.training.cost_model.samples import Samples, from_evidence, samples_of
from indexer.training.cost_model.train import CostSettings, forest, train
from tuners.evaluation.figures import Outcome, Truth, judge, ordering

_SEEDS = 3
_NETWORK = CostSettings()
#: Of WACO's ten matrices so many teach in the few-shot rows, with at most so many runs.
_FEW, _PER_MATRIX = 5, 100
_SOURCE_MATRICES = 100
#: One network, and principal components for its autoencoder, which every fold would fit anew.
_PLAIN = CostSettings(latent="pca", members=1)
_UNKNOWN = (-1, -1, -1)
_DRAWS = 200

Floats = NDArray[np.float64]


# -- RA-SpMM ---------------------------------------------------------------------------------------


def own_cells() -> list[Cell]:
    """What needs no source."""
    return [
        Cell("static, 5 matrices", 0, 5, kind="static"),
        Cell("static, 10 matrices", 0, 10, kind="static"),
        Cell("static, all", 0, ALL, kind="static"),
        Cell("no transfer, network, 10 matrices", 0, 10, _NETWORK),
        Cell("no transfer, network, all", 0, ALL, _NETWORK),
        Cell("no transfer, trees, 5 matrices", 0, 5, forest()),
        Cell("no transfer, trees, 10 matrices", 0, 10, forest()),
        Cell("no transfer, trees, all", 0, ALL, forest()),
    ]


def source_cells(name: str) -> list[Cell]:
    return [
        Cell(f"{name} alone, network", ALL, 0, _NETWORK),
        Cell(f"{name} and 10 matrices, network", ALL, 10, _NETWORK),
        Cell(f"{name} and 10 matrices, trees", ALL, 10, forest()),
    ]


def on_gpu(runs: Path, cpu: Path, work: Path) -> list[dict[str, Any]]:
    """Rows of RA-SpMM: 64 and 512 dense columns teach each other, the CPU teaches 512."""
    rows: list[dict[str, Any]] = []
    with _database([runs / "ra-spmm/rtx3090_sweep.csv"], work / "ra.db") as db:
        for source, target in ((512, 64), (64, 512)):
            tables = work / f"ra-{target}"
            tables.mkdir(exist_ok=True)
            cells = [*own_cells(), *source_cells(f"K = {source}")]
            _judge_gpu(db, _gpu(db, source, "rows"), target, "rows", tables, cells)
            rows += _rows(tables, "rows")
        with Database.open(cpu, readonly=True) as ours:
            taught = samples_of(
                ours.index, ours.platform("cpu"), [Op.parse("spmm:512")], featurizer="sizes"
            )
        cells = [own_cells()[3], own_cells()[6], *source_cells("the CPU")]
        tables = work / "ra-cpu"
        tables.mkdir(exist_ok=True)
        _judge_gpu(db, taught, 512, "sizes", tables, cells)
        rows += _rows(tables, "sizes")
    return rows


def _rows(tables: Path, features: str) -> list[dict[str, Any]]:
    """The rows of one folder, with what the default reaches there: both figures are geometric means
    over the same matrices, so it is the same for every method of a seed."""
    made = [line for file in tables.glob("*.jsonl") for line in lines(file)]
    by_seed = {line["seed"]: line["of_optimum@1"] / line["speedup@1"] for line in made}
    default = float(np.mean(list(by_seed.values())))
    told = {"features": features, "default_of_optimum": default}
    return [{**told, **row} for row in summary(tables)]


def _gpu(db: Database, width: int, featurizer: str) -> Samples:
    return samples_of(
        db.index,
        db.platform("gpu-kernels@rtx3090"),
        [Op("spmm", width)],
        featurizer=featurizer,
    )


def _judge_gpu(
    db: Database, source: Samples, width: int, featurizer: str, place: Path, cells: list[Cell]
) -> None:
    """Only graphs whose default ran: the others have no gains."""
    target = _gpu(db, width, featurizer)
    evidence, _ = db.index.evidence(target.ops[0], target.platform.id)
    ran = np.isfinite(evidence.default_s)
    judged = {r.pattern_id for r, ok in zip(evidence.rows, ran, strict=True) if ok}
    target = target.take([i for i, r in enumerate(target.rows) if r.pattern_id in judged])
    for seed in range(_SEEDS):
        fill(Table(source, target, evidence, place, seed), cells)


def _database(logs: Sequence[Path], place: Path, matrices: Path | None = None) -> Database:
    """Runs of others, with the features that come with them or with their structures."""
    if place.exists():
        return Database.open(place)
    db = Database.create(place)
    for log in logs:
        ingest(db.store, log)
    if matrices is not None:
        adopt_stubs(db.index, Library(matrices))
    embed(db.index)
    return db


# -- WACO ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How runs of some matrices teach to order those of another; `source`: from our CPU runs.
    What takes long was not made of all kernels and splits."""

    name: str
    settings: CostSettings | None
    source: bool = False
    kernels: tuple[str, ...] = ("spmm", "sddmm", "spmv")
    splits: tuple[str, ...] = ("5 x 100", "one left out")


_WAYS = (
    Way("random", None),
    Way("main effects", None),
    Way("trees", forest()),
    Way("network", _PLAIN, kernels=("spmm",)),
    Way("the CPU and network", _PLAIN, True, ("spmm",), ("5 x 100",)),
)


class MainEffects:
    """A fixed choice where no schedule ran twice: ridge regression of log gains on the values of
    each parameter alone, the place of each loop in the order among them."""

    def __init__(self, samples: Samples) -> None:
        names = sorted({word for c in samples.configs for word in _words(c)})
        self._place = {name: at for at, name in enumerate(names)}
        parts = [samples.gain[samples.part(i)] for i in range(len(samples.rows))]
        y = np.concatenate([gain - gain.mean() for gain in parts])
        x = self._table([samples.configs[c] for c in samples.column])
        self._weights = np.linalg.solve(x.T @ x + 5.0 * np.eye(x.shape[1]), x.T @ y)

    def _table(self, configs: Sequence[Config]) -> Floats:
        table = np.zeros((len(configs), len(self._place)))
        for row, config in enumerate(configs):
            for word in _words(config):
                if word in self._place:
                    table[row, self._place[word]] = 1.0
        return table

    def score(
        self, vector: Any, platform: Any, op: Any, configs: Sequence[Config], sizes: Any = ()
    ) -> tuple[Floats, Floats]:
        gain: Floats = self._table(configs) @ self._weights
        return gain, np.full(len(gain), np.nan)


class Chance:
    """Random picks, the same for a matrix every time."""

    def __init__(self, draw: int) -> None:
        self._rng = np.random.default_rng(draw)

    def score(
        self, vector: Any, platform: Any, op: Any, configs: Sequence[Config], sizes: Any = ()
    ) -> tuple[Floats, Floats]:
        return self._rng.normal(size=len(configs)), np.full(len(configs), np.nan)


def _words(config: Config) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, (tuple, list)):
            yield from (f"{name}[{at}]={loop}" for at, loop in enumerate(value))
        else:
            yield f"{name}={value}"


def unknown(samples: Samples) -> Samples:
    """The same runs of matrices of which nothing is known."""
    rows = tuple(row._replace(sizes=_UNKNOWN) for row in samples.rows)
    blank = np.zeros((len(rows), 1), dtype=np.float32)
    return replace(samples, rows=rows, vectors=blank, featurizer="none", featurizer_version="1")


def on_waco(runs: Path, cpu: Path, work: Path) -> list[dict[str, Any]]:
    """Rows of WACO, mean over seeds or matrices."""
    logs = [runs / "waco" / name for name in ("SpMM", "SDDMM", "SpMV")]
    with _database(logs, work / "waco.db", runs / "waco/dataset") as db:
        ops = (Op("spmm", 256), Op("sddmm", 256), Op("spmv"))
        tables = [WacoTable(db, op, cpu, work) for op in ops]
        for way in _WAYS:
            for table in tables:
                if table.op.kernel in way.kernels:
                    table.fill(way, table.whole, "unknown matrices")
            table = tables[0]
            ids = {row.pattern_id for row in table.known.rows}
            few = [i for i, row in enumerate(table.whole.rows) if row.pattern_id in ids]
            table.fill(way, table.whole.take(few), "the 3 with a structure, as unknown")
            table.fill(way, table.known, "the 3 with a structure, stats")
    return _averaged(lines(work / "waco.jsonl"))


class WacoTable:
    """What WACO ran of one op: the `whole` as unknown matrices, and those with a structure as
    `known` by `stats`. Sources are trained once and kept in `work`, lines are added to a file."""

    def __init__(self, db: Database, op: Op, cpu: Path, work: Path) -> None:
        self.op, self.cpu, self.work = op, cpu, work
        self.file = work / "waco.jsonl"
        platform = db.platform("waco-cpu")
        evidence, _ = db.index.evidence(op, platform.id)
        blank = {row.pattern_id: np.zeros(1, dtype=np.float32) for row in evidence.rows}
        self.whole = unknown(from_evidence(evidence, blank, {}, platform, op))
        self.known = samples_of(db.index, platform, [op])
        self._seconds = {r.pattern_id: evidence.times(i) for i, r in enumerate(evidence.rows)}
        self._place = {config: at for at, config in enumerate(evidence.configs)}

    def fill(self, way: Way, samples: Samples, what: str) -> None:
        """Writes one line for each split that is not there yet."""
        there = {(d["op"], d["way"], d["matrices"], d["split"], d["at"]) for d in lines(self.file)}
        for split, at, learn, test in _splits(samples):
            done = (str(self.op), way.name, what, split, at) in there
            if done or split not in way.splits:
                continue
            started = time.perf_counter()
            outcomes = self._judged(way, learn, test, at)
            line = {
                "op": str(self.op),
                "way": way.name,
                "matrices": what,
                "split": split,
                "at": at,
                "learned_from": len(learn.gain),
                "outcomes": [[o.opa, o.tau, o.of_optimum_1, o.of_optimum_5] for o in outcomes],
                "took_s": time.perf_counter() - started,
            }
            with self.file.open("a") as out:
                out.write("\n" + json.dumps(line))
            print(self.op, way.name, what, split, at, f"{line['took_s']:.1f} s", file=sys.stderr)

    def _judged(self, way: Way, learn: Samples, test: Samples, seed: int) -> list[Outcome]:
        if way.name == "random":
            return [o for draw in range(_DRAWS) for o in self._outcomes(Chance(draw), test)]
        if way.settings is None:
            return self._outcomes(MainEffects(learn), test)
        start = self._source(way, learn) if way.source else None
        return self._outcomes(train(learn, replace(way.settings, seed=seed), start=start), test)

    def _source(self, way: Way, learn: Samples) -> CostModel:
        """A network of 100 x 100 CPU runs, without the families of WACO's matrices."""
        assert way.settings is not None
        file = self.work / f"{self.op.kernel}_{learn.featurizer}.safetensors"
        if not file.exists():
            op = self.op if self.op.kernel == "spmv" else Op(self.op.kernel, 128)
            with Database.open(self.cpu, readonly=True) as db:
                samples = samples_of(db.index, db.platform("cpu"), [op])
            others = [i for i, r in enumerate(samples.rows) if not _of_waco(r.group)]
            few = samples.take(others).limited(_SOURCE_MATRICES, _PER_MATRIX, 0)
            train(unknown(few) if learn.featurizer == "none" else few, way.settings).save(file)
        return CostModel.load(file)

    def _outcomes(self, scorer: Any, test: Samples) -> list[Outcome]:
        """As far as runs go: all schedules of a matrix are ordered, the first five are tried."""
        found = []
        for at, row in enumerate(test.rows):
            configs = [test.configs[c] for c in test.column[test.part(at)]]
            # Not the gains: these are cut below, where half of WACO's schedules are.
            seconds = self._seconds[row.pattern_id][[self._place[c] for c in configs]]
            truth = Truth(dict(zip(configs, seconds.tolist(), strict=True)), np.nan)
            gain, spread = scorer.score(
                test.vectors[at], test.platform, self.op, configs, row.sizes
            )
            order = order_to_try(configs, gain, spread)[:5]
            opa, tau = ordering(-gain, seconds, 0.0)
            found.append(replace(judge(truth, [configs[i] for i in order]), opa=opa, tau=tau))
        return found


def _splits(samples: Samples) -> Iterator[tuple[str, int, Samples, Samples]]:
    count = len(samples.rows)
    if count > _FEW:
        for seed in range(_SEEDS):
            order = np.random.default_rng(seed).permutation(count)
            few, rest = samples.take(np.sort(order[:_FEW])), samples.take(np.sort(order[_FEW:]))
            yield "5 x 100", seed, few.limited(_FEW, _PER_MATRIX, seed), rest
    for at in range(count):
        rest = samples.take([i for i in range(count) if i != at])
        yield "one left out", at, rest, samples.take([at])


def _of_waco(group: str) -> bool:
    return group.lower().startswith(("trec", "crystk", "nemspmm", "chevron", "lhr", "vibrobox"))


def _averaged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    held: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        held[line["op"], line["matrices"], line["split"], line["way"]].append(line)
    rows = []
    for (op, matrices, split, way), parts in held.items():
        each = np.array([np.nanmean(part["outcomes"], axis=0) for part in parts])
        opa, tau, first, five = each.mean(axis=0)
        error = each[:, 2].std(ddof=1) / np.sqrt(len(parts))
        rows.append(
            {
                "op": op,
                "matrices": matrices,
                "split": split,
                "way": way,
                "splits": len(parts),
                "learned_from": float(np.mean([part["learned_from"] for part in parts])),
                "opa": opa,
                "tau": tau,
                "of_best_run@1": float(np.exp(first)),
                "of_best_run@5": float(np.exp(five)),
                "log_error@1": float(error),
                "took_s": float(np.mean([part["took_s"] for part in parts])),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("cpu", type=Path)
    parser.add_argument("work", type=Path)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    asked.work.mkdir(parents=True, exist_ok=True)
    result = {
        "about": about(),
        "seeds": list(range(_SEEDS)),
        "ra_spmm": on_gpu(asked.runs, asked.cpu, asked.work),
        "waco": on_waco(asked.runs, asked.cpu, asked.work),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
