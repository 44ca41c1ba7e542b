"""Evaluation of every method on held-out groups, by replay from the store: nothing is measured, and
every method answers the same queries (`tuners.evaluation.bench`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.core.wording import many_of, one_of, plural
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import scope_partitions
from embeddb.index.vectors import VectorIndex
from embeddb.index.vote import plain_metric
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.neighbour_vote import scores
from indexer.coverage import embedded, unembedded
from tuners.by_name import tuner_class
from tuners.evaluation.bench import Bench, Replayed
from tuners.evaluation.figures import (
    EvalRow,
    Fit,
    Outcome,
    Truth,
    averaged,
    beside,
    judge,
    with_ordering,
)
from tuners.evaluation.learned import JOINED, Learned
from tuners.evaluation.learned_rankers import own_rankers
from tuners.ranking import StaticBestTuner, StaticTopKTuner

_RANDOM_DRAWS, _K = 20, 5
#: Candidates of the first query, of which five should have run.
_FIRST_COUNT = 40
#: Share of the optimum below which the reach of all methods is said.
_NEARLY_ALL = 0.98
#: Neighbours of the plain baseline, as in the prototype that docs/explanation/evaluation.md cites.
_PLAIN_K = 7


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of the evaluation: each of `seeds` splits the groups into `folds`. With `complete`,
    only matrices that tried nearly every configuration are used, for training as well, so that the
    oracle is the best of the space. Each of `tuners`, names of plug-ins, has a row."""

    seeds: Sequence[int] = (0, 1, 2)
    folds: int = 5
    complete: bool = False
    tuners: Sequence[str] = ()


