"""Devices of others: what one machine's SpMV and SpMM runs are worth on the next.

    python benchmarks/across_devices.py SHARED_RUNS_FOLDER WORK \\
        > benchmarks/results/across_devices.json

Morpheus (formats on eight machine and backend sets, scored on its authors' test lists), ginkgo
(its devices as instances of one portable platform) and RA-SpMM (all widths, one graph left
out). Every answer comes from the code that answers queries. Nothing is measured, so the figures
repeat. WORK keeps the database between runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import run_matrix_of
from embeddb.index.vote import plain_metric
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Outcome, Truth, judge
from tuners.evaluation.splits import split_groups

_MORPHEUS, _GINKGO, _KERNELS = "morpheus-formats", "spmv-formats-portable", "gpu-kernels"
_LOCAL = (10, 100)
_FOLDS = 3
#: As in `embeddb eval`.
_PLAIN_K = 7
#: Ginkgo's devices, source to target.
_PAIRS = (
    ("V100_SXM2", "Xeon_Gold_6230"),
    ("Xeon_Gold_6230", "V100_SXM2"),
    ("V100_SXM2", "titanV"),
    ("V100_SXM2", "RadeonVII"),
    ("RadeonVII", "Xeon_Gold_6230"),
)
#: What the authors report; their figures are not recomputed here.
_THEIRS = {
    "morpheus": {
        "tree of_optimum, mean of 11 sets": 0.984,
        "tree of_optimum, least and most": [0.972, 0.995],
        "csr of_optimum": 0.932,
        "tree slower than csr, least and most": [0.012, 0.048],
        "winner of the same matrix from another CPU, cost": [1.012, 1.044],
    },
    "ra-spmm": {"tree of_optimum": 0.957, "forest of_optimum": 0.969},
}

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Found = dict[str, list[Outcome]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", default="", help="morpheus, zero-shot, ginkgo or ra-spmm")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    asked.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with _database(asked.runs, asked.work / "across.db") as db:
        for name, part in _PARTS.items():
            if asked.only in ("", name):
                for row in part(db, asked.runs):
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
    print(json.dumps({"about": about(), "theirs": _THEIRS, "rows": rows}, indent=1))


def _database(runs: Path, place: Path) -> Database:
    """All runs with the features that come with them; ginkgo's devices share evidence."""
    if place.exists():
        return Database.open(place)
    db = Database.create(place)
    text = load_platform("spmv-formats").text.replace('"spmv-formats"', f'"{_GINKGO}"')
    shared = parse_platform(text.replace("cost_per_sample = 1", "portable = true"))
    options = ReadOptions(features=runs / "ginkgo/matrix_features.csv.gz")
    ingest(db.store, runs / "ginkgo/spmv_times.csv.gz", platform=shared, options=options)
    for log in sorted((runs / "morpheus").glob("*.csv.gz")):
        ingest(db.store, log, options=options)
    ingest(db.store, runs / "ra-spmm/rtx3090_sweep.csv")
    embed(db.index)
    return db


# -- one set with a test list ----------------------------------------------------------------------


def morpheus(db: Database, runs: Path) -> Iterator[dict[str, Any]]:
    """Each set's own test list, asked of the set's other matrices; and of all sets, without and
    with what the test matrices did elsewhere. Matrices are their own groups, as in the authors'
    random split."""
    case = _Case(db, Op.parse("spmv:f64"), _MORPHEUS)
    for name in case.instances():
        here, test = case.of == name, case.listed(runs, name)
        known = {
            "its other matrices": here & ~test,
            "and other sets, without the test matrices": ~test,
            "and other sets, with the test matrices": ~(here & test),
        }
        for what, kept in known.items():
            partition = case.build(kept)
            found = case.asked(np.flatnonzero(here & test), partition)
            if what == "its other matrices":
                found["plain neighbours"] = case.plain(np.flatnonzero(here & test), kept)
            yield from _lines(found, part="morpheus", target=name, knows=what)


