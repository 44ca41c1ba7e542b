"""A campaign on many nodes, by one coordinator: submit missing tasks, collect results, repeat.

The loss of a job, a node or this process only costs time, since all state is in the result files.
Ownership is static: a submission freezes its list, and the next one has the tasks that are still
missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from embeddb.core.errors import InputError, MissingDependency, PluginError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.index.lookup import Lookup
from indexer.campaign.budget.growing_plan import buy_more
from indexer.campaign.exclusive import alone_with
from indexer.campaign.folder import Campaign, CampaignProgress, Task
from indexer.campaign.nodes.submissions import (
    CHUNK_S,
    MOST_CHUNKS,
    Attempts,
    Reached,
    Submissions,
    Submitted,
    SubmittedJob,
    executor_named,
    in_chunks,
    open_chunks,
)
from indexer.campaign.nodes.worker import options_of
from indexer.campaign.plan import Matrix, from_file, planned_pattern
from indexer.campaign.run import Settle
from indexer.embed import embed
from indexer.executors.base import ChunkState, Effort, Executor, ExecutorOptions, Submission
from indexer.runners.base import RunOptions


@dataclass(frozen=True, slots=True)
class Collected:
    """Numbers of tasks stored, and of runs that this added."""

    tasks: int
    runs: int


def collect(
    campaign: Campaign,
    db: Lookup,
    *,
    read: Callable[[Matrix], Pattern] = from_file,
    progress: Progress = ignore_progress,
) -> Collected:
    """Store every task that is complete and not stored, on any machine, without measuring.

    Raises: InputError for an invalid file, or a matrix that is not the planned one.
    """
    ready = [
        task
        for task in campaign.tasks()
        if not campaign.missing(task) and not campaign.is_stored(db, task)
    ]
    # In the order of matrices, so that each file is read once.
    ready.sort(key=lambda task: task.matrix)
    pattern_of = lru_cache(1)(lambda at: planned_pattern(campaign.plan.matrices[at], read))
    runs = 0
    for number, task in enumerate(ready):
        progress("collect tasks", number, len(ready))
        runs += campaign.store(db, task, pattern_of(task.matrix), campaign.platform)
    return Collected(len(ready), runs)


#: Points measured, what attempts reached, the number of submissions since that changed neither,
#: and the number of the next submission, the first of those of one call.
_Mark = tuple[int, Reached, int, int]
#: Submissions in a row that may end without output, as killed ones do.
_SILENT = 3
#: Seconds between two queries of the queue: short at first, for a short job.
_LOOK_S, _LONGEST_LOOK_S = 0.2, 15.0


def ignore_message(_: str) -> None:
    """No-op message callback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesJob:
    """Measurement of a campaign by an executor with these `options` into a database.

    Points with a status of `again` are measured once more; with `mixed` nodes of several instances
    may work; without `wait` it submits and returns. `note` receives messages. A chunk has at least
    `chunk_s` estimated seconds, a submission at most `most_chunks` chunks.
    """

    campaign: Campaign
    db: Lookup
    executor: Executor
    effort: Effort = field(default_factory=Effort)
    options: ExecutorOptions = field(default_factory=ExecutorOptions)
    again: Collection[str] = ()
    mixed: bool = False
    wait: bool = True
    chunk_s: float = CHUNK_S
    most_chunks: int = MOST_CHUNKS
    read: Callable[[Matrix], Pattern] = from_file
    progress: Progress = ignore_progress
    note: Callable[[str], None] = ignore_message

    def run(self, settle: Settle | None = None) -> tuple[Campaign, CampaignProgress]:
        """Have all missing points measured and stored, with further rounds as on one machine;
        returns the campaign as it has grown.

        Raises: MissingDependency if the executor cannot be used here; InputError if another
        coordinator is active, a job was cancelled, or a submission had no result.
        """
        reason = self.executor.available()
        if reason is not None:
            raise MissingDependency(reason)
        if not (self.wait or self.executor.detached):
            raise UsageError(
                f"what {self.executor.name} works on ends with this command, so it has to wait",
                hint="leave out --no-wait",
            )
        with alone_with(self.campaign):
            self.campaign.repeat(self.again)
            campaign = self._to_the_end(settle or Settle())
        embed(self.db, progress=self.progress)
        return campaign, campaign.progress(self.db)

    def _to_the_end(self, settle: Settle) -> Campaign:
        job, before = self, None
        while True:
            campaign, idle = job.campaign, job._idle()
            collect(campaign, job.db, read=job.read, progress=job.progress)
            if not idle:
                return campaign
            if missing := [task for task in campaign.tasks() if campaign.missing(task)]:
                before = job._moved_on(before)
                job._submit(missing)
                if not job.wait:
                    return campaign
                continue
            if campaign.settling_rounds < settle.rounds and campaign.settle(settle.least):
                continue
            if (grown := buy_more(campaign, job.progress)) is None:
                return campaign
            job = replace(job, campaign=grown, again=())

    # -- submissions ---------------------------------------------------------------------------

    def _idle(self) -> bool:
        """True if no submission is running; waits for their end first if the job waits."""
        submissions, look_s = Submissions(self.campaign.folder), _LOOK_S
        while True:
            chunks = open_chunks(self.campaign, self.executor)
            for number in submissions.open():
                if number not in chunks or chunks[number] == {}:
                    job = submissions.job(number)
                    submissions.note(number, SubmittedJob(job=job.job, ended=True))
            live = {n: states for n, states in chunks.items() if states != {}}
            self._refuse_cancelled(live)
            if not live or not self.wait:
                return not live
            done = self.campaign.progress()
            measured = done.measured + Attempts(self.campaign.folder).under_way()
            self.progress("measured on nodes", min(measured, done.points), done.points)
            time.sleep(look_s)
            look_s = min(1.5 * look_s, _LONGEST_LOOK_S)

    def _refuse_cancelled(self, live: Mapping[int, Mapping[int, ChunkState] | None]) -> None:
        """Raises: InputError if a job was cancelled and no chunk of it is running."""
        for number, states in live.items():
            if states and set(states.values()) == {"cancelled"}:
                submissions = Submissions(self.campaign.folder)
                job = submissions.job(number).job
                submissions.note(number, SubmittedJob(job=job, ended=True))
                raise InputError(
                    f"submission {number} ({self.executor.name} job {job}) was cancelled",
                    where=str(self.campaign.folder),
                    hint="run the campaign again to submit what is missing",
                )

    def _submit(self, missing: Sequence[Task]) -> None:
        """Submit the missing tasks, a job for each round, which begins when the round before has
        ended. Raises: InputError if the executor refuses."""
        dead = {one.task for one in Attempts(self.campaign.folder).all() if one.open is not None}
        submissions, after = Submissions(self.campaign.folder), ""
        for number in sorted({task.round for task in missing}):
            tasks = [task for task in missing if task.round == number]
            chunks = in_chunks(
                self.campaign,
                tasks,
                suspects=frozenset(dead),
                repeats=self.effort.repeats,
                least_s=self.chunk_s,
                most=self.most_chunks,
            )
            frozen = Submitted(
                executor=self.executor.name,
                address=self.options.address,
                round=number,
                mixed=self.mixed,
                chunks=chunks,
            )
            at = submissions.add(frozen)
            work = self._work(at, len(chunks))
            after = self.executor.start(work, after=after)
            if not (isinstance(after, str) and after):
                what = f"executor {self.executor.name}: start returned {after!r:.80}"
                raise PluginError(f"{what}, not the name of a job")
            submissions.note(at, SubmittedJob(job=after))
            self.note(
                f"submission {at}: {len(tasks)} tasks of round {number} in {len(chunks)} chunks, "
                f"{self.executor.name} job {after}"
            )

    def _work(self, number: int, chunks: int) -> Submission:
        return Submission(
            folder=self.campaign.folder.resolve(),
            campaign=self.campaign.id,
            number=number,
            chunks=chunks,
            exclusive=not self.campaign.platform.simulated,
            effort=self.effort,
        )

    def _moved_on(self, before: _Mark | None) -> _Mark:
        """Current progress. Raises: InputError if there is none since the last submission, with the
        reason that its workers printed, or since several that ended without output."""
        reached = Attempts(self.campaign.folder).reached()
        measured, submissions = self.campaign.progress().measured, Submissions(self.campaign.folder)
        numbers = submissions.numbers()
        coming = max(numbers, default=0) + 1
        if before is None or (measured, reached) != before[:2]:
            return measured, reached, 0, coming
        # Submissions of later rounds fail for the same reason, or for want of the first.
        words = ((n, submissions.last_words(n)) for n in numbers if n >= before[3])
        first, reason = next(((n, line) for n, line in words if line), (numbers[-1], ""))
        if reason or before[2] + 1 == _SILENT:
            raise InputError(
                f"nothing came of submission {first}" + (f": {reason}" if reason else ""),
                where=str(self.campaign.folder),
                hint=f"what its workers printed is in {self._work(first, 0).logs}",
            )
        return measured, reached, before[2] + 1, coming


