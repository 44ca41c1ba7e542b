"""What a method is judged by: one op in one scope, and the questions its rows pose.

Nothing fitted sees a held-out group: metric, neighbours, averages and the choice of featurizer are
made anew from the training rows of every fold, by the very code that answers queries. Definitions
are those of docs/explanation/evaluation.md.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.features import WHOLE, LearnedFrom, learned_by
from embeddb.index.fit import FitInput
from embeddb.index.held_out import COUNTED_SHARE, split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import members_of
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import with_evidence
from embeddb.ranking.prediction import Scorer
from embeddb.ranking.query import Query, Vote
from embeddb.store import Store
from indexer.runners.base import RunOptions
from indexer.runners.replay import ReplayRunner
from tuners.base import tune
from tuners.by_name import Watched
from tuners.evaluation.figures import Fit, Outcome, Truth, judge
from tuners.evaluation.noise_ceiling import measured_again

__all__ = ["Bench", "Vectors", "asked_scopes", "complete_rows", "counted_rows", "split_groups"]


#: A matrix is complete when it tried at least this share of all configurations anyone tried.
_COMPLETE_SHARE = 0.6

Vectors = Mapping[str, Mapping[str, NDArray[np.float32]]]


def asked_scopes(lookup: Lookup, platform: str = "", op: Op | None = None) -> list[tuple[Op, str]]:
    """The (op, scope) of a platform and an op that have runs; of all where none is named.

    Raises: NothingFound if that is nothing.
    """
    found = lookup.scopes(platform, op)
    if not found:
        have = ", ".join(f"{o} on {s}" for o, s in lookup.scopes()[:8])
        hint = f"there are: {have}" if have else "the database is empty: `embeddb index`"
        raise NothingFound("no runs to judge by", hint=hint)
    return found


def counted_rows(evidence: RunMatrix) -> NDArray[np.int64]:
    """Rows int64[r'] whose default ran, with another one, and 60 % of whose tries ran."""
    tried = np.diff(evidence.indptr)
    ok = np.add.reduceat(
        np.append(np.isfinite(evidence.seconds), False).astype(np.int64), evidence.indptr[:-1]
    )
    ok[tried == 0] = 0
    good = np.isfinite(evidence.default_s) & (ok >= 2) & (ok >= COUNTED_SHARE * tried)
    return np.flatnonzero(good)


def complete_rows(evidence: RunMatrix) -> NDArray[np.int64]:
    """Rows int64[r'] that tried at least 60 % of everything any row tried."""
    return np.flatnonzero(np.diff(evidence.indptr) >= _COMPLETE_SHARE * len(evidence.configs))


class Bench:
    """One op in one scope, with everything that does not depend on the fold; `ready` if there
    is something to hold out, `again` what choosing by one round and judging by the other reaches by
    row. With an `instance` only its rows are asked about and learned from by
    rankers; all vote.

    `questions_of` asks as `query` answers, over everything legal; `queries_of` among the
    configurations that ran on the row, as in `embeddb.index.held_out`: what all rows have in common
    may be a handful."""

    def __init__(
        self, db: Lookup, op: Op, scope: str, *, complete: bool = False, instance: str = ""
    ) -> None:
        self.op, self.scope, self.instance = op, scope, instance
        evidence, self.vectors = db.evidence(op, scope)
        self._learned_from = learned_by(db.store, db.featurizers(), self.vectors)
        read = {row.pattern_id for row in evidence.rows}
        #: Patterns that were left out because there are very many.
        self.unread = len(members_of(db.store, op, scope)) - len(read)
        if complete:
            evidence = evidence.take(complete_rows(evidence))
        self.evidence = evidence
        seen = [self.evidence.rows[i].pattern_id for i in range(len(self.evidence.rows))]
        indexed = set.union(*(set(v) for v in self.vectors.values())) if self.vectors else set()
        self.counted = np.array(
            [i for i in counted_rows(self.evidence) if seen[i] in indexed and self._asked(i)],
            dtype=np.int64,
        )
        self.ready = np.unique(self.evidence.groups[self.counted]).size >= 2
        self.infos = {i: db.store.pattern(i) or WorkloadInfo(id=i) for i in set(seen)}
        #: With their rules, where they have any.
        self.subjects = {i: db.store.workload_or_info(info) for i, info in self.infos.items()}
        self._known = db.store.workload
        self._lengths_of = db.lengths
        #: What a model that embeds matrices itself says of them; neighbours are found without it.
        self.own_vectors: Mapping[str, NDArray[np.float32]] | None = None
        #: By row, the last question it posed, before schedules or tiles were carried over to it.
        self.slot_copies: dict[int, Query] = {}
        ids = {row.platform for row in self.evidence.rows}
        self.platforms: dict[str, Platform] = {i: db.platform(i) for i in ids}
        self.simulated = any(p.simulated for p in self.platforms.values())
        again = measured_again(db.store, op, self.evidence, self.counted, self.default)
        self.again = {row: replace(one, program=self._program(row)) for row, one in again.items()}

    def _asked(self, row: int) -> bool:
        """Whether a row is one to be judged by, and for rankers to learn from."""
        return self.instance in ("", self.evidence.rows[row].platform)

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
        """Each of the test rows with the question it poses to what the training rows know, among
        what ran on it."""
        for row, question in self.questions_of(train, test):
            yield row, self.judgeable(row, question)

    def questions_of(
        self, train: NDArray[np.int64], test: NDArray[np.int64]
    ) -> Iterator[tuple[int, Query]]:
        """The same over everything legal that a training row ran."""
        known = self.evidence.take(train).pruned()
        partition = self._partition(known, self.vectors)
        learned = self._learned(partition.featurizer)
        known_as: Mapping[str, NDArray[np.float32]] = self.vectors.get(partition.featurizer, {})
        partitions = {WHOLE: (partition, known_as)}
        for row in test:
            fold = learned.fold_of.get(self.evidence.rows[row].group, WHOLE)
            if fold not in partitions:
                vectors = learned.by_fold[fold]
                unseen = self._partition(known, {partition.featurizer: vectors})
                partitions[fold] = unseen, vectors
            yield int(row), self._question(int(row), *partitions[fold])

    def _partition(self, known: RunMatrix, vectors: Vectors) -> AnswerIndex:
        """The index of some rows, by one of the featurizers that `vectors` are of."""
        facts = {i: p.environment for i, p in self.platforms.items()}
        learned = {name: self._learned(name) for name in vectors}
        given = FitInput(known, vectors, facts, learned)
        return AnswerIndex.build(given, scope=self.scope, held_out=False)

    def learned(self, fit: Fit, train: NDArray[np.int64]) -> Scorer:
        """What a ranker learns from the training rows and the features of their matrices alone."""
        own = np.array([row for row in train if self._asked(int(row))], dtype=np.int64)
        known = self.evidence.take(own).pruned()
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
        known = self.own_vectors if self.own_vectors is not None else self._features()[1]
        return known.get(self.evidence.rows[row].pattern_id)

    def lengths(self, row: int) -> RowLengths | None:
        """The row lengths of a row's matrix, where they are known."""
        info = self.infos[self.evidence.rows[row].pattern_id]
        return self._lengths_of(info) if self.op.workload.learned else None

    def _features(self) -> tuple[str, Mapping[str, NDArray[np.float32]]]:
        return next(iter(self.unlearned.items()))

    def _learned(self, featurizer: str) -> LearnedFrom:
        return self._learned_from.get(featurizer, LearnedFrom())

    @property
    def unlearned(self) -> Vectors:
        """The vectors that no run has taught; of all featurizers where each learned from some."""
        plain = {n: v for n, v in self.vectors.items() if not self._learned(n).groups}
        return plain or self.vectors

    def truth(self, row: int) -> Truth:
        """What was measured on a row."""
        e, runs = self.evidence, self.evidence.row(row)
        times = {e.configs[c]: float(t) for c, t in zip(runs.column, runs.seconds, strict=True)}
        return Truth(times, float(e.default_s[row]), self._program(row))

    @property
    def tried(self) -> int:
        """The median number of configurations that a judged matrix is asked among."""
        tried = np.diff(self.evidence.indptr)[self.counted]
        return int(np.median(tried)) if tried.size else 0

    def _program(self, row: int) -> str:
        """The one that a row's kernel is of; empty for what is no kernel."""
        named = self.infos[self.evidence.rows[row].pattern_id]
        return self.op.workload.program(named)

    def default(self, row: int) -> Config:
        """The platform's default on a row's matrix."""
        pattern_id, platform_id = self.evidence.rows[row][:2]
        return default_of(self.platforms[platform_id], self.op, self.subjects[pattern_id])

    def query(
        self,
        row: int,
        partition: AnswerIndex,
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Query:
        """The question a row poses to what a partition knows, among what ran on it, by features
        float32[d] among `vectors` (None: those that its featurizer has by itself)."""
        return self.judgeable(row, self._question(row, partition, vectors))

    def _question(
        self,
        row: int,
        partition: AnswerIndex,
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Query:
        pattern_id, platform_id = self.evidence.rows[row][:2]
        info, platform = self.infos[pattern_id], self.platforms[platform_id]
        subject = self.subjects[pattern_id]
        space = space_of(platform, self.op, subject)
        bare = Query(info, platform, self.op, space, self.default(row))
        own = self.vectors[partition.featurizer] if vectors is None else vectors
        vector = own.get(pattern_id)
        query = with_evidence(bare, partition, vector)
        if vector is None:
            return query
        moved: Query | None = self.op.workload.transferred(query, partition, subject, self._known)
        if moved is None:
            return query
        self.slot_copies[row] = self.judgeable(row, query)
        return moved

    def judgeable(self, row: int, query: Query) -> Query:
        """The query among what ran on the row."""
        return replace(query, vote=_among(query.vote, self.truth(row).times))


def _among(vote: Vote, configs: Container[Config]) -> Vote:
    """The same vote on those of its configurations that are among these."""
    kept = [at for at, config in enumerate(vote.configs) if config in configs]
    place = {at: new for new, at in enumerate(kept)}

    def columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[:, kept] if len(values) else values

    return replace(
        vote,
        configs=tuple(vote.configs[at] for at in kept),
        gains=columns(vote.gains),
        prior=vote.prior[kept],
        mean=vote.mean[kept],
        cover=np.array([place[at] for at in vote.cover if at in place], dtype=np.int64),
        trust=columns(vote.trust),
        failing=columns(vote.failing),
        machine_effects=columns(vote.machine_effects),
    )


#: After so many measurements a tuner's best is compared with the optimum.
STEPS = (1, 2, 5, 10)
#: Rows of the table that are no tuner's: one of such a name gets another.
_TAKEN = frozenset(
    {"default", "random", "static-best", "static-top-k", "knn-stats", "embeddb"}
    | {"costmodel", "boosted", "measured-again", "oracle"}
)


class Replayed:
    """The named tuners on the matrices of one bench. Each starts anew on every matrix, knows what
    the training groups measured, and is told of one recorded run after another.

    `illegal` has, by row name, the first proposal that was not legal, with the reason.
    """

    def __init__(self, bench: Bench, store: Store, names: Sequence[str]) -> None:
        self._bench, self._store = bench, store
        self._names = dict.fromkeys(names)
        self.illegal: dict[str, str] = {}

    def judged(self, row: int, query: Query, *, seed: int) -> Iterator[tuple[str, Outcome]]:
        """Every tuner on one held-out row, by the name of its row in the table.

        Raises: PluginError where a tuner breaks its contract.
        """
        if not self._names:
            return
        truth = self._bench.truth(row)
        known = self._recordings(row, truth)
        replay = ReplayRunner(lambda _pattern_id, _op, config: known.get(config))
        for name in self._names:
            # A generator of its own: what one tuner draws changes nothing for the others.
            tuner = Watched(name, query, rng=np.random.default_rng((seed, row)), strict=False)
            tried = tune(
                tuner,
                lambda configs: replay.run(query.pattern, query.op, configs, options=RunOptions()),
                budget=max(STEPS),
            )
            yield _row_name(name), self._outcome(name, query, truth, [c for c, _ in tried])

    def _outcome(
        self, name: str, query: Query, truth: Truth, proposals: Sequence[Config]
    ) -> Outcome:
        reasons = {c: r for c in proposals if (r := query.space.reason(c)) is not None}
        for config, reason in list(reasons.items())[:1]:
            self.illegal.setdefault(_row_name(name), f"{config} on {query.pattern.name}: {reason}")
        shares = {k: math.log(truth.best_s / truth.after(proposals, k)) for k in STEPS}
        return replace(judge(truth, proposals, illegal=len(reasons)), after=shares)

    def _recordings(self, row: int, truth: Truth) -> Mapping[Config, Measurement]:
        """What the judge knows of a row, as the measurements it was made from."""
        whose = self._bench.evidence.rows[row]
        runs: dict[Config, list[Run]] = {}
        for run in self._store.runs(whose.platform, self._bench.op, whose.pattern_id):
            if run.config in truth.times:
                runs.setdefault(run.config, []).append(run)
        return {config: _told(of, truth.times[config]) for config, of in runs.items()}


def _told(runs: Sequence[Run], seconds: float) -> Measurement:
    """Of the runs of one configuration that which is nearest to the time it is judged by; of
    failures the last."""
    if not math.isfinite(seconds):
        return runs[-1].measurement
    timed = [run for run in runs if 0 < run.seconds < math.inf]
    return min(timed, key=lambda run: abs(math.log(run.seconds / seconds))).measurement


def _row_name(tuner: str) -> str:
    return f"{tuner} (tuner)" if tuner in _TAKEN else tuner
