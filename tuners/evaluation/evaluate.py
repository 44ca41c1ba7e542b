"""The one harness behind every quality figure: held-out groups, replayed from the store.

Nothing is measured here; `bench` has what is asked, and every method answers the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.core.wording import many_of
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_partitions
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.neighbour_vote import scores
from indexer.coverage import unembedded
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
    ordering,
    speedups_of,
    summarise,
)
from tuners.evaluation.learned import JOINED, Learned
from tuners.evaluation.plain_neighbours import PlainNeighbours
from tuners.ranking import StaticBestTuner, StaticTopKTuner

_RANDOM_DRAWS, _K = 20, 5
#: Candidates that are asked for at first, to find five among them that ran.
_ASKED = 40


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How methods are judged: each of `seeds` splits the groups into `folds`. With `complete`, only
    matrices count (to learn from as well) that tried nearly every configuration, so that the oracle
    is the best of the space. Each of `tuners`, names of plug-ins, has a row, by replay."""

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
    """The table of docs/explanation/evaluation.md per scope, best method last but the oracle.

    Each of `rankers` learns twice in every fold (once to choose its weight) and has two rows: by
    itself, and `+transfer`, joined with the neighbours' vote. One that cannot learn from a scope
    has none there; `note` is called with the reason. Programs (op `fusion`) have rows of their own
    (`judged_fusions`).

    Raises: NothingFound if no scope has matrices of at least two groups to hold out;
    MissingDependency if a ranker needs a package that is not installed; UsageError for a tuner
    that there is not, PluginError for one that breaks its contract.
    """
    options, report = options or EvalOptions(), note or (lambda _: None)
    for name in options.tuners:
        tuner_class(name)
    rows: list[EvalRow] = []
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
        bench = Bench(db, op, scope, complete=options.complete, instance=instance)
        _report_limits(bench, db.featurizer, report)
        if not bench.ready:
            continue
        table = Table(bench, rankers, Replayed(bench, db.store, options.tuners))
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
    many = many_of(*(op.kind for op, _ in scopes))
    return NothingFound(
        f"nothing to judge: no op and platform has two or more groups of {many} that ran the "
        "platform's default and something else",
        hint=f"measure or ingest more {many}, with the default among the configurations",
    )


def _questions(
    db: Lookup, scopes: Sequence[tuple[Op, str]] | None
) -> Iterator[tuple[Op, str, str]]:
    """Op, scope and, where several machines ran it, each of these: an answer is for one."""
    for op, scope in scopes if scopes is not None else db.scopes():
        named = sorted({p.platform for p in scope_partitions(db.store, op, scope)})
        # Programs have cuts of their own: nothing is shared by instances.
        for instance in named if len(named) > 1 or not op.workload.embedded else [""]:
            yield op, scope, instance