class NodesWords(TypedDict, total=False):
    """`executor` is the name of a plug-in (`local`, `slurm`, `dask`), `address` and `script` are
    its; a submission has at most `chunks` jobs (0: 1,000); with `mixed` nodes of several kinds may
    work, with `no_wait` it submits and returns."""

    executor: str
    address: str
    script: str
    chunks: int
    mixed: bool
    no_wait: bool


def named_on_nodes(platform: object) -> str:
    """Platform name for nodes: a file by its absolute path, since commands run only from a named
    file; empty for a `Platform` object."""
    if not isinstance(platform, str) or not platform.endswith(".toml"):
        return platform if isinstance(platform, str) else ""
    return str(Path(platform).resolve())


def effort_on_nodes(options: RunOptions, platform: object = "") -> Effort:
    """The options and the platform in the form that nodes receive.

    Raises: UsageError for options other than repeats and threads.
    """
    effort = Effort(
        repeats=options.repeats, threads=options.threads, platform=named_on_nodes(platform)
    )
    if options_of(effort) != options:
        raise UsageError("nodes accept only repeats and threads", hint="leave the rest as it is")
    return effort


def refuse_without_executor(words: Mapping[str, Any]) -> None:
    """Raises: UsageError for an option of an executor without an executor."""
    for name in NodesWords.__annotations__:
        if words.get(name) and not words.get("executor"):
            raise UsageError(
                f"--{name.replace('_', '-')} is of an --executor", hint="add --executor slurm"
            )


@contextmanager
def nodes_job(
    campaign: Campaign,
    db: Lookup,
    effort: Effort,
    words: NodesWords,
    *,
    again: Collection[str] = (),
    progress: Progress = ignore_progress,
    note: Callable[[str], None] = ignore_message,
) -> Iterator[NodesJob]:
    """The job for these options; its executor is closed at the end.

    Raises: UsageError, MissingDependency, PluginError for an executor that cannot be used.
    """
    options = ExecutorOptions(address=words.get("address", ""), script=words.get("script", ""))
    executor = executor_named(words.get("executor", ""), options)
    try:
        yield NodesJob(
            campaign=campaign,
            db=db,
            executor=executor,
            effort=effort,
            options=options,
            again=again,
            mixed=words.get("mixed", False),
            most_chunks=words.get("chunks", 0) or MOST_CHUNKS,
            wait=not words.get("no_wait", False),
            progress=progress,
            note=note,
        )
    finally:
        executor.close()
