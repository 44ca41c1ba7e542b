"""Calibration: a few minutes of runs on this machine that tell most of how it differs from others.

Matrices are visited breadth first, the ops in turn, so that whenever time is up all are known as
well as can be. A task is one matrix and op: the default, a panel that all matrices share, and the
first answers for the matrix. It is stored when it is finished; the next call goes on from there.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import matrices_only
from embeddb.featurizers import missing
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from indexer.calibration.choice import (
    AGAIN,
    TASK,
    Candidates,
    Chooser,
    Pace,
    Timer,
    largest_nnz,
    measured_on_all,
    panel_of,
    task_configs,
)
from indexer.calibration.report import CalibrationReport, Tally, op_report
from indexer.runners.base import RunOptions
from indexer.training.cost_model.local import expected_s, learn_from_runs

#: What stored runs are called.
CAMPAIGN = "calibrate"

#: Matrices that are chosen together.
_BATCH = 6
#: Times every matrix is visited, each with the next part of the panel.
_MOST_PASSES = 6
#: The largest part of the time that one task may be guessed to take, on a generated matrix and on a
#: user's own, that the report at the end may, and that a task may run over.
_GENERATED_SHARE, _GIVEN_SHARE, _END_SHARE, _OVER_SHARE = 1 / 12, 1 / 4, 0.15, 0.04
#: The largest part of the time that learning from the runs may take.
_LEARN_SHARE = 0.3
#: The part of the time left in which questions are asked before measuring goes on.
_ASKING_SHARE = 0.25
#: Seconds that building a partition takes per entry of evidence, starting torch, and the vectors of
#: one matrix.
_REBUILD_S, _TORCH_S, _VECTOR_S = 5e-5, 5.0, 0.2
#: By how much longer than the choice of a panel a report takes: both look at all evidence.
_REPORTS = 6.0
#: Non-zeros of a matrix that is never too large.
_SMALL = 20_000
_COMPILED_AT_ONCE = 2 * (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """What a calibration is asked for. Raises: UsageError for no op, or no time."""

    ops: tuple[Op, ...]
    seconds: float
    threads: int = 0

    def __post_init__(self) -> None:
        if not self.ops:
            raise UsageError("no op to calibrate", hint="name one: --op spmm:32")
        if not self.seconds > 0:
            raise UsageError(f"the time must be positive, not {self.seconds} s")


class _Task(NamedTuple):
    pattern: Pattern
    op: Op
    configs: list[Config]


class _TimeIsUp(Exception):
    """Ends measuring wherever it is."""


def measured_ops(lookup: Lookup, platform: Platform) -> tuple[Op, ...]:
    """Those that any instance of a platform ran. Raises: UsageError if none did."""
    known = (op for op, scope in lookup.scopes() if scope.partition("@")[0] == platform.name)
    found = tuple(dict.fromkeys(known))
    if not found:
        raise UsageError(
            f"nothing of {platform.name} was measured in this database: which operations matter?",
            hint="name them: --op spmm:32 --op spmv",
        )
    return found


@dataclass(frozen=True, slots=True)
class Calibration:
    """One call of `embeddb calibrate`. `runner` measures, `clock` gives seconds and `progress` is
    called with what is done."""

    db: Lookup
    runner: Any
    wish: CalibrationRequest
    clock: Callable[[], float] = time.monotonic
    progress: Progress = ignore_progress

    def run(self, folder: Path | None = None) -> CalibrationReport:
        """Measure until the time is up, on the matrices of a folder or on generated ones, and say
        what was found. What was finished is stored, also when this is interrupted.

        Raises: UsageError for an op that the platform lacks, InputError for a folder without a
        matrix that can be measured, RunnerUnavailable also if the machine fails on the way.
        """
        matrices_only(self.wish.ops, "a calibration")
        timer = Timer(self.clock, self.wish.seconds)
        here: Platform = self.runner.platform(threads=self.wish.threads)
        for op in self.wish.ops:
            here.space(op)
        work = _Work(self, timer, here)
        report = CalibrationReport(here.id, self.wish.seconds)
        self.db.learns = False  # each task's runs would be learned from anew: seconds
        try:
            report.complete = work.measure(folder)
        finally:
            self.db.learns = True
        report.too_large, report.problems = work.candidates.too_large, work.candidates.problems
        report.indexed = work.index()
        work.learn(report)
        for at, op in enumerate(self.wish.ops):
            self.progress("report", at, len(self.wish.ops))
            partition = self.db.partition(op, here)
            report.ops.append(op_report(partition, here, op, work.tally[op]))
        report.seconds = timer.spent_s
        return report


class _Work:
    """The measuring of one calibration."""

    candidates: Candidates

    def __init__(self, asked: Calibration, timer: Timer, here: Platform) -> None:
        self._asked, self._timer, self._here = asked, timer, here
        self._db, self._ops = asked.db, asked.wish.ops
        timeout_s = min(10.0, max(1.0, timer.total_s / 30))
        self._options = RunOptions(threads=asked.wish.threads, timeout_s=timeout_s)
        found = {op: self._db.partition(op, here) for op in self._ops}
        began = timer.spent_s
        self._panel = {op: panel_of(found[op], here, op) for op in self._ops}
        self._report_s = _REPORTS * (timer.spent_s - began)
        self._featurizers = {"stats", *(p.featurizer for p in found.values() if p)}
        self._fullest = max(found.values(), key=lambda p: len(p.ids) if p else 0)
        self._rebuild_s = sum(_entries(p) * _REBUILD_S for p in found.values())
        self._lacking = self._without_vectors()
        self._learn_s = expected_s(self._db, here, self._ops)
        self._pace = Pace()
        self._built: set[tuple[Op, Config]] = set()
        self.tally = {op: Tally() for op in self._ops}

    @property
    def _index_s(self) -> float:
        """What `index` is expected to take."""
        vectors = _TORCH_S + _VECTOR_S * len(self._lacking) if self._lacking else 0.0
        return self._rebuild_s + vectors

    @property
    def _until_s(self) -> float:
        """When measuring has to end, so that the report, and if that is not too much the index and
        the models, are made in time."""
        total = self._timer.total_s
        wanted = self._report_s + self._index_s
        if wanted > _END_SHARE * total:
            wanted = min(self._report_s, _END_SHARE * total)
        return total - wanted - (self._learn_s if self._learns else 0.0)

    @property
    def _learns(self) -> bool:
        """True if there are models to train and training them fits its share of the time."""
        return 0 < self._learn_s <= _LEARN_SHARE * self._timer.total_s

    # -- which matrices --------------------------------------------------------------------

    def _chooser(self, folder: Path | None) -> Chooser:
        share = _GENERATED_SHARE if folder is None else _GIVEN_SHARE
        most = [largest_nnz(op, TASK, share * self._timer.total_s) for op in self._ops]
        self.candidates = Candidates(folder, max(min(most), _SMALL))
        featurizer = self._fullest.featurizer if self._fullest else "stats"
        return Chooser(
            iter(self.candidates),
            lambda pattern: self._db.vector(pattern, featurizer),
            self._fullest,
            done=measured_on_all(self._db, self._here, self._ops),
            familiar=folder is None,
        )

    def _without_vectors(self) -> set[str]:
        """Patterns that this machine ran and that lack a vector which could be computed here."""
        partitions = (self._db.store.partition(self._here.id, op) for op in self._ops)
        ids = {i for p in partitions if p is not None for i in self._db.store.members(p)}
        found: set[str] = set()
        for name, featurizer in self._db.featurizers().items():
            if not missing(featurizer):
                found |= ids - set(self._db.store.vectors.get(name, featurizer.version, ids))
        return found

    # -- in which order --------------------------------------------------------------------

    def measure(self, folder: Path | None) -> bool:
        """Whether everything was measured that there is.

        Raises: InputError if there is no matrix.
        """
        chooser = self._chooser(folder)
        order: list[Pattern] = []
        with suppress(_TimeIsUp):
            while batch := chooser.take(_BATCH):
                order += batch
                self._batch(batch, 0)
            for number in range(1, _MOST_PASSES):
                for at in range(0, len(order), _BATCH):
                    self._batch(order[at : at + _BATCH], number)
            if order:
                return True
        if not order:
            raise _no_matrix(self.candidates, folder)
        return False

    def _batch(self, batch: Sequence[Pattern], number: int) -> None:
        """Ask about matrices and measure what is missing of them in a pass; a task for which there
        is no time is left out, if another still fits.

        Some are asked before any is measured: new runs make the next question a slow one.
        """
        for pattern in batch:
            self._known(pattern)
        pairs = deque((p, op) for at, p in enumerate(batch) for op in _turned(self._ops, at))
        while pairs:
            tasks = self._asked_about(pairs, number)
            fitting = 0
            for task in tasks:
                if self._timer.spent_s + self._expected_s(task) <= self._until_s:
                    self._measure(task)
                    fitting += 1
            if tasks and not fitting:
                raise _TimeIsUp

    def _asked_about(self, pairs: deque[tuple[Pattern, Op]], number: int) -> list[_Task]:
        """The tasks of the first pairs, which are taken off; as many as can be asked about in a
        part of the time that is left."""
        began, tasks = self._timer.spent_s, list[_Task]()
        if began >= self._until_s:
            raise _TimeIsUp
        until_s = began + _ASKING_SHARE * (self._until_s - began)
        while pairs and (not tasks or self._timer.spent_s < until_s):
            task = self._task(*pairs.popleft(), number)
            if task is not None:
                tasks.append(task)
        return tasks

    def _known(self, pattern: Pattern) -> None:
        """Have a pattern stored, with the features that it is asked by; those of a network, which
        cost seconds where processors are busy, are left to `embeddb embed`."""
        if self._db.store.structure(pattern.id) is None:
            self._lacking.add(pattern.id)
            self._db.add_pattern(pattern, only=self._featurizers)

    def _task(self, pattern: Pattern, op: Op, number: int) -> _Task | None:
        """What is missing of a matrix and op in a pass; None if nothing is."""
        known = summarise_runs(self._db.store.runs(self._here.id, op, pattern.id))
        panel = self._panel[op]
        configs = task_configs(self._db, pattern, self._here, op, panel, number=number, known=known)
        return _Task(pattern, op, configs) if configs else None

    # -- measuring -------------------------------------------------------------------------

    def _fresh(self, task: _Task) -> list[Config]:
        """What is to be compiled."""
        built = self._built
        able = hasattr(self._asked.runner, "prepare")
        return [c for c in task.configs if (task.op, c) not in built] if able else []

    def _expected_s(self, task: _Task) -> float:
        count, fresh = len(task.configs) + AGAIN, len(self._fresh(task))
        return self._pace.expected_s(task.op, count, task.pattern.nnz, fresh=fresh)

    def _measure(self, task: _Task) -> None:
        """Measure and store one task; if it takes much too long, what there is of it.

        Raises: _TimeIsUp in the latter case.
        """
        self._compile(task)
        began, runs = self._timer.spent_s, list[Run]()
        tally = self.tally[task.op]
        order = _shuffled(task)
        latest = self._until_s + _OVER_SHARE * self._timer.total_s
        measured = self._asked.runner.run(task.pattern, task.op, order, options=self._options)
        try:
            with closing(measured):
                for config, m in measured:
                    runs.append(Run(task.pattern.id, task.op, self._here.id, config, m, CAMPAIGN))
                    self._tell(task)
                    if self._timer.spent_s > latest:
                        break
        finally:
            if runs:
                self._db.record(runs, task.pattern, self._here)
                tally.matrices.add(task.pattern.id)
                tally.runs += len(runs)
                tally.failures += sum(not run.measurement.ok for run in runs)
        if len(runs) < len(order):
            raise _TimeIsUp
        spent_s = self._timer.spent_s - began
        self._pace.measured(task.op, len(order), task.pattern.nnz, spent_s)

    def _compile(self, task: _Task) -> None:
        fresh = self._fresh(task)
        began = self._timer.spent_s
        for at in range(0, len(fresh), _COMPILED_AT_ONCE):
            self._tell(task)
            self._asked.runner.prepare(task.op, fresh[at : at + _COMPILED_AT_ONCE])
        self._built.update((task.op, config) for config in fresh)
        self._pace.compiled(len(fresh), self._timer.spent_s - began)

    def _tell(self, task: _Task) -> None:
        done = round(self._timer.spent_s)
        self._asked.progress(
            f"calibrate, now {task.op} of {task.pattern.name}, seconds",
            min(done, round(self._timer.total_s)),
            round(self._timer.total_s),
        )

    # -- the end ---------------------------------------------------------------------------

    def index(self) -> bool:
        """Build the partitions anew, with the vectors that were left out, if there is time for all
        of that; else the next question takes in the new runs, and `embeddb embed` the rest."""
        after_s = self._report_s + (self._learn_s if self._learns else 0.0)
        if self._timer.left_s < self._index_s + after_s:
            return False
        with _one_thread():
            for pattern_id in sorted(self._lacking):
                if self._timer.left_s < self._rebuild_s + after_s:
                    return False
                pattern = self._db.store.structure(pattern_id)
                if pattern is not None:
                    self._db.add_pattern(pattern)
        for op in self._ops:
            self._db.refresh(op, scope_of(self._here))
        return True

    def learn(self, report: CalibrationReport) -> None:
        """Train the models of every machine on this machine's runs too, if there is time."""
        late_s = 2 * _OVER_SHARE * self._timer.total_s  # as much as the last task may be
        if self._learns and self._learn_s <= self._timer.left_s + late_s:
            learn(report, self._db, self._here, self._ops, self._asked.progress)
        elif self._learn_s:
            report.problems.insert(
                0,
                "the cost models did not learn from these runs, which takes about "
                f"{self._learn_s:.0f} s: give more --minutes",
            )