class Table:
    """Every method on one bench. Rankers that could not learn from some fold are in `refused`, with
    the reason."""

    def __init__(
        self,
        bench: Bench,
        rankers: Mapping[str, Fit] | None = None,
        replayed: Replayed | None = None,
    ) -> None:
        self.bench, self.rankers, self.replayed = bench, rankers or {}, replayed
        self.refused: dict[str, str] = {}

    def rows(self, seeds: Sequence[int], folds: int, progress: Progress | None) -> list[EvalRow]:
        """One for each method."""
        bench = self.bench
        done: dict[str, list[list[Outcome]]] = {}
        steps = len(seeds) * folds * (1 + 2 * len(self.rankers))
        tick = _Ticks(progress, f"{bench.op} on {bench.scope}", steps)
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
                    found = chain(
                        self._baselines(row, query, plain, rng),
                        self._answers(row, question, rng),
                        learned.judged(row, question),
                        self._bounds(row),
                    )
                    if self.replayed is not None:
                        found = chain(found, self.replayed.judged(row, query, seed=seed))
                    for method, outcome in found:
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

    def remarks(self) -> Iterator[str]:
        """One line for each ranker and tuner that is not judged, or not well."""
        bench = self.bench
        where = f"{bench.op} on {bench.instance or bench.scope}"
        for name, why in self.refused.items():
            yield f"{where}: {name} is not judged: {why}"
        for name, what in self.replayed.illegal.items() if self.replayed is not None else ():
            yield f"{where}: {name} wastes steps on what is not legal: {what}"

    def _row(self, method: str, by_seed: list[list[Outcome]]) -> EvalRow:
        figures, spread = summarise(by_seed)
        return EvalRow(
            self.bench.instance or self.bench.scope,
            str(self.bench.op),
            method,
            len(by_seed[0]),
            figures,
            spread,
            self.bench.simulated,
            speedups_of(by_seed[0]),
            self.bench.tried,
        )

    def _baselines(
        self, row: int, query: Query, plain: PlainNeighbours, rng: np.random.Generator
    ) -> Iterator[tuple[str, Outcome]]:
        truth = self.bench.truth(row)
        pattern_id = self.bench.evidence.rows[row].pattern_id
        yield "default", judge(truth, [query.default])
        yield "random", averaged([judge(truth, drawn) for drawn in _draws(query, rng)])
        best = _configs(StaticBestTuner(query, rng=rng).ask(_K))
        yield "static-best", _ordered(judge(truth, best[:1]), truth, query, -query.vote.mean)
        yield "static-top-k", judge(truth, _configs(StaticTopKTuner(query, rng=rng).ask(_K)))
        vector = plain.vectors.get(pattern_id)
        if vector is not None:
            vote = plain.vote(vector)
            order = [plain.configs[i] for i in np.argsort(-vote, kind="stable")]
            ran = set(query.vote.configs)
            order = [config for config in order if config in ran][:_K]
            yield "knn-stats", _ordered(judge(truth, order), truth, query, -vote, plain.configs)

    def _answers(
        self, row: int, question: Query, rng: np.random.Generator
    ) -> Iterator[tuple[str, Outcome]]:
        """The product's answer over everything legal, and beside it that among what ran there."""
        truth, query = self.bench.truth(row), self.bench.judgeable(row, question)
        if row in self.bench.slot_copies:
            copied = answer(self.bench.slot_copies[row], _K, rng=rng)
            yield "slot-copy", judge(truth, _configs(copied.candidates))
        among = judge(truth, _configs(answer(query, _K, rng=rng).candidates))
        proposals = as_asked(question, truth, rng)
        illegal = sum(query.space.reason(c) is not None for c in proposals)
        outcome = beside(judge(truth, proposals, illegal=illegal), among)
        yield "embeddb", _ordered(outcome, truth, query, -scores(query)[0])

    def _bounds(self, row: int) -> Iterator[tuple[str, Outcome]]:
        if row in self.bench.again:
            yield "measured-again", self.bench.again[row]
        truth = self.bench.truth(row)
        yield "oracle", judge(truth, sorted(truth.times, key=lambda c: truth.times[c]))


def as_asked(question: Query, truth: Truth, rng: np.random.Generator) -> list[Config]:
    """The first five candidates of an answer that ran on the matrix; what did not run there cannot
    be judged."""
    count, every = _ASKED, max(len(question.vote.configs), _ASKED)
    while True:
        candidates = _configs(answer(question, count, rng=rng).candidates)
        ran = [config for config in candidates if config in truth.times][:_K]
        if len(ran) == _K or count >= every:
            return ran
        count = min(8 * count, every)


class _Ticks:
    """Counts steps of one task and tells of each."""

    def __init__(self, progress: Progress | None, what: str, total: int) -> None:
        self._progress, self._what, self._total, self._done = progress, what, total, 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._what, self._done, self._total)


def _configs(candidates: Sequence[Any]) -> list[Config]:
    return [Config(c.config) for c in candidates]


def _draws(query: Query, rng: np.random.Generator) -> Iterator[list[Config]]:
    for _ in range(_RANDOM_DRAWS):
        yield [query.vote.configs[i] for i in rng.permutation(len(query.vote.configs))[:_K]]


def _ordered(
    outcome: Outcome,
    truth: Truth,
    query: Query,
    predicted: NDArray[np.float64],
    configs: Sequence[Config] | None = None,
) -> Outcome:
    """The outcome with how well scores float64[c] (lower is faster) order what was measured."""
    known = configs if configs is not None else query.vote.configs
    seconds = np.array([truth.times.get(c, np.nan) for c in known])
    opa, tau = ordering(predicted, seconds, query.vote.noise)
    return replace(outcome, opa=opa, tau=tau)