def evaluate(
    db: Lookup,
    options: EvalOptions | None = None,
    *,
    scopes: Sequence[tuple[Op, str]] | None = None,
    progress: Progress | None = None,
    rankers: Mapping[str, Fit] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[EvalRow]:
    """Evaluate every method in each scope: the table of docs/explanation/evaluation.md.

    Each of `rankers` learns twice in every fold (once to choose its weight) and has two rows: by
    itself, and `+transfer`, joined with the neighbours' vote. The process has one, with `rankers`
    or where `query` learns it. One that cannot learn from a scope has none there; `note` is called
    with the reason. Programs (op `fusion`) have rows of their own (`judged_fusions`).

    Raises: NothingFound if no scope has matrices of at least two groups to hold out;
    MissingDependency if a ranker needs a package that is not installed; UsageError for an unknown
    tuner, PluginError for one that breaks its contract.
    """
    options, report = options or EvalOptions(), note or (lambda _: None)
    for name in options.tuners:
        tuner_class(name)
    rows: list[EvalRow] = []
    evidence_of = lru_cache(maxsize=1)(db.evidence)  # one reading for all machines of a scope
    for op, scope, instance in _questions(db, scopes):
        own = op.workload.judged(
            db,
            instance,
            seeds=options.seeds,
            folds=options.folds,
            progress=progress,
            note=report,
            learned=bool(rankers),
        )
        if own is not None:
            rows += own
            continue
        shared, complete = evidence_of(op, scope), options.complete
        bench = Bench(db, op, scope, complete=complete, instance=instance, shared=shared)
        _report_limits(bench, db.featurizer, report)
        if not bench.ready:
            if instance and bench.vectors:
                many = op.workload.many
                report(f"{op} on {instance}: not evaluated: too few {many} with a measured default")
            continue
        every = {**own_rankers(db, bench, always=bool(rankers)), **(rankers or {})}
        table = Table(bench, every, Replayed(bench, db.store, options.tuners))
        rows += table.rows(options.seeds, options.folds, progress)
        for line in table.remarks():
            report(line)
    if not rows:
        raise _nothing_to_judge(db, db.scopes() if scopes is None else scopes)
    return rows


def _report_limits(bench: Bench, featurizer: str, report: Callable[[str], None]) -> None:
    """Report why a scope cannot be judged, or how many of its patterns are left out."""
    where = f"{bench.op} on {bench.scope}"
    if not bench.ready and featurizer and not bench.vectors:
        report(f"{where}: no measured {bench.op.kind} has a vector of {featurizer}")
    if bench.biased:
        report(
            f"{where}: {plural(len(bench.biased), 'group')} not judged: {featurizer or 'every'} "
            "vector learned from their runs"
        )
    if bench.ready and bench.unread:
        report(
            f"{where}: judged by {len(bench.infos):,} patterns, evenly drawn; "
            f"{bench.unread:,} others were not read"
        )


def _nothing_to_judge(db: Lookup, scopes: Sequence[tuple[Op, str]]) -> NothingFound:
    if db.featurizer:
        return NothingFound(
            f"nothing to judge by {db.featurizer}",
            hint=f"`embeddb embed {db.store.place}` computes vectors; without --featurizer the "
            "database chooses",
        )
    if any(unembedded(db, op, scope) for op, scope in scopes if op.workload.embedded):
        return NothingFound(
            "nothing to judge: the patterns have no vectors yet",
            hint=f"`embeddb embed {db.store.place}` makes them",
        )
    if scopes and all(op.workload.embedded and not embedded(db, op, at) for op, at in scopes):
        return NothingFound(f"nothing to judge: {scopes[0][0].workload.unreadable}")
    many = many_of(*(op.kind for op, _ in scopes))
    return NothingFound(
        f"nothing to judge: no op and platform has two or more groups of {many} that ran the "
        "platform's default and something else",
        hint=f"measure or ingest more {many}, with the default among the configurations",
    )


def _questions(
    db: Lookup, scopes: Sequence[tuple[Op, str]] | None
) -> Iterator[tuple[Op, str, str]]:
    """Op, scope and, if several machines ran it, each of these: an answer is for one machine."""
    for op, scope in scopes if scopes is not None else db.scopes():
        named = sorted({p.platform for p in scope_partitions(db.store, op, scope)})
        # Programs have cuts of their own: nothing is shared by instances.
        for instance in named if len(named) > 1 or not op.workload.embedded else [""]:
            yield op, scope, instance


class PlainNeighbours:
    """The baseline of the vote: the unweighted mean gain of the nearest neighbours by standardised
    statistics, float32[d] by pattern id."""

    def __init__(self, evidence: RunMatrix, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        self.vectors = vectors
        self.configs = evidence.configs
        rows = [i for i, row in enumerate(evidence.rows) if row.pattern_id in vectors]
        raw = np.array([vectors[evidence.rows[i].pattern_id] for i in rows], dtype=np.float32)
        self._metric = plain_metric(raw)
        self._gains = evidence.gains(np.array(rows, dtype=np.int64))
        self._index = VectorIndex([str(i) for i in range(len(rows))], self._metric.apply(raw))

    def vote(self, vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[c] mean log gain; -inf without a neighbour that ran the configuration."""
        ids, _ = self._index.search(self._metric.apply(vector[None, :]), _PLAIN_K)
        gains = self._gains[[int(i) for i in ids[0]]]
        ran = np.isfinite(gains)
        total = np.where(ran, gains, 0.0).sum(axis=0)
        return np.where(ran.any(axis=0), total / np.maximum(ran.sum(axis=0), 1), -np.inf)


class Table:
    """Every method on one bench. `refused` has the reasons why rankers could not learn from some
    fold, `reach` the log share of the optimum that the best configuration has which ran on the
    matrix and on a training row."""

    def __init__(self, bench: Bench, rankers: Mapping[str, Fit], replayed: Replayed) -> None:
        self.bench, self.rankers, self.replayed = bench, rankers, replayed
        self.refused: dict[str, str] = {}
        self.reach: list[float] = []

    def rows(self, seeds: Sequence[int], folds: int, progress: Progress | None) -> list[EvalRow]:
        """A row for each method, the oracle last."""
        bench = self.bench
        done: dict[str, list[list[Outcome]]] = {}
        steps = len(seeds) * folds * (1 + 2 * len(self.rankers))
        places = count(1)

        def tick() -> None:
            if progress is not None:
                progress(f"{bench.op} on {bench.scope}", next(places), steps)

        for seed in seeds:
            one: dict[str, list[Outcome]] = {}
            for train, test in bench.folds(folds, seed):
                plain = PlainNeighbours(
                    bench.evidence.take(train).pruned(), next(iter(bench.unlearned.values()))
                )
                able = {k: fit for k, fit in self.rankers.items() if k not in self.refused}
                learned = Learned(bench, able, train, tick)
                self.refused |= learned.refused
                rng = np.random.default_rng(0)
                for row, question in bench.questions_of(train, test):
                    query = bench.judgeable(row, question)
                    truth = bench.truth(row)
                    best = min((truth.times[c] for c in query.vote.configs), default=math.inf)
                    self.reach.append(math.log(truth.best_s / min(best, truth.default_s)))
                    outcomes = chain(
                        self._baselines(row, query, plain, rng),
                        self._answers(row, question),
                        learned.judged(row, question),
                        self._bounds(row),
                        self.replayed.judged(row, query, seed=seed),
                    )
                    for method, outcome in outcomes:
                        one.setdefault(method, []).append(outcome)
                tick()
            one["oracle"] = one.pop("oracle")  # last, also behind rows of some matrices only
            for method, judged in one.items():
                done.setdefault(method, []).append(judged)
        return [
            self._row(method, by_seed)
            for method, by_seed in done.items()
            if method.removesuffix(JOINED) not in self.refused
        ]

    def remarks(self) -> Iterator[str]:
        """One line for each ranker that is not judged, and each tuner with illegal proposals."""
        bench = self.bench
        where = f"{bench.op} on {bench.instance or bench.scope}"
        reach = math.exp(np.mean(self.reach)) if self.reach else 1.0
        if reach < _NEARLY_ALL:
            yield (
                f"{where}: no row but the oracle can reach more than {reach:.3f} of the optimum: "
                f"many configurations ran on one {one_of(bench.op.kind)} only"
            )
        for name, why in self.refused.items():
            yield f"{where}: {name} is not judged: {why}"
        for name, what in self.replayed.illegal.items():
            yield f"{where}: {name} wastes steps on what is not legal: {what}"

    def _row(self, method: str, by_seed: list[list[Outcome]]) -> EvalRow:
        names = (self.bench.instance or self.bench.scope, str(self.bench.op), method)
        return EvalRow.of(names, by_seed, simulated=self.bench.simulated, configs=self.bench.tried)

    def _baselines(
        self, row: int, query: Query, plain: PlainNeighbours, rng: np.random.Generator
    ) -> Iterator[tuple[str, Outcome]]:
        truth, noise = self.bench.truth(row), query.vote.noise
        configs = query.vote.configs
        pattern_id = self.bench.evidence.rows[row].pattern_id
        yield "default", judge(truth, [query.default])
        yield "random", averaged([judge(truth, drawn) for drawn in _draws(query, rng)])
        best = _configs(StaticBestTuner(query, rng=rng).ask(_K))
        outcome = judge(truth, best[:1])
        yield "static-best", with_ordering(outcome, truth, configs, -query.vote.mean, noise)
        yield "static-top-k", judge(truth, _configs(StaticTopKTuner(query, rng=rng).ask(_K)))
        vector = plain.vectors.get(pattern_id)
        if vector is not None:
            vote = plain.vote(vector)
            here, ran = [query.space.canonical(c) for c in plain.configs], set(configs)
            order = dict.fromkeys(here[i] for i in np.argsort(-vote, kind="stable"))
            outcome = judge(truth, [config for config in order if config in ran][:_K])
            yield "knn-stats", with_ordering(outcome, truth, here, -vote, noise)

    def _answers(self, row: int, question: Query) -> Iterator[tuple[str, Outcome]]:
        """The product's answer over every legal configuration, and among those that ran."""
        truth, query = self.bench.truth(row), self.bench.judgeable(row, question)
        if row in self.bench.slot_copies:
            copied = answer(self.bench.slot_copies[row], _K)
            yield "slot-copy", judge(truth, _configs(copied.candidates))
        among = judge(truth, _configs(answer(query, _K).candidates))
        proposals = judgeable_candidates(question, truth)
        illegal = sum(query.space.reason(c) is not None for c in proposals)
        outcome = beside(judge(truth, proposals, illegal=illegal), among)
        vote = query.vote
        outcome = with_ordering(outcome, truth, vote.configs, -scores(query)[0], vote.noise)
        yield "embeddb", outcome

    def _bounds(self, row: int) -> Iterator[tuple[str, Outcome]]:
        if row in self.bench.again:
            yield "measured-again", self.bench.again[row]
        truth = self.bench.truth(row)
        yield "oracle", judge(truth, sorted(truth.times, key=lambda c: truth.times[c]))


def judgeable_candidates(question: Query, truth: Truth) -> list[Config]:
    """The first five candidates of an answer that ran on the matrix; others cannot be judged."""
    wanted, every = _FIRST_COUNT, max(len(question.vote.configs), _FIRST_COUNT)
    while True:
        candidates = _configs(answer(question, wanted).candidates)
        ran = [config for config in candidates if config in truth.times][:_K]
        if len(ran) == _K or wanted >= every:
            return ran
        wanted = min(8 * wanted, every)


def _configs(candidates: Sequence[Any]) -> list[Config]:
    return [Config(c.config) for c in candidates]


def _draws(query: Query, rng: np.random.Generator) -> Iterator[list[Config]]:
    for _ in range(_RANDOM_DRAWS):
        yield [query.vote.configs[i] for i in rng.permutation(len(query.vote.configs))[:_K]]
