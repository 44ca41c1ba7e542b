"""Calibration: a few minutes of runs on this machine that show best how it differs from others.

Matrices are visited breadth first and ops in turn, so that all have evidence whenever the time is
up. A task is one matrix and op: the default, a panel that all matrices share, and the first answers
for the matrix. Finished tasks are stored, and the next call resumes after them.
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
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.workload import matrices_only
from embeddb.featurizers import missing
from embeddb.index.lookup import Lookup
from embeddb.index.recorder import Machine, Recorder
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from indexer.calibration.choice import (
    AGAIN,
    Candidates,
    Evidence,
    Pace,
    Timer,
    task_configs,
)
from indexer.calibration.report import CalibrationReport, Tally, op_report
from indexer.runners.base import RunOptions
from indexer.training.cost_model.local import expected_s, learn_from_runs

#: Campaign name of the runs.
CAMPAIGN = "calibrate"

#: Matrices that are chosen together.
_BATCH = 6
#: Visits of every matrix, each with the next part of the panel.
_MOST_PASSES = 6
#: Largest shares of the time: the estimate of one task on a generated matrix, on a user's own, the
#: report at the end, and the time by which a task may exceed the limit.
_GENERATED_SHARE, _GIVEN_SHARE, _END_SHARE, _OVER_SHARE = 1 / 12, 1 / 4, 0.15, 0.04
#: Largest share of the time for learning from the runs.
_LEARN_SHARE = 0.3
#: Share of the remaining time for queries before measuring continues.
_QUERY_SHARE = 0.25
#: Seconds to build a partition per entry of evidence, to start torch, and to embed one matrix.
_REBUILD_S, _TORCH_S, _VECTOR_S = 5e-5, 5.0, 0.2
#: Time of a report over that of choosing the panels: both read all evidence.
_REPORTS = 6.0
_COMPILED_AT_ONCE = 2 * (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Operations to calibrate in some seconds. Raises: UsageError for no op, or no time."""

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
    """Ends measuring."""


def measured_ops(lookup: Lookup, platform: Platform) -> tuple[Op, ...]:
    """Operations that any instance of a platform ran. Raises: UsageError if there are none."""
    scopes = lookup.scopes(platform.name)
    ops = tuple(dict.fromkeys(op for op, _ in scopes))
    if not ops:
        raise UsageError(
            f"nothing of {platform.name} was measured in this database: which operations matter?",
            hint="name them: --op spmm:32 --op spmv",
        )
    return ops


@dataclass(frozen=True, slots=True)
class Calibration:
    """One call of `embeddb calibrate`. `runner` measures, `clock` returns seconds."""

    db: Lookup
    runner: Any
    request: CalibrationRequest
    clock: Callable[[], float] = time.monotonic
    progress: Progress = ignore_progress

    def run(self, folder: Path | None = None) -> CalibrationReport:
        """Measure until the time is up, on the matrices of a folder or on generated ones, and
        report. Finished tasks are stored even if this is interrupted.

        Raises: UsageError for an op that the platform lacks, InputError for a folder without a
        matrix that can be measured, RunnerUnavailable also if the machine fails on the way.
        """
        ops = self.request.ops
        matrices_only(ops, "a calibration")
        timer = Timer(self.clock, self.request.seconds)
        here: Platform = self.runner.platform(threads=self.request.threads)
        for op in ops:
            here.space(op)
        work = _Work(self, timer, here)
        report = CalibrationReport(here.id, self.request.seconds)
        self.db.learns = False  # learning from each task's runs would take seconds
        try:
            report.complete = work.measure(folder)
        finally:
            self.db.learns = True
        report.too_large, report.problems = work.candidates.too_large, work.candidates.problems
        report.indexed = work.index()
        work.learn(report)
        for at, op in enumerate(ops):
            self.progress("report", at, len(ops))
            partition = self.db.partition(op, here)
            report.ops.append(op_report(partition, here, op, work.tally[op]))
        report.seconds = timer.spent_s
        return report


