"""The work of a node: tasks of a campaign measured into files, without a database.

Any number of workers on any number of nodes may have the same task: results are written whole, and
the first ones win. If a worker dies, the next attempt on the same host resumes from its
measurements. A point that killed every process that tried it is given up and recorded as `crash`.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embeddb.core.checked_run import checked_run
from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, InputError, RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, in_context
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import state_now
from embeddb.platforms.platform import (
    Platform,
    load_platform,
    parse_platform,
    platform_here,
    runner_for,
)
from indexer.campaign.folder import Campaign, Task, crash_of
from indexer.campaign.nodes.submissions import Attempt, Attempts, Begun, Place, Submissions
from indexer.campaign.plan import Matrix, from_file, planned_pattern
from indexer.campaign.results import Line, Moment, Origin
from indexer.executors.base import Effort
from indexer.runners.base import RunOptions

#: Attempts that a point may end before it is given up.
MOST_TRIES = 3


@dataclass(slots=True)
class Worked:
    """Outcomes of a worker's tasks, by id: `done` by it, `there` before or by another, `failed`
    with the reason."""

    done: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Measures tasks on `host`. With `mixed`, a campaign may have times of several instances.
    `submission` and `chunk` are those of the tasks (`indexer.campaign.nodes.submissions`)."""

    campaign: Campaign
    runner: Any
    options: Any
    host: str
    mixed: bool = False
    submission: int = 0
    chunk: int = -1
    read: Callable[[Matrix], Pattern] = from_file
    progress: Progress = ignore_progress

    def work(self, tasks: Iterable[Task]) -> Worked:
        """Measure and deliver each unfinished task; report those that fail and continue.

        Raises: InputError if this is another instance than the campaign's; RunnerUnavailable if the
        machine fails; OSError if nothing can be written. Delivered tasks stay.
        """
        here = platform_here(self.runner, threads=self.options.threads)
        self.campaign.instances.admit(here, mixed=self.mixed)
        tasks, worked = list(tasks), Worked()
        for number, task in enumerate(tasks):
            self.progress("work on tasks", number, len(tasks))
            try:
                done = _TaskWork(self, here, task).deliver()
                (worked.done if done else worked.there).append(task.id)
            except RunnerUnavailable:
                raise
            except EmbeddbError as error:
                worked.failed[task.id] = str(error)
        return worked


class _TaskWork:
    """One task on this host."""

    def __init__(self, worker: Worker, here: Platform, task: Task) -> None:
        self._worker, self._here, self._task = worker, here, task
        self._campaign = worker.campaign
        self._attempts = Attempts(Path(worker.campaign.folder))

    def deliver(self) -> bool:
        """Do the task; False if it was done before or another worker's results count."""
        todo, began = self._todo(), time.monotonic()
        if not todo:
            self._attempts.forget(self._task.id)
            return False
        part = len(self._campaign.results.stamp(self._task.id))
        worker = self._worker
        place = Place(
            on=self._here.id,
            host=worker.host,
            part=part,
            submission=worker.submission,
            chunk=worker.chunk,
        )
        dead = [
            a for a in self._attempts.all(self._task.id) if not a.alive and a.place.part == part
        ]
        with self._attempts.beginning(self._task.id, place) as attempt:
            self._take_over(attempt, dead, todo)
            self._give_up(attempt, dead, todo)
            have = {line.config for line in attempt.lines}
            self._measure(attempt, [at for at in todo if at not in have])
        spent = time.monotonic() - began
        origin = Origin(on=place.on, host=place.host, spent_s=spent, states=attempt.states)
        won = self._campaign.results.deliver(self._task.id, part, origin, attempt.lines)
        self._attempts.forget(self._task.id)
        return won

    def _todo(self) -> list[int]:
        """Missing points in their order, with the default in front, since a gain is relative to
        the default on the same node.

        Raises: InputError if the task was begun on another instance.
        """
        missing = self._campaign.missing(self._task)
        on = self._campaign.instance_of(self._task)
        if missing and on not in ("", self._here.id):
            raise InputError(
                f"task {self._task.id} was begun on {on}, and this is {self._here.id}",
                where=str(self._campaign.folder),
                hint="work on it there",
            )
        default = self._campaign.default(self._task) if missing else None
        return missing if default is None or default in missing else [default, *missing]

    def _take_over(self, attempt: Attempt, dead: Sequence[Begun], todo: Sequence[int]) -> None:
        """Resume the dead attempt on this host that got farthest."""
        here, host = self._here.id, self._worker.host
        same = [a for a in dead if (a.place.on, a.place.host) == (here, host)]
        best = max(same, key=lambda a: len(a.lines), default=None)
        if best is None:
            return
        for line in best.lines:
            if line.config in todo:
                attempt.point(line)
        for moment in best.states:
            attempt.state(moment)

    def _give_up(self, attempt: Attempt, dead: Sequence[Begun], todo: Sequence[int]) -> None:
        """Record as `crash` the points that ended `MOST_TRIES` attempts."""
        have = {line.config for line in attempt.lines}
        tries = Counter(a.open for a in dead if a.open is not None)
        for config in todo:
            if config in have or tries[config] < MOST_TRIES:
                continue
            hosts = ", ".join(sorted({a.place.host for a in dead if a.open == config}))
            error = f"ended the process or node that ran it, {tries[config]} times, on {hosts}"
            crash = crash_of(self._here, error, tries=tries[config])
            attempt.point(Line(config, self._located(crash)))

    def _measure(self, attempt: Attempt, todo: Sequence[int]) -> None:
        if not todo:
            return
        worker, task = self._worker, self._task
        pattern = planned_pattern(self._campaign.plan.matrices[task.matrix], worker.read)
        configs = [self._campaign.configs[task.op][at] for at in todo]
        if hasattr(worker.runner, "prepare"):
            worker.runner.prepare(Op.parse(task.op), configs)
        self._note_state(attempt)
        op, options = Op.parse(task.op), worker.options
        outcomes = checked_run(worker.runner, pattern, op, configs, options=options)
        for number, at in enumerate(todo):
            worker.progress(f"measure {task.id}", number, len(todo))
            attempt.start(at)
            _, measured = next(outcomes)
            attempt.point(Line(at, self._located(measured)))
        self._note_state(attempt)

    def _located(self, measured: Measurement) -> Measurement:
        return in_context(measured, {"host": self._worker.host})

    def _note_state(self, attempt: Attempt) -> None:
        worker = self._worker
        if now := state_now(worker.runner, threads=worker.options.threads):
            attempt.state(Moment(len(attempt.lines), now))