def zero_shot(db: Database, runs: Path) -> Iterator[dict[str, Any]]:
    """One CPU set left out: from the other CPUs or the GPUs, then with some of its matrices."""
    case = _Case(db, Op.parse("spmv:f64"), _MORPHEUS)
    gpu = np.array([name.endswith("cuda") for name in case.of])
    for name in case.instances():
        if name.endswith("cuda"):
            continue
        here, test = case.of == name, case.listed(runs, name)
        for source, others in (("other CPUs", ~gpu & ~here), ("GPUs", gpu)):
            for same in (True, False):
                known = "with the test matrices" if same else "without them"
                facts = {"part": "zero-shot", "target": name, "knows": f"{source} {known}"}
                kept = others if same else others & ~test
                yield from case.curve(kept, here & ~test, here & test, facts)


def ginkgo(db: Database, runs: Path) -> Iterator[dict[str, Any]]:
    """A device from another one, groups of matrices held out; and the same where the source ran the
    very matrices asked about."""
    case = _Case(db, Op.parse("spmv:f64"), _GINKGO)
    for source, target in _PAIRS:
        fold = split_groups(case.bench.evidence.groups, _FOLDS, 0)
        theirs, here = case.of == source, case.of == target
        for same in (True, False):
            done: dict[int, Found] = {}
            for held in range(_FOLDS):
                test = fold == held
                kept = theirs if same else theirs & ~test
                for local, found in case.learning(kept, here & ~test, here & test):
                    for method, outcomes in found.items():
                        done.setdefault(local, {}).setdefault(method, []).extend(outcomes)
            knows = f"{source} {'with' if same else 'without'} the matrices asked about"
            for local, found in done.items():
                yield from _lines(found, part="ginkgo", target=target, knows=knows, local=local)


# -- RA-SpMM ---------------------------------------------------------------------------------------


def ra_spmm(db: Database, runs: Path) -> Iterator[dict[str, Any]]:
    """One graph left out at all widths; what is known of the others at all widths, or at one."""
    ops = sorted(p.op for p in db.store.partitions() if p.platform.startswith(_KERNELS))
    parts = [p for p in db.store.partitions() if p.platform.startswith(_KERNELS)]
    scope = parts[0].platform
    pooled: Found = {}
    alone: Found = {}
    for op in ops:
        bench = Bench(db.index, op, scope)
        wide = run_matrix_of(db.store, op, scope, partitions=parts)
        for row in bench.counted:
            graph = bench.evidence.rows[int(row)].pattern_id
            truth = bench.truth(int(row))
            for evidence, found in ((wide, pooled), (bench.evidence, alone)):
                rest = [i for i, r in enumerate(evidence.rows) if r.pattern_id != graph]
                known = evidence.take(np.array(rest, dtype=np.int64))
                partition = AnswerIndex.build(known, bench.vectors, scope=scope)
                _ask(truth, bench.query(int(row), partition), found)
    facts = {"part": "ra-spmm", "target": "rtx3090"}
    yield from _lines(pooled, **facts, knows="other graphs at all widths")
    yield from _lines(alone, **facts, knows="other graphs at the width asked about")


# -- the harness -----------------------------------------------------------------------------------


