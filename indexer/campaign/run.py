"""Running a campaign: measure what is missing, settle what disagrees, store what is complete."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.files.own_files import OwnFolder
from embeddb.core.machine_state import state_now
from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, platform_here
from indexer.campaign.agreement import AGREE
from indexer.campaign.budget.growing_plan import buy_more
from indexer.campaign.budget.teaching import taught_on_the_way
from indexer.campaign.folder import Campaign, Progress, Task
from indexer.campaign.nodes.spread import open_chunks
from indexer.campaign.plan import Matrix, Told, untold
from indexer.campaign.planned_matrix import from_file, planned_pattern
from indexer.embed import embed

__all__ = ["CampaignJob", "Settle", "alone", "run_campaign"]

#: Configurations a runner compiles ahead between two reports of progress.
_BUILT_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Settle:
    """Up to `rounds` further rounds for matrices no two rounds of which agree (Spearman at least
    `least`, or only near-ties in another order), or that were measured while the machine was in
    another state."""

    rounds: int = 1
    least: float = AGREE


@dataclass(frozen=True, slots=True)
class CampaignJob:
    """One running of a campaign into a database; `read` brings a planned matrix. Points whose
    outcome has a status of `again` are measured once more."""

    campaign: Campaign
    db: Lookup
    runner: Any
    options: Any
    read: Callable[[Matrix], Pattern] = from_file
    told: Told = untold
    again: Collection[str] = ()

    def run(self, settle: Settle | None = None) -> Progress:
        """Measure everything that is missing, settle what disagrees, store every finished task.

        Raises: InputError if the folder holds times of another machine, a matrix is not the one
        that was planned, or another run of this campaign is going on; RunnerUnavailable if the
        machine fails at it: what was measured before stays, and the next run goes on from there.
        """
        platform = platform_here(self.runner, threads=self.options.threads)
        self.campaign.instances.admit(platform)
        with alone(self.campaign.folder):
            _nothing_submitted(self.campaign)
            self.campaign.repeat(self.again)
            return self._run(platform, settle or Settle())

    def _run(self, platform: Platform, asked: Settle) -> Progress:
        self._measure_missing(platform)
        while self.campaign.settling_rounds < asked.rounds and self.campaign.settle(asked.least):
            self._measure_missing(platform)
        return self.campaign.progress(self.db)

    def _measure_missing(self, platform: Platform) -> None:
        """Measure what is missing of every task there is now, and store it."""
        campaign = self.campaign
        tasks = [t for t in campaign.tasks() if not campaign.is_stored(self.db, t)]
        self._prepare(tasks)
        done = campaign.progress()
        what = "measure again" if campaign.settling_rounds else "measure"
        for task in tasks:
            pattern = planned_pattern(campaign.plan.matrices[task.matrix], self.read)
            missing = len(campaign.missing(task))
            if missing:
                self._note_state(task)
            for _ in campaign.measure(task, self.runner, pattern, options=self.options):
                done.measured += 1
                self.told(what, done.measured, done.points)
            if missing:
                self._note_state(task)
            campaign.store(self.db, task, pattern, platform)

    def _note_state(self, task: Task) -> None:
        """Have the state of the machine as it is now beside the task's results."""
        now = state_now(self.runner, threads=self.options.threads)
        self.campaign.states(task).note(self.campaign.written(task), now)

    def _prepare(self, tasks: list[Task]) -> None:
        """Have what a runner compiles compiled before anything is timed."""
        if not hasattr(self.runner, "prepare"):
            return
        missing: dict[str, set[int]] = {}
        for task in tasks:
            missing.setdefault(task.op, set()).update(self.campaign.missing(task))
        for op, positions in missing.items():
            configs = self.campaign.configs(op, positions)
            for at in range(0, len(configs), _BUILT_AT_ONCE):
                self.told(f"compile {op}", at, len(configs))
                self.runner.prepare(Op.parse(op), configs[at : at + _BUILT_AT_ONCE])


def run_campaign(job: CampaignJob, settle: Settle | None = None) -> tuple[Campaign, Progress]:
    """Run a campaign to its end, with the rounds that a strategy buys on the way, and make what was
    measured answer; returns the campaign as it has grown.

    Raises: InputError, RunnerUnavailable as `CampaignJob.run`.
    """
    done = job.run(settle)
    reward = taught_on_the_way(job.campaign, job.db, job.read, job.told)
    while (grown := buy_more(job.campaign, reward)) is not None:
        job = replace(job, campaign=grown, again=())
        done = job.run(settle)
    embed(job.db, progress=job.told)
    return job.campaign, done


def _nothing_submitted(campaign: Campaign) -> None:
    """Raises: InputError if nodes are at the campaign: points would be measured twice."""
    live = [number for number, states in open_chunks(campaign).items() if states != {}]
    if live:
        raise InputError(
            f"submission {live[0]} may still be worked on",
            where=str(campaign.folder),
            hint="see `embeddb campaign status`; go on with the --executor it was submitted to",
        )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a campaign as its only coordinator: two would measure twice and disturb each other's
    times.

    Raises: InputError if another does.
    """
    with OwnFolder(folder).open("lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another run of this campaign is going on",
                where=str(folder),
                hint="wait for it, or stop it",
            ) from None
        yield
