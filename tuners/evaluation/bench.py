"""The test bench of methods: the measured rows of one op in one scope, and the query of each.

Nothing fitted sees a held-out group: metric, neighbours, averages and the choice of featurizer are
fitted to the training rows of every fold, by the code that answers queries. Definitions are in
docs/explanation/evaluation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.features import WHOLE, LearnedFrom, learned_by
from embeddb.index.fit import FitInput
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import members_of
from embeddb.platforms.platform import Platform, default_of, space_of
from embeddb.ranking.build import with_evidence
from embeddb.ranking.prediction import Scorer
from embeddb.ranking.query import Query, Vote
from embeddb.store import Store
from tuners.base import tune
from tuners.by_name import CheckedTuner
from tuners.evaluation.figures import Fit, Outcome, Truth, judge, with_ordering

#: A matrix is complete when it tried at least this share of all configurations anyone tried.
_COMPLETE_SHARE = 0.6
#: A matrix was measured twice when at least this share of its configurations was.
_TWICE_SHARE = 0.6

Rows = NDArray[np.int64]
Vectors = Mapping[str, Mapping[str, NDArray[np.float32]]]


def measured_scopes(
    lookup: Lookup, platform: str = "", op: Op | None = None
) -> list[tuple[Op, str]]:
    """The (op, scope) with runs of a platform and an op, or of all.

    Raises: NothingFound if there are none.
    """
    scopes = lookup.scopes(platform, op)
    if not scopes:
        raise lookup.nothing_of("no runs to judge by", platform)
    return scopes


def counted_rows(evidence: RunMatrix) -> Rows:
    """Rows int64[r'] on which the default ran and another configuration, however many failed."""
    tried = np.diff(evidence.indptr)
    ok = np.add.reduceat(
        np.append(np.isfinite(evidence.seconds), False).astype(np.int64), evidence.indptr[:-1]
    )
    ok[tried == 0] = 0
    return np.flatnonzero(np.isfinite(evidence.default_s) & (ok >= 2))


def measured_again(
    store: Store, op: Op, evidence: RunMatrix, rows: Rows, default_of_row: Callable[[int], Config]
) -> dict[int, Outcome]:
    """The noise ceiling, by row: the outcome of ranking by the first run of each configuration and
    judging by its last, for those of rows int64[r] where most configurations ran twice. Repeats
    within a run have less variance, so they do not count as two."""
    outcomes = {}
    for row in rows:
        of_row = evidence.row(row)
        # Only runs with different times have a spread: other rows need not be read.
        if (of_row.spread > 0).mean() < _TWICE_SHARE:
            continue
        name, configs = evidence.rows[row], {evidence.configs[c] for c in of_row.column}
        runs = [r for r in store.runs(name.platform, op, name.pattern_id) if r.config in configs]
        first, last = _rounds(runs)
        default = default_of_row(int(row))
        if default in last and len(last) >= _TWICE_SHARE * len(configs):
            both = sorted(first, key=lambda c: c.json)
            seconds, truth = np.array([first[c] for c in both]), Truth(last, last[default])
            outcome = judge(truth, sorted(both, key=lambda c: first[c]))
            outcomes[int(row)] = with_ordering(outcome, truth, both, seconds, evidence.noise)
    return outcomes


def _rounds(runs: Sequence[Run]) -> tuple[dict[Config, float], dict[Config, float]]:
    """Seconds of the first and of the last ok run of each configuration that has two. Runs without
    a time of day are in the order of their logs: what changed between two days is then the same for
    all configurations."""
    by_config: dict[Config, list[float]] = {}
    for run in sorted(runs, key=lambda r: (r.measurement.when, r.campaign, r.id)):
        if 0 < run.seconds < math.inf:
            by_config.setdefault(run.config, []).append(run.seconds)
    twice = {c: times for c, times in by_config.items() if len(times) >= 2}
    return {c: t[0] for c, t in twice.items()}, {c: t[-1] for c, t in twice.items()}


class Bench:
    """One op in one scope, with all that does not depend on the fold; `ready` if there are groups
    to hold out; `again` is the noise ceiling by row. With an `instance` only its rows are queried
    and train rankers; all rows vote. `shared` is the evidence of the scope, where it was read
    before.

    `questions_of` has the queries over every legal configuration; `queries_of` among the
    configurations that ran on the row, as in `embeddb.index.held_out`: few ran on all rows."""

    def __init__(
        self,
        db: Lookup,
        op: Op,
        scope: str,
        *,
        complete: bool = False,
        instance: str = "",
        shared: tuple[RunMatrix, Vectors] | None = None,
    ) -> None:
        self.op, self.scope, self.instance = op, scope, instance
        evidence, vectors = shared or db.evidence(op, scope)
        self._learned_from = learned_by(db.store, db.featurizers(), vectors)
        groups = set(evidence.groups.tolist())
        fair = {n: v for n, v in vectors.items() if not self._biased(n) & groups}
        #: Vectors that did not learn from the runs judged here, or all where every one did.
        self.vectors: Vectors = fair or vectors
        biased = set[str]().union(*(self._biased(n) for n in self.vectors))
        read = {row.pattern_id for row in evidence.rows}
        #: The number of patterns left out of a very large scope.
        self.unread = len(members_of(db.store, op, scope)) - len(read)
        if complete:
            whole = np.diff(evidence.indptr) >= _COMPLETE_SHARE * len(evidence.configs)
            evidence = evidence.take(np.flatnonzero(whole))
        self.evidence = evidence
        self.counted = self._judgeable_rows(biased)
        #: Groups that are not judged, since all vectors learned from their runs.
        self.biased = biased & groups
        self.ready = np.unique(self.evidence.groups[self.counted]).size >= 2
        seen = {row.pattern_id for row in self.evidence.rows}
        self.infos = {i: db.store.pattern(i) or WorkloadInfo(id=i) for i in seen}
        #: By pattern id, the structures, where stored: some have rules of their own.
        self.subjects = {i: db.store.workload_or_info(info) for i, info in self.infos.items()}
        self._workload_of = db.store.workload
        self._lengths_of = db.lengths
        #: Vectors of a model that embeds matrices itself; neighbours do not use them.
        self.own_vectors: Mapping[str, NDArray[np.float32]] | None = None
        #: By row, its last query without transferred schedules or tiles.
        self.slot_copies: dict[int, Query] = {}
        ids = {row.platform for row in self.evidence.rows}
        self.platforms: dict[str, Platform] = {i: db.platform(i) for i in ids}
        self.simulated = any(p.simulated for p in self.platforms.values())
        again = measured_again(db.store, op, self.evidence, self.counted, self.default)
        self.again = {row: replace(one, program=self._program(row)) for row, one in again.items()}

    def _judgeable_rows(self, biased: Collection[str]) -> Rows:
        """Counted rows of the instance, of matrices with a vector, in groups without bias."""
        indexed, rows = set[str]().union(*self.vectors.values()), self.evidence.rows
        counted = [
            i
            for i in counted_rows(self.evidence)
            if rows[i].pattern_id in indexed and self._own(i) and rows[i].group not in biased
        ]
        return np.array(counted, dtype=np.int64)

    def _biased(self, featurizer: str) -> set[str]:
        """Groups whose runs its vectors learned, without others by which these can be judged."""
        learned = self._learned(featurizer)
        return set() if learned.by_fold else set(learned.groups)

    def _own(self, row: int) -> bool:
        """True for the rows of `instance`."""
        return self.instance in ("", self.evidence.rows[row].platform)

    def of_instance(self, rows: Rows) -> Rows:
        """The rows of `instance` among some."""
        return np.array([row for row in rows.tolist() if self._own(row)], dtype=np.int64)

    def split(self, groups: Collection[str]) -> tuple[Rows, Rows]:
        """Training rows without these groups, and the counted rows of these groups."""
        out = np.isin(self.evidence.groups, sorted(groups))
        return np.flatnonzero(~out), self.counted[out[self.counted]]

    def folds(self, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
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
        """Every counted row, and its query to the rows of other groups."""
        for train, test in self.folds(folds, seed):
            yield from self.queries_of(train, test)

    def queries_of(self, train: Rows, test: Rows) -> Iterator[tuple[int, Query]]:
        """Each test row and its query to the training rows, among what ran on it."""
        for row, question in self.questions_of(train, test):
            yield row, self.judgeable(row, question)

    def questions_of(self, train: Rows, test: Rows) -> Iterator[tuple[int, Query]]:
        """The same over every legal configuration that a training row ran; none without training
        rows, as where the only group is held out."""
        if not train.size:
            return
        training = self.evidence.take(train).pruned()
        partition = self._partition(training, self.vectors)
        learned = self._learned(partition.featurizer)
        own: Mapping[str, NDArray[np.float32]] = self.vectors.get(partition.featurizer, {})
        partitions = {WHOLE: (partition, own)}
        for row in test:
            fold = learned.fold_of.get(self.evidence.rows[row].group, WHOLE)
            if fold not in partitions:
                vectors = learned.by_fold[fold]
                unseen = self._partition(training, {partition.featurizer: vectors})
                partitions[fold] = unseen, vectors
            yield int(row), self._question(int(row), *partitions[fold])

    def _partition(self, evidence: RunMatrix, vectors: Vectors) -> AnswerIndex:
        """The index of some rows, by one of the featurizers of `vectors`."""
        facts = {i: p.environment for i, p in self.platforms.items()}
        learned = {name: self._learned(name) for name in vectors}
        fit_input = FitInput(evidence, vectors, facts, learned)
        return AnswerIndex.build(fit_input, scope=self.scope, held_out=False)

    def learned(self, fit: Fit, train: Rows) -> Scorer:
        """Train a ranker on the training rows and the features of their matrices alone."""
        own = self.of_instance(train)
        evidence = self.evidence.take(own).pruned()
        ids = {row.pattern_id for row in evidence.rows}
        featurizer, vectors = self._features()
        lengths = {self.evidence.rows[i].pattern_id: self.lengths(i) for i in own.tolist()}
        return fit(
            evidence,
            {featurizer: {i: v for i, v in vectors.items() if i in ids}},
            {i: self.infos[i] for i in ids},
            self.platforms[evidence.rows[0].platform],
            self.op,
            lengths,
        )

    def raw(self, row: int) -> NDArray[np.float32] | None:
        """float32[d] features of a row's matrix, of the featurizer of rankers."""
        vectors = self.own_vectors if self.own_vectors is not None else self._features()[1]
        return vectors.get(self.evidence.rows[row].pattern_id)

    def lengths(self, row: int) -> RowLengths | None:
        """The row lengths of a row's matrix, if known."""
        info = self.infos[self.evidence.rows[row].pattern_id]
        return self._lengths_of(info) if self.op.workload.learned else None

    def _features(self) -> tuple[str, Mapping[str, NDArray[np.float32]]]:
        return next(iter(self.unlearned.items()))

    def _learned(self, featurizer: str) -> LearnedFrom:
        return self._learned_from.get(featurizer, LearnedFrom())

    @property
    def unlearned(self) -> Vectors:
        """The vectors of featurizers that are not trained on runs; all if every one is."""
        plain = {n: v for n, v in self.vectors.items() if not self._learned(n).groups}
        return plain or self.vectors

    def truth(self, row: int) -> Truth:
        """The measurements of a row, in the forms that configurations have on its matrix."""
        e, runs = self.evidence, self.evidence.row(row)
        pattern_id, platform_id = e.rows[row][:2]
        own = self.platforms[platform_id].space(self.op, self.subjects[pattern_id].sizes).canonical
        pairs = zip(runs.column, runs.seconds, strict=True)
        times = {own(e.configs[c]): float(t) for c, t in pairs}
        return Truth(times, float(e.default_s[row]), self._program(row))

    @property
    def tried(self) -> int:
        """The median number of configurations that ran on a judged matrix."""
        tried = np.diff(self.evidence.indptr)[self.counted]
        return int(np.median(tried)) if tried.size else 0

    def _program(self, row: int) -> str:
        """The program of a row's kernel; empty for other workloads."""
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
        """The query of a row to a partition, among what ran on it, by features float32[d] from
        `vectors` (None: those of the partition's featurizer)."""
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
        partition = partition.for_query(platform, pattern_id)
        query = with_evidence(bare, partition, vector)
        if vector is None:
            return query
        moved: Query | None = self.op.workload.transferred(
            query, partition, subject, self._workload_of
        )
        if moved is None:
            return query
        self.slot_copies[row] = self.judgeable(row, query)
        return moved

    def judgeable(self, row: int, query: Query) -> Query:
        """The query restricted to the configurations that ran on the row."""
        return replace(query, vote=_among(query.vote, self.truth(row).times))


def _among(vote: Vote, configs: Container[Config]) -> Vote:
    """The vote restricted to these configurations."""
    places = [at for at, config in enumerate(vote.configs) if config in configs]
    new_place = {at: new for new, at in enumerate(places)}

    def columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[:, places] if len(values) else values

    return replace(
        vote,
        configs=tuple(vote.configs[at] for at in places),
        gains=columns(vote.gains),
        prior=vote.prior[places],
        mean=vote.mean[places],
        cover=np.array([new_place[at] for at in vote.cover if at in new_place], dtype=np.int64),
        trust=columns(vote.trust),
        failing=columns(vote.failing),
        machine_effects=columns(vote.machine_effects),
    )


#: Numbers of measurements after which a tuner's best is compared with the optimum.
STEPS = (1, 2, 5, 10)
#: Names of other rows of the table: a tuner of such a name gets another one.
_TAKEN = frozenset(
    {"default", "random", "static-best", "static-top-k", "knn-stats", "embeddb"}
    | {"costmodel", "boosted", "process", "measured-again", "oracle"}
)


class Replayed:
    """The named tuners on the matrices of one bench: each starts anew on every matrix, with the
    evidence of the training groups, and measures by replay of recorded runs. `illegal` has the
    first illegal proposal of each with the reason, by row name."""

    def __init__(self, bench: Bench, store: Store, names: Sequence[str]) -> None:
        self._bench, self._store = bench, store
        self._names = dict.fromkeys(names)
        self.illegal: dict[str, str] = {}

    def judged(self, row: int, query: Query, *, seed: int) -> Iterator[tuple[str, Outcome]]:
        """The outcome of every tuner on one held-out row, with the name of its row in the table.

        Raises: PluginError where a tuner breaks its contract.
        """
        if not self._names:
            return
        truth = self._bench.truth(row)
        recordings = self._recordings(row, truth)

        def replay(configs: Sequence[Config]) -> Iterator[tuple[Config, Measurement]]:
            for config in configs:  # a proposal without a recorded run is a wasted step
                lost = f"no recorded run of {config} on {query.pattern.name or query.pattern.id}"
                unknown = Measurement("invalid", source="imported", error=lost)
                yield config, recordings.get(config, unknown)

        for name in self._names:
            # A generator for each, so that they do not influence each other.
            tuner = CheckedTuner(name, query, rng=np.random.default_rng((seed, row)), strict=False)
            tried = tune(tuner, replay, budget=max(STEPS))
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
        """A measurement of each configuration that ran on a row."""
        name = self._bench.evidence.rows[row]
        runs: dict[Config, list[Run]] = {}
        for run in self._store.runs(name.platform, self._bench.op, name.pattern_id):
            if run.config in truth.times:
                runs.setdefault(run.config, []).append(run)
        return {config: _nearest(own, truth.times[config]) for config, own in runs.items()}


def _nearest(runs: Sequence[Run], seconds: float) -> Measurement:
    """The run of a configuration that is nearest to its judged time; the last of failures."""
    if not math.isfinite(seconds):
        return runs[-1].measurement
    timed = [run for run in runs if 0 < run.seconds < math.inf]
    return min(timed, key=lambda run: abs(math.log(run.seconds / seconds))).measurement


def _row_name(tuner: str) -> str:
    return f"{tuner} (tuner)" if tuner in _TAKEN else tuner