class _Work:
    """The measuring of one calibration."""

    candidates: Candidates

    def __init__(self, job: Calibration, timer: Timer, here: Platform) -> None:
        self._job, self._timer, self._here = job, timer, here
        self._db, self._ops = job.db, job.request.ops
        timeout_s = min(10.0, max(1.0, timer.total_s / 30))
        options = RunOptions(threads=job.request.threads, timeout_s=timeout_s)
        self._machine = Machine(job.db, job.runner, here, options)
        self._evidence = Evidence(self._db, here, self._ops)
        began = timer.spent_s
        self._panels = self._evidence.panels()
        self._report_s = _REPORTS * (timer.spent_s - began)
        partitions = [p for p in self._evidence.partitions.values() if p is not None]
        self._rebuild_s = _REBUILD_S * sum(len(p.evidence.seconds) for p in partitions)
        self._lacking = self._without_vectors()
        self._learn_s = expected_s(self._db, here, self._ops)
        self._pace = Pace()
        self._built: set[tuple[Op, Config]] = set()
        self.tally = {op: Tally() for op in self._ops}

    @property
    def _index_s(self) -> float:
        """Expected seconds of `index`."""
        vectors = _TORCH_S + _VECTOR_S * len(self._lacking) if self._lacking else 0.0
        return self._rebuild_s + vectors

    @property
    def _until_s(self) -> float:
        """End of measuring that leaves time for the report, and if their shares are small enough
        for the index and the models."""
        total = self._timer.total_s
        wanted = self._report_s + self._index_s
        if wanted > _END_SHARE * total:
            wanted = min(self._report_s, _END_SHARE * total)
        return total - wanted - (self._learn_s if self._learns else 0.0)

    @property
    def _learns(self) -> bool:
        """True if there are models to train and training them fits its share of the time."""
        return 0 < self._learn_s <= _LEARN_SHARE * self._timer.total_s

    def _without_vectors(self) -> set[str]:
        """Patterns with runs of this machine that lack a vector which can be computed here."""
        partitions = (self._db.store.partition(self._here.id, op) for op in self._ops)
        ids = {i for p in partitions if p is not None for i in self._db.store.members(p)}
        lacking: set[str] = set()
        for name, featurizer in self._db.featurizers().items():
            if not missing(featurizer):
                lacking |= ids - set(self._db.store.vectors.get(name, featurizer.version, ids))
        return lacking

    # -- order of the tasks ----------------------------------------------------------------

    def measure(self, folder: Path | None) -> bool:
        """Measure until the time is up; True if nothing is left to measure.

        Raises: InputError if there is no matrix.
        """
        share = _GENERATED_SHARE if folder is None else _GIVEN_SHARE
        self.candidates = self._evidence.candidates(folder, share * self._timer.total_s)
        chooser = self._evidence.chooser(self.candidates, familiar=folder is None)
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
            raise self.candidates.none()
        return False

    def _batch(self, batch: Sequence[Pattern], number: int) -> None:
        """Measure the missing configurations of matrices in a pass; a task for which there is no
        time is left out, if another still fits.

        Several matrices are queried before any is measured: new runs slow down the next query.
        """
        for pattern in batch:
            if self._evidence.add(pattern):
                self._lacking.add(pattern.id)
        pairs = deque((p, op) for at, p in enumerate(batch) for op in _turned(self._ops, at))
        while pairs:
            tasks = self._queried(pairs, number)
            fitting = 0
            for task in tasks:
                count, fresh = len(task.configs) + AGAIN, len(self._fresh(task))
                more_s = self._pace.expected_s(task.op, count, task.pattern.nnz, fresh=fresh)
                if self._timer.spent_s + more_s <= self._until_s:
                    self._measure(task)
                    fitting += 1
            if tasks and not fitting:
                raise _TimeIsUp

    def _queried(self, pairs: deque[tuple[Pattern, Op]], number: int) -> list[_Task]:
        """Take off the first pairs, as many as can be queried in a share of the remaining time, and
        return their tasks."""
        began, tasks = self._timer.spent_s, list[_Task]()
        if began >= self._until_s:
            raise _TimeIsUp
        until_s = began + _QUERY_SHARE * (self._until_s - began)
        while pairs and (not tasks or self._timer.spent_s < until_s):
            pattern, op = pairs.popleft()
            panel = self._panels[op]
            configs = task_configs(self._db, pattern, self._here, op, panel, number)
            if configs:
                tasks.append(_Task(pattern, op, configs))
        return tasks

    # -- measuring -------------------------------------------------------------------------

    def _fresh(self, task: _Task) -> list[Config]:
        """Configurations still to be compiled."""
        built = self._built
        able = hasattr(self._job.runner, "prepare")
        return [c for c in task.configs if (task.op, c) not in built] if able else []

    def _measure(self, task: _Task) -> None:
        """Measure and store one task, a part of it if it takes much too long.

        Raises: _TimeIsUp in the latter case.
        """
        self._compile(task)
        began = self._timer.spent_s
        recorder = Recorder(self._machine, task.pattern, task.op, CAMPAIGN)
        order = _shuffled(task)
        latest = self._until_s + _OVER_SHARE * self._timer.total_s
        try:
            with closing(recorder.measure(order)) as runs:
                for _ in runs:
                    self._show(task)
                    if self._timer.spent_s > latest:
                        break
        finally:
            stored = recorder.keep()
            self.tally[task.op].add(stored)
        if len(stored) < len(order):
            raise _TimeIsUp
        spent_s = self._timer.spent_s - began
        self._pace.measured(task.op, len(order), task.pattern.nnz, spent_s)

    def _compile(self, task: _Task) -> None:
        fresh = self._fresh(task)
        began = self._timer.spent_s
        for at in range(0, len(fresh), _COMPILED_AT_ONCE):
            self._show(task)
            self._job.runner.prepare(task.op, fresh[at : at + _COMPILED_AT_ONCE])
        self._built.update((task.op, config) for config in fresh)
        self._pace.compiled(len(fresh), self._timer.spent_s - began)

    def _show(self, task: _Task) -> None:
        done, total = round(self._timer.spent_s), round(self._timer.total_s)
        name = f"calibrate, now {task.op} of {task.pattern.name}, seconds"
        self._job.progress(name, min(done, total), total)

    # -- the end ---------------------------------------------------------------------------

    def index(self) -> bool:
        """Rebuild the partitions with the vectors that were left out, if there is time; else the
        next query includes the new runs, and `embeddb embed` adds the rest."""
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
            learn(report, self._db, self._here, self._ops, self._job.progress)
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
    """Let networks compute on one thread: on busy cores several wait for one another, and take ten
    times as long."""
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


def _turned(ops: Sequence[Op], by: int) -> list[Op]:
    at = by % len(ops)
    return [*ops[at:], *ops[:at]]


def _shuffled(task: _Task) -> list[Config]:
    """The configurations in a random order, so that drift favours none, and some again."""
    seed = zlib.crc32(f"{task.pattern.id}{task.op}".encode())
    order = np.random.default_rng(seed).permutation(len(task.configs))
    return [*(task.configs[at] for at in order), *task.configs[:AGAIN]]