class _Case:
    """One op on one portable platform; `of` str[r] is the instance of each row of evidence."""

    def __init__(self, db: Database, op: Op, scope: str) -> None:
        self._use(Bench(db.index, op, scope))

    def _use(self, bench: Bench) -> None:
        self.bench = bench
        self.of = np.array([row.platform.partition("@")[2] for row in bench.evidence.rows])
        self.facts = {i: p.environment for i, p in bench.platforms.items()}

    def instances(self) -> list[str]:
        return sorted(set(self.of.tolist()))

    def listed(self, runs: Path, instance: str) -> Mask:
        """bool[r]: rows, of any set, of the matrices on a set's test list."""
        machine, _, backend = instance.rpartition("-")
        path = runs / "morpheus/test_lists" / f"{machine}-square_set-{backend}.txt"
        names = set(path.read_text(encoding="utf-8").split())
        infos = self.bench.infos
        return np.array([infos[r.pattern_id].name in names for r in self.bench.evidence.rows])

    def build(self, kept: Mask) -> AnswerIndex:
        """The partition of some rows, every matrix its own group."""
        known = _by_name(self.bench.evidence.take(np.flatnonzero(kept)).pruned())
        facts = {row.platform: self.facts[row.platform] for row in known.rows}
        return AnswerIndex.build(known, self.bench.vectors, scope=self.bench.scope, facts=facts)

    def asked(self, rows: Rows, partition: AnswerIndex) -> Found:
        found: Found = {}
        counted = set(self.bench.counted.tolist())
        for row in (int(r) for r in rows if int(r) in counted):
            _ask(self.bench.truth(row), self.bench.query(row, partition), found)
        return found

    def curve(
        self, kept: Mask, own: Mask, test: Mask, facts: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for local, found in self.learning(kept, own, test):
            yield from _lines(found, **facts, local=local)

    def learning(self, kept: Mask, own: Mask, test: Mask) -> Iterator[tuple[int, Found]]:
        """Answers on the test rows from those kept and 0, 10, 100 of the target's own."""
        whole = self.build(kept)
        drawn = np.random.default_rng(0).permutation(np.flatnonzero(own))
        vectors = self.bench.vectors[whole.featurizer]
        for local in (0, *_LOCAL):
            partition = whole
            if local:
                given = _by_name(self.bench.evidence.take(np.sort(drawn[:local])).pruned())
                new = {row.pattern_id for row in given.rows} - set(whole.ids)
                fresh = {i: vectors[i] for i in new if i in vectors}
                partition = whole.grown(given, fresh, self.facts)
            yield local, self.asked(np.flatnonzero(test), partition)

    def plain(self, rows: Rows, kept: Mask) -> list[Outcome]:
        """Mean gain of the nearest by standardised features, as the plainest user would."""
        evidence, vectors = self.bench.evidence, next(iter(self.bench.vectors.values()))
        known = [i for i in np.flatnonzero(kept) if evidence.rows[i].pattern_id in vectors]
        raw = np.array([vectors[evidence.rows[i].pattern_id] for i in known], dtype=np.float32)
        metric = plain_metric(raw)
        at, gains = metric.apply(raw), evidence.gains(np.array(known, dtype=np.int64))
        mean_of_all, found = np.nanmean(gains, axis=0), []
        counted = set(self.bench.counted.tolist())
        for row in (int(r) for r in rows if int(r) in counted):
            vector, mean = vectors.get(evidence.rows[row].pattern_id), mean_of_all
            if vector is not None:
                far = ((at - metric.apply(vector[None])) ** 2).sum(axis=1)
                mean = np.nanmean(gains[np.argsort(far, kind="stable")[:_PLAIN_K]], axis=0)
            order = np.argsort(-mean, kind="stable")[:5]
            found.append(judge(self.bench.truth(row), [evidence.configs[i] for i in order]))
        return found


def _by_name(evidence: RunMatrix) -> RunMatrix:
    rows = tuple(row._replace(group=row.pattern_id) for row in evidence.rows)
    return replace(evidence, rows=rows)


def _ask(truth: Truth, query: Query, found: Found) -> None:
    first = answer(query, 5, rng=np.random.default_rng(0)).candidates
    static = np.argsort(-query.vote.mean, kind="stable")[:5]
    methods: dict[str, Sequence[Config]] = {
        "embeddb": [Config(c.config) for c in first],
        "default": [query.default],
        "static best": [query.vote.configs[i] for i in static],
    }
    if query.vote.neighbours and np.isfinite(query.vote.gains[0]).any():
        copied = np.argsort(-np.nan_to_num(query.vote.gains[0], nan=-math.inf), kind="stable")
        methods["nearest winner"] = [query.vote.configs[i] for i in copied[:5]]
    for method, proposals in methods.items():
        found.setdefault(method, []).append(judge(truth, proposals))


def _lines(found: Found, **facts: Any) -> Iterator[dict[str, Any]]:
    """Figures of each method; `of_optimum` are geometric means, `mean_of_optimum` the arithmetic
    one that some authors give."""
    for method, outcomes in found.items():
        one, five = (
            np.array([getattr(o, name) for o in outcomes])
            for name in ("of_optimum_1", "of_optimum_5")
        )
        yield {
            **facts,
            "method": method,
            "matrices": len(outcomes),
            "of_optimum@1": round(float(np.exp(one.mean())), 4),
            "of_optimum@5": round(float(np.exp(five.mean())), 4),
            "mean_of_optimum@1": round(float(np.exp(one).mean()), 4),
            "slower_than_default": round(float(np.mean([o.slower for o in outcomes])), 4),
            "over_default": round(float(np.exp(np.mean([o.gain_1 for o in outcomes]))), 4),
        }


_PARTS = {"morpheus": morpheus, "zero-shot": zero_shot, "ginkgo": ginkgo, "ra-spmm": ra_spmm}


if __name__ == "__main__":
    main()
