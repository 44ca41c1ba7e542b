"""The one harness behind every quality figure: held-out groups, replayed from the store.

Nothing is measured here and nothing fitted sees a held-out group: metric, neighbours, averages and
the choice of featurizer are made anew from the training rows of every fold, by the very code that
answers queries. Definitions are those of docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import scope_partitions
from embeddb.index.vectors.numpy_index import NumpyIndex
from embeddb.index.vote import plain_metric
from embeddb.platforms.platform import Platform
from embeddb.query.build import with_evidence
from embeddb.query.fallback import answer
from embeddb.query.query import Query
from embeddb.query.rankers.neighbour_vote import scores
from tuners.evaluation.figures import EvalRow, Outcome, Truth, judge, ordering, summarise
from tuners.evaluation.learned import JOINED, Fit, Learned, Scorer
from tuners.evaluation.noise_ceiling import measured_again
from tuners.evaluation.splits import split_groups
from tuners.static_best import StaticBestTuner
from tuners.static_top_k import StaticTopKTuner

__all__ = [
    "COMMON_SHARE",
    "Bench",
    "Vectors",
    "complete_rows",
    "counted_rows",
    "evaluate",
    "split_groups",
]

#: A matrix counts when at least this share of its configurations ran.
_COUNTED_SHARE = 0.6
#: A configuration counts when at least this share of the matrices tried it. Where campaigns sample
#: configurations per matrix, a proposal from outside could hardly ever be judged.
COMMON_SHARE = 0.8
#: A matrix is complete when it tried at least this share of all configurations anyone tried.
_COMPLETE_SHARE = 0.6
#: Neighbours of the plain baseline, as in the prototype that docs/evaluation.md cites.
_PLAIN_K = 7
_RANDOM_DRAWS = 20
_K = 5

Progress = Callable[[str, int, int], None]
Vectors = Mapping[str, Mapping[str, NDArray[np.float32]]]


def evaluate(
    db: Database,
    *,
    scopes: Sequence[tuple[Op, str]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    folds: int = 5,
    complete: bool = False,
    progress: Progress | None = None,
    rankers: Mapping[str, Fit] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[EvalRow]:
    """The table of docs/evaluation.md for each scope, best method last but for the oracle.

    With `complete`, only matrices count (to learn from as well) that tried nearly every
    configuration, so that the oracle is the best of the space. Each of `rankers` learns twice in
    every fold (once to choose its weight) and has two rows: by itself, and `+transfer`, joined
    with the neighbours' vote. One that cannot learn from a scope has none there; `note` is told.

    Raises: NothingFound if no scope has matrices of at least two groups to hold out;
    MissingDependency if a ranker needs a package that is not installed.
    """
    rows: list[EvalRow] = []
    for op, scope, instance in _questions(db, scopes):
        bench = Bench(db, op, scope, complete=complete, instance=instance)
        if not bench.ready:
            continue
        rows += bench.table(seeds, folds, progress, rankers)
        for name, why in bench.refused.items():
            if note is not None:
                note(f"{op} on {instance or scope}: {name} is not judged: {why}")
    if not rows:
        raise NothingFound(
            "nothing to judge: no op and platform has two or more groups of matrices that ran the "
            "platform's default and something else",
            hint="measure or ingest more matrices, with the default among the configurations",
        )
    return rows


def _questions(
    db: Database, scopes: Sequence[tuple[Op, str]] | None
) -> Iterator[tuple[Op, str, str]]:
    """Op, scope and, where several machines ran it, each of these: an answer is for one."""
    for op, scope in scopes if scopes is not None else db.scopes():
        named = sorted({p.platform for p in scope_partitions(db.store, op, scope)})
        for instance in named if len(named) > 1 else [""]:
            yield op, scope, instance


def counted_rows(evidence: RunMatrix) -> NDArray[np.int64]:
    """Rows int64[r'] whose default ran, with another one, and 60 % of whose tries ran."""
    tried = np.diff(evidence.indptr)
    ok = np.add.reduceat(
        np.append(np.isfinite(evidence.seconds), False).astype(np.int64), evidence.indptr[:-1]
    )
    ok[tried == 0] = 0
    good = np.isfinite(evidence.default_s) & (ok >= 2) & (ok >= _COUNTED_SHARE * tried)
    return np.flatnonzero(good)


def complete_rows(evidence: RunMatrix) -> NDArray[np.int64]:
    """Rows int64[r'] that tried at least 60 % of everything any row tried."""
    return np.flatnonzero(np.diff(evidence.indptr) >= _COMPLETE_SHARE * len(evidence.configs))


class Bench:
    """One op in one scope, with everything that does not depend on the fold; `ready` if there
    is something to hold out. With an `instance` only its rows are asked about and learned from by
    rankers; all vote."""

    def __init__(
        self, db: Database, op: Op, scope: str, *, complete: bool = False, instance: str = ""
    ) -> None:
        self.op, self.scope, self.instance = op, scope, instance
        evidence, self.vectors = db.evidence(op, scope)
        if complete:
            evidence = evidence.take(complete_rows(evidence))
        #: All configurations, the uncommon ones too: rankers may learn from them.
        self.whole = evidence
        own = evidence.of_platform(instance) if instance else evidence
        self.evidence = evidence.only(own.tried_on(COMMON_SHARE).configs)
        seen = [self.evidence.rows[i].pattern_id for i in range(len(self.evidence.rows))]
        indexed = set.union(*(set(v) for v in self.vectors.values())) if self.vectors else set()
        self.counted = np.array(
            [i for i in counted_rows(self.evidence) if seen[i] in indexed and self._asked(i)],
            dtype=np.int64,
        )
        self.ready = np.unique(self.evidence.groups[self.counted]).size >= 2
        self.infos = {i: db.store.pattern(i) or PatternInfo(id=i) for i in set(seen)}
        ids = {row.platform for row in self.evidence.rows}
        self.platforms: dict[str, Platform] = {i: db.platform(i) for i in ids}
        self.simulated = any(p.simulated for p in self.platforms.values())
        self.refused: dict[str, str] = {}
        self._again = measured_again(db.store, op, self.evidence, self.counted, self.default)

    def _asked(self, row: int) -> bool:
        """Whether a row is one to be judged by, and for rankers to learn from."""
        return self.instance in ("", self.evidence.rows[row].platform)

    def of(self, evidence: RunMatrix) -> Bench:
        """The same with other configurations to judge by; the rows are the same."""
        found = copy(self)
        found.evidence = evidence
        return found

    def table(
        self,
        seeds: Sequence[int],
        folds: int,
        progress: Progress | None,
        rankers: Mapping[str, Fit] | None = None,
    ) -> list[EvalRow]:
        """Rankers that could not learn from some fold are in `refused`, with the reason."""
        done: dict[str, list[list[Outcome]]] = {}
        steps = len(seeds) * folds * (1 + 2 * len(rankers or {}))
        tick = _Ticks(progress, f"{self.op} on {self.scope}", steps)
        for seed in seeds:
            one: dict[str, list[Outcome]] = {}
            for train, test in self.folds(folds, seed):
                plain = _Plain(
                    self.evidence.take(train).pruned(), next(iter(self.vectors.values()))
                )
                able = {k: fit for k, fit in (rankers or {}).items() if k not in self.refused}
                learned = Learned(self, able, train, tick)
                self.refused |= learned.refused
                rng = np.random.default_rng(0)
                for row, query in self.queries_of(train, test):
                    for method, outcome in self._judged(row, query, plain, learned, rng):
                        one.setdefault(method, []).append(outcome)
                tick()
            one["oracle"] = one.pop("oracle")  # last, whatever else only some matrices have
            for method, outcomes in one.items():
                done.setdefault(method, []).append(outcomes)
        return [
            self._row(method, by_seed)
            for method, by_seed in done.items()
            if method.removesuffix(JOINED) not in self.refused
        ]

    def _row(self, method: str, by_seed: list[list[Outcome]]) -> EvalRow:
        figures, spread = summarise(by_seed)
        return EvalRow(
            self.instance or self.scope,
            str(self.op),
            method,
            len(by_seed[0]),
            figures,
            spread,
            self.simulated,
        )

    def folds(self, folds: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
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
        for train, test in self.folds(folds, seed):
            yield from self.queries_of(train, test)

    def queries_of(
        self, train: NDArray[np.int64], test: NDArray[np.int64]
    ) -> Iterator[tuple[int, Query]]:
        """Each of the test rows with the question it poses to what the training rows know."""
        known = self.evidence.take(train).pruned()
        facts = {i: p.environment for i, p in self.platforms.items()}
        partition = AnswerIndex.build(known, self.vectors, scope=self.scope, facts=facts)
        for row in test:
            yield int(row), self.query(int(row), partition)

    def learned(self, fit: Fit, train: NDArray[np.int64]) -> Scorer:
        """What a ranker learns from the training rows and the features of their matrices alone."""
        own = np.array([row for row in train if self._asked(int(row))], dtype=np.int64)
        known = self.whole.take(own).pruned()
        ids = {row.pattern_id for row in known.rows}
        featurizer, vectors = self._features()
        return fit(
            known,
            {featurizer: {i: v for i, v in vectors.items() if i in ids}},
            {i: self.infos[i] for i in ids},
            self.platforms[known.rows[0].platform],
            self.op,
        )

    def raw(self, row: int) -> NDArray[np.float32] | None:
        """float32[d] features of a row's matrix, of the featurizer that rankers learn from."""
        return self._features()[1].get(self.evidence.rows[row].pattern_id)

    def _features(self) -> tuple[str, Mapping[str, NDArray[np.float32]]]:
        return next(iter(self.vectors.items()))

    def _judged(
        self, row: int, query: Query, plain: _Plain, learned: Learned, rng: np.random.Generator
    ) -> Iterator[tuple[str, Outcome]]:
        truth = self.truth(row)
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
        yield from learned.judged(row, query)
        if row in self._again:
            yield "measured-again", self._again[row]
        ranked = sorted(truth.times, key=lambda c: truth.times[c])
        yield "oracle", judge(truth, ranked)

    def truth(self, row: int) -> Truth:
        """What was measured on a row."""
        e = self.evidence
        part = slice(e.indptr[row], e.indptr[row + 1])
        times = {
            e.configs[c]: float(t) for c, t in zip(e.column[part], e.seconds[part], strict=True)
        }
        return Truth(times, float(e.default_s[row]))

    def default(self, row: int) -> Config:
        """The platform's default on a row's matrix."""
        pattern_id, platform_id = self.evidence.rows[row][:2]
        info = self.infos[pattern_id]
        return self.platforms[platform_id].default(self.op, m=info.m, n=info.n, nnz=info.nnz)

    def query(self, row: int, partition: AnswerIndex) -> Query:
        """The question a row poses to what a partition knows."""
        pattern_id, platform_id = self.evidence.rows[row][:2]
        info, platform = self.infos[pattern_id], self.platforms[platform_id]
        space = platform.space(self.op, m=info.m, n=info.n, nnz=info.nnz)
        bare = Query(info, platform, self.op, space, self.default(row))
        return with_evidence(bare, partition, self.vectors[partition.featurizer].get(pattern_id))


class _Ticks:
    """Counts steps of one task and tells of each."""

    def __init__(self, progress: Progress | None, what: str, total: int) -> None:
        self._progress, self._what, self._total, self._done = progress, what, total, 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._what, self._done, self._total)


class _Plain:
    """The baseline: unweighted mean gain of the nearest neighbours on standardised statistics."""

    def __init__(self, evidence: RunMatrix, vectors: Mapping[str, NDArray[np.float32]]) -> None:
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