#: Most repeats of a measurement unless more are requested.
_MOST_REPEATS = 25


def work_tasks(
    folder: Path,
    names: Sequence[str],
    effort: Effort,
    *,
    mixed: bool = False,
    progress: Progress = ignore_progress,
    at: tuple[int, int] = (0, -1),
) -> Worked:
    """Work on tasks by their ids; `at` is their submission and chunk.

    Raises: InputError for an unknown task, or on another instance than the campaign's;
    RunnerUnavailable if this machine cannot measure, or fails.
    """
    campaign = Campaign(folder)
    tasks = campaign.named(names)
    # A plan contains the platform's text, but commands run only from a file that the user names.
    planned = parse_platform(campaign.plan.platform, where=str(folder))
    worker = Worker(
        campaign=campaign,
        runner=runner_for(load_platform(effort.platform) if effort.platform else planned),
        options=options_of(effort),
        host=socket.gethostname(),
        mixed=mixed,
        submission=at[0],
        chunk=at[1],
        progress=progress,
    )
    return worker.work(tasks)


def options_of(effort: Effort) -> RunOptions:
    """The measuring options of a node for an effort."""
    most = max(_MOST_REPEATS, effort.repeats)
    return RunOptions(repeats=effort.repeats, max_repeats=most, threads=effort.threads)


def work_chunk(
    folder: Path, number: int, chunk: int, effort: Effort, progress: Progress = ignore_progress
) -> Worked:
    """Work on one chunk of a submission. Raises: as `work_tasks`; InputError for no such chunk."""
    frozen = Submissions(folder).read(number)
    if not 0 <= chunk < len(frozen.chunks):
        raise InputError(
            f"submission {number} has no chunk {chunk}",
            where=str(folder),
            hint=f"chunks are 0 to {len(frozen.chunks) - 1}",
        )
    names = frozen.chunks[chunk]
    return work_tasks(
        folder, names, effort, mixed=frozen.mixed, progress=progress, at=(number, chunk)
    )


def chunk_logged(folder: str, number: int, chunk: int, effort: Effort) -> str:
    """`work_chunk` inside a worker of another library: an expected error is added to the chunk's
    log, and returned, in one line."""
    try:
        worked = work_chunk(Path(folder), number, chunk, effort)
        message = "; ".join(f"{name}: {reason}" for name, reason in worked.failed.items())
    except (EmbeddbError, OSError) as error:
        message = str(error)
    if message:
        log_file = Path(folder, "submit", f"{number:04d}", f"{chunk}.log")
        with log_file.open("a", encoding="utf-8") as log:
            log.write(f"{message}\n")
    return message
