"""The one harness behind every quality figure: held-out groups, replayed from the store.

Nothing is measured here and nothing fitted sees a held-out group: metric, neighbours, averages and
the choice of featurizer are made anew from the training rows of every fold, by the very code that
answers queries. Definitions are those of docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.config import Config, Op
from embeddb.db import Database
from embeddb.errors import NothingFound
from embeddb.evidence import Evidence
from embeddb.partition import PartitionIndex
from embeddb.platform import Platform
from embeddb.policy import plain_metric
from embeddb.prepare import with_evidence
from embeddb.query import Query
from embeddb.records import PatternInfo
from embeddb.vectors.numpy_index import NumpyIndex
from tuners.answer import answer
from tuners.judge import EvalRow, Outcome, Truth, judge, ordering, summarise
from tuners.static_best import StaticBestTuner
from tuners.static_top_k import StaticTopKTuner
from tuners.transfer import scores

__all__ = ["Bench", "complete_rows", "counted_rows", "evaluate", "split_groups"]

#: A matrix counts when at least this share of its configurations ran.
_COUNTED_SHARE = 0.6
#: A configuration counts when at least this share of the matrices tried it. Where campaigns sample
#: configurations per matrix, a proposal from outside could hardly ever be judged.
_COMMON_SHARE = 0.8
#: A matrix is complete when it tried at least this share of all configurations anyone tried.
_COMPLETE_SHARE = 0.6
#: Neighbours of the plain baseline, as in the prototype that docs/evaluation.md cites.
_PLAIN_K = 7
_RANDOM_DRAWS = 20
_K = 5

Vectors = Mapping[str, Mapping[str, NDArray[np.float32]]]


def evaluate(
    db: Database,
    *,
    scopes: Sequence[tuple[Op, str]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    folds: int = 5,
    complete: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[EvalRow]:
    """The table of docs/evaluation.md for each scope, best method last but for the oracle.

    With `complete`, only matrices count (to learn from as well) that tried nearly every
    configuration, so that the oracle is the best of the space.

    Raises: NothingFound if no scope has matrices of at least two groups to hold out.
    """
    rows: list[EvalRow] = []
    for op, scope in scopes if scopes is not None else db.scopes():
        bench = Bench(db, op, scope, complete=complete)
        if not bench.ready:
            continue
        rows += bench.table(seeds, folds, progress)
    if not rows:
        raise NothingFound(
            "nothing to judge: no op and platform has runs of two or more groups of matrices",
            hint="measure or ingest more matrices",
        )
    return rows


def counted_rows(evidence: Evidence) -> NDArray[np.int64]:
    """Rows int64[r'] whose default ran, with another one, and 60 % of whose tries ran."""
    tried = np.diff(evidence.indptr)
    ok = np.add.reduceat(
        np.append(np.isfinite(evidence.seconds), False).astype(np.int64), evidence.indptr[:-1]
    )
    ok[tried == 0] = 0
    good = np.isfinite(evidence.default_s) & (ok >= 2) & (ok >= _COUNTED_SHARE * tried)
    return np.flatnonzero(good)


def complete_rows(evidence: Evidence) -> NDArray[np.int64]:
    """Rows int64[r'] that tried at least 60 % of everything any row tried."""
    return np.flatnonzero(np.diff(evidence.indptr) >= _COMPLETE_SHARE * len(evidence.configs))


def split_groups(groups: NDArray[np.str_], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold int64[r] of each row; a group is in one fold, folds are of near equal size."""
    names, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member)
    load = np.zeros(folds)
    fold = np.zeros(len(names), dtype=np.int64)
    for at in np.random.default_rng(seed).permutation(len(names)):
        fold[at] = int(np.argmin(load))
        load[fold[at]] += size[at]
    chosen: NDArray[np.int64] = fold[member]
    return chosen


class Bench:
    """One op in one scope, with everything that does not depend on the fold; `ready` if there
    is something to hold out."""

    def __init__(self, db: Database, op: Op, scope: str, *, complete: bool = False) -> None:
        self.op, self.scope = op, scope
        evidence, self.vectors = db.evidence(op, scope)
        if complete:
            evidence = evidence.take(complete_rows(evidence))
        self.evidence = evidence.tried_on(_COMMON_SHARE)
        seen = [self.evidence.rows[i].pattern_id for i in range(len(self.evidence.rows))]
        indexed = set.union(*(set(v) for v in self.vectors.values())) if self.vectors else set()
        self.counted = np.array(
            [i for i in counted_rows(self.evidence) if seen[i] in indexed], dtype=np.int64
        )
        self.ready = np.unique(self.evidence.groups[self.counted]).size >= 2
        self.infos = {i: db.store.pattern(i) or PatternInfo(id=i) for i in set(seen)}
        ids = {row.platform for row in self.evidence.rows}
        self.platforms: dict[str, Platform] = {i: db.platform(i) for i in ids}
        self.simulated = any(p.simulated for p in self.platforms.values())

    def table(
        self,
        seeds: Sequence[int],
        folds: int,
        progress: Callable[[str, int, int], None] | None,
    ) -> list[EvalRow]:
        done: dict[str, list[list[Outcome]]] = {}
        for at, seed in enumerate(seeds):
            one: dict[str, list[Outcome]] = {}
            for fold, (train, test) in enumerate(self._folds(folds, seed)):
                plain = _Plain(
                    self.evidence.take(train).pruned(), next(iter(self.vectors.values()))
                )
                rng = np.random.default_rng(0)
                for row, query in self._queries(train, test):
                    for method, outcome in self._judged(row, query, plain, rng):
                        one.setdefault(method, []).append(outcome)
                if progress is not None:
                    progress(
                        f"{self.op} on {self.scope}", at * folds + fold + 1, len(seeds) * folds
                    )
            for method, outcomes in one.items():
                done.setdefault(method, []).append(outcomes)
        return [self._row(method, by_seed) for method, by_seed in done.items()]

    def _row(self, method: str, by_seed: list[list[Outcome]]) -> EvalRow:
        figures, spread = summarise(by_seed)
        return EvalRow(
            self.scope, str(self.op), method, len(by_seed[0]), figures, spread, self.simulated
        )

    def _folds(
        self, folds: int, seed: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Training rows (all of the other groups) and test rows (counted ones) of each fold."""
        groups = self.evidence.groups
        names = np.unique(groups[self.counted])
        fold = split_groups(groups, min(folds, names.size), seed)
        for at in range(min(folds, names.size)):
            test = self.counted[fold[self.counted] == at]
            train = np.flatnonzero(fold != at)
            if test.size and train.size:
                yield train, test

    def queries(self, folds: int, seed: int) -> Iterator[tuple[int, Query]]:
        """Every counted row, and the question it poses to what was measured without its group."""
        for train, test in self._folds(folds, seed):
            yield from self._queries(train, test)

    def _queries(
        self, train: NDArray[np.int64], test: NDArray[np.int64]
    ) -> Iterator[tuple[int, Query]]:
        known = self.evidence.take(train).pruned()
        partition = PartitionIndex.build(known, self.vectors, scope=self.scope)
        for row in test:
            pattern_id, platform_id, _ = self.evidence.rows[row]
            yield int(row), self._query(pattern_id, platform_id, partition)

    def _judged(
        self, row: int, query: Query, plain: _Plain, rng: np.random.Generator
    ) -> Iterator[tuple[str, Outcome]]:
        truth = self._truth(row)
        pattern_id = self.evidence.rows[row].pattern_id
        yield "default", judge(truth, [query.default])
        yield "random", _averaged([judge(truth, drawn) for drawn in _draws(query, rng)])
        best = _configs(StaticBestTuner(query, rng=rng).ask(_K))
        yield "static-best", _ordered(judge(truth, best[:1]), truth, query, -query.mean)
        yield "static-top-k", judge(truth, _configs(StaticTopKTuner(query, rng=rng).ask(_K)))
        vector = plain.vectors.get(pattern_id)
        if vector is not None:
            vote = plain.vote(vector)
            order = [plain.configs[i] for i in np.argsort(-vote, kind="stable")[:_K]]
            yield "knn-stats", _ordered(judge(truth, order), truth, query, -vote, plain.configs)
        found = answer(query, _K, rng=rng)
        proposals = _configs(found.candidates)
        illegal = sum(query.space.reason(c) is not None for c in proposals)
        outcome = judge(truth, proposals, illegal=illegal)
        yield "embeddb", _ordered(outcome, truth, query, -scores(query)[0])
        ranked = sorted(truth.times, key=lambda c: truth.times[c])
        yield "oracle", judge(truth, ranked)

    def _truth(self, row: int) -> Truth:
        e = self.evidence
        part = slice(e.indptr[row], e.indptr[row + 1])
        times = {
            e.configs[c]: float(t) for c, t in zip(e.column[part], e.seconds[part], strict=True)
        }
        return Truth(times, float(e.default_s[row]))

    def _query(self, pattern_id: str, platform_id: str, partition: PartitionIndex) -> Query:
        info, platform = self.infos[pattern_id], self.platforms[platform_id]
        space = platform.space(self.op, m=info.m, n=info.n, nnz=info.nnz)
        default = platform.default(self.op, m=info.m, n=info.n, nnz=info.nnz)
        bare = Query(info, platform, self.op, space, default)
        return with_evidence(bare, partition, self.vectors[partition.featurizer].get(pattern_id))


class _Plain:
    """The baseline: unweighted mean gain of the nearest neighbours on standardised statistics."""

    def __init__(self, evidence: Evidence, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        self.vectors = vectors
        self.configs = evidence.configs
        rows = [i for i, row in enumerate(evidence.rows) if row.pattern_id in vectors]
        raw = np.array([vectors[evidence.rows[i].pattern_id] for i in rows], dtype=np.float32)
        self._metric = plain_metric(raw)
        self._gains = evidence.gains(np.array(rows, dtype=np.int64))
        self._index = NumpyIndex.build([str(i) for i in range(len(rows))], self._metric.apply(raw))

    def vote(self, vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[c] mean log gain; what no neighbour ran comes last."""
        ids, _ = self._index.search(self._metric.apply(vector[None, :]), _PLAIN_K)
        gains = self._gains[[int(i) for i in ids[0]]]
        ran = np.isfinite(gains)
        total = np.where(ran, gains, 0.0).sum(axis=0)
        return np.where(ran.any(axis=0), total / np.maximum(ran.sum(axis=0), 1), -np.inf)


def _configs(candidates: Sequence[Any]) -> list[Config]:
    return [Config(c.config) for c in candidates]


def _draws(query: Query, rng: np.random.Generator) -> Iterator[list[Config]]:
    for _ in range(_RANDOM_DRAWS):
        yield [query.configs[i] for i in rng.permutation(len(query.configs))[:_K]]


def _averaged(outcomes: Sequence[Outcome]) -> Outcome:
    def mean(name: str) -> float:
        return float(np.mean([getattr(o, name) for o in outcomes]))

    return Outcome(
        gain_1=mean("gain_1"),
        gain_5=mean("gain_5"),
        of_optimum_1=mean("of_optimum_1"),
        of_optimum_5=mean("of_optimum_5"),
        slower=mean("slower"),
        ape=mean("ape"),
    )


def _ordered(
    outcome: Outcome,
    truth: Truth,
    query: Query,
    predicted: NDArray[np.float64],
    configs: Sequence[Config] | None = None,
) -> Outcome:
    """The outcome with how well scores float64[c] (lower is faster) order what was measured."""
    from dataclasses import replace

    known = configs if configs is not None else query.configs
    seconds = np.array([truth.times.get(c, np.nan) for c in known])
    opa, tau = ordering(predicted, seconds, query.noise)
    return replace(outcome, opa=opa, tau=tau)