def learn(
    report: CalibrationReport, db: Lookup, here: Platform, ops: Sequence[Op], progress: Progress
) -> None:
    """Train the models of every machine on this machine's runs too. Errors come first among the
    problems of the report."""
    learned = learn_from_runs(db, here, ops, progress)
    report.learned = [str(op) for op in learned.ops]
    report.problems[:0] = learned.problems


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks compute on one thread: where cores are busy several wait for one another, and take
    ten times as long."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _no_matrix(candidates: Candidates, folder: Path | None) -> InputError:
    large = candidates.too_large
    if large:
        hint = f"{large} too large for the time given: give more --minutes"
    else:
        hint = "; ".join(candidates.problems[:1]) or "name a folder with matrix files"
    return InputError("no matrix that can be measured", where=str(folder), hint=hint)


def _entries(partition: AnswerIndex | None) -> int:
    return 0 if partition is None else len(partition.evidence.seconds)


def _turned(ops: Sequence[Op], by: int) -> list[Op]:
    at = by % len(ops)
    return [*ops[at:], *ops[:at]]


def _shuffled(task: _Task) -> list[Config]:
    """The configurations in an order of chance, so that drift is nobody's, and some once more."""
    seed = zlib.crc32(f"{task.pattern.id}{task.op}".encode())
    order = np.random.default_rng(seed).permutation(len(task.configs))
    return [*(task.configs[at] for at in order), *task.configs[:AGAIN]]
