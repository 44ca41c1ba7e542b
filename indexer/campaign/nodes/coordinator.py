"""A campaign on many nodes, by one coordinator: submit what is missing, collect, decide what next.

Whatever is lost on the way, a job, a node, this process, only costs time: what counts is which
result files there are. Ownership is static: a submission freezes its list, and one that went wrong
is followed by another with what is still missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from embeddb.core.errors import InputError, MissingDependency, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import parse_platform
from indexer.campaign.budget.growing_plan import buy_more
from indexer.campaign.folder import Campaign, CampaignProgress, Task
from indexer.campaign.nodes.submissions import (
    CHUNK_S,
    MOST_CHUNKS,
    Attempts,
    Submissions,
    Submitted,
    SubmittedJob,
    executor_named,
    in_chunks,
    open_chunks,
)
from indexer.campaign.nodes.worker import options_of
from indexer.campaign.plan import Matrix, from_file, planned_pattern
from indexer.campaign.run import Settle, alone
from indexer.embed import embed
from indexer.executors.base import ChunkState, Effort, Executor, ExecutorOptions, Submission
from indexer.runners.base import RunOptions


@dataclass(frozen=True, slots=True)
class Collected:
    """Numbers of tasks read in, and of runs that this added."""

    tasks: int
    runs: int


def collect(
    campaign: Campaign,
    db: Lookup,
    *,
    read: Callable[[Matrix], Pattern] = from_file,
    progress: Progress = ignore_progress,
) -> Collected:
    """Store every task that is complete and not stored; nothing is measured, and the machine need
    not be the one that was.

    Raises: InputError if a file is none of the campaign's, or a matrix not the one planned.
    """
    ready = [
        task
        for task in campaign.tasks()
        if not campaign.missing(task) and not campaign.is_stored(db, task)
    ]
    # In the order of matrices, so that each file is read once.
    ready.sort(key=lambda task: task.matrix)
    planned = parse_platform(campaign.plan.platform)
    runs, held = 0, -1
    pattern: Pattern | None = None
    for number, task in enumerate(ready):
        progress("collect tasks", number, len(ready))
        if pattern is None or held != task.matrix:
            pattern, held = planned_pattern(campaign.plan.matrices[task.matrix], read), task.matrix
        runs += campaign.store(db, task, pattern, planned)
    return Collected(len(ready), runs)


#: Points measured, the attempts that there are, and after how many submissions they were no more.
_Mark = tuple[int, frozenset[str], int]
#: So many submissions in a row may die without a word, as what is killed does.
_SILENT = 3
#: Between two looks at the queue: short at first, for a short job.
_LOOK_S, _LONGEST_LOOK_S = 0.2, 15.0


def unheard(_: str) -> None:
    """Remarks that nobody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesJob:
    """One running of a campaign over an executor into a database. `options` are those the executor
    was made with. Points whose outcome has a status of `again` are measured once more; with
    `mixed` nodes of several instances may work; without `wait` it submits and returns. `note` is
    told remarks. A chunk is of at least `chunk_s` estimated seconds, a submission of at most
    `most_chunks`."""

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
    note: Callable[[str], None] = unheard

    def run(self, settle: Settle | None = None) -> tuple[Campaign, CampaignProgress]:
        """Have everything measured that is missing, in rounds, settled and bought as when one
        machine measures, and stored; the campaign as it has grown.

        Raises: MissingDependency if the executor cannot be used here; InputError if another
        coordinator is at it, a job was cancelled, or nothing came of a submission.
        """
        reason = self.executor.available()
        if reason is not None:
            raise MissingDependency(reason)
        if not (self.wait or self.executor.detached):
            raise UsageError(
                f"what {self.executor.name} works on ends with this command, so it has to wait",
                hint="leave out --no-wait",
            )
        with alone(self.campaign.folder):
            self.campaign.repeat(self.again)
            campaign = self._to_the_end(settle or Settle())
        embed(self.db, progress=self.progress)
        return campaign, campaign.progress(self.db)

    def _to_the_end(self, asked: Settle) -> Campaign:
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
            if campaign.settling_rounds < asked.rounds and campaign.settle(asked.least):
                continue
            if (grown := buy_more(campaign)) is None:
                return campaign
            job = replace(job, campaign=grown, again=())

    # -- what was submitted --------------------------------------------------------------------

    def _idle(self) -> bool:
        """Return true if no submission is running; wait for their end first if the job waits."""
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
        """Raises: InputError where somebody cancelled a job and nothing of it goes on."""
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

    # -- submitting ----------------------------------------------------------------------------

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
            exclusive=not parse_platform(self.campaign.plan.platform).simulated,
            effort=self.effort,
        )

    def _moved_on(self, before: _Mark | None) -> _Mark:
        """Current progress. Raises: InputError if there is none since the last submission, whose
        workers gave the reason, or since several that ended without output."""
        begun = frozenset(one.file for one in Attempts(self.campaign.folder).all())
        measured = self.campaign.progress().measured
        if before is None or (measured, begun) != before[:2]:
            return measured, begun, 0
        submissions = Submissions(self.campaign.folder)
        last = submissions.numbers()[-1]
        said = submissions.last_words(last)
        if said or before[2] + 1 == _SILENT:
            raise InputError(
                f"nothing came of submission {last}" + (f": {said}" if said else ""),
                where=str(self.campaign.folder),
                hint=f"what its workers printed is in {self._work(last, 0).logs}",
            )
        return measured, begun, before[2] + 1


_OTHERS = ("address", "script", "chunks", "mixed", "no_wait")


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
    """Raises: UsageError for a word that says something of an executor, where there is none."""
    for name in _OTHERS:
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
    note: Callable[[str], None] = unheard,
) -> Iterator[NodesJob]:
    """The job that these words ask for; its executor is given up at the end.

    Raises: UsageError, MissingDependency, PluginError for an executor that is none.
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
