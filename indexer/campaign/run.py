"""Planning and running of a campaign: measure missing points, settle disagreements, store tasks."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.checked_run import checked_run
from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, MatrixError
from embeddb.core.pattern import Pattern
from embeddb.core.records import HARDWARE_S, Measurement, failure_kinds
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import state_now
from embeddb.core.workload import matrices_only
from embeddb.index.lookup import Lookup
from embeddb.kernels.machine_failures import ProgramKilled
from embeddb.matrix_files import matrix_files, matrix_names, plain_name, read_pattern
from embeddb.matrix_files.source import plain_text
from embeddb.platforms.platform import Platform, builtin_platforms, platform_here
from embeddb.store import Store
from indexer.campaign.agreement import AGREE
from indexer.campaign.budget.growing_plan import buy_more, named
from indexer.campaign.exclusive import admit, alone_with, nothing_submitted
from indexer.campaign.folder import (
    GIVEN_UP,
    KILLED,
    Campaign,
    CampaignProgress,
    Task,
    nothing_ran,
)
from indexer.campaign.plan import (
    Matrix,
    PlanOptions,
    from_file,
    make_plan,
    planned_pattern,
    static_top,
)
from indexer.embed import embed

#: Ends of programs in a row after which the machine is tried before others are.
_KILLED_IN_A_ROW = 5
#: Matrices on which the default is tried.
_TRIED = 3
#: Configurations a runner compiles ahead between two reports of progress.
_BUILT_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Settle:
    """Up to `rounds` further rounds for matrices of which no two rounds agree (Spearman at least
    `least`, or only near-ties in another order), or that were measured in another state of the
    machine."""

    rounds: int = 1
    least: float = AGREE


@dataclass(frozen=True, slots=True)
class CampaignJob:
    """Measurement of a campaign on this machine into a database; `read` loads a planned matrix.
    Points with a status of `again` are measured once more. With `try_default` it stops if the
    default crashes alike on the first matrices and nothing ran before."""

    campaign: Campaign
    db: Lookup
    runner: Any
    options: Any
    read: Callable[[Matrix], Pattern] = from_file
    progress: Progress = ignore_progress
    again: Collection[str] = ()
    try_default: bool = False

    def run(self, settle: Settle | None = None) -> CampaignProgress:
        """Measure all missing points, settle disagreements, store every finished task.

        Raises: InputError if the folder has times of another machine, a matrix is not the planned
        one, or another run of this campaign is active; RunnerUnavailable if the machine fails: the
        next run resumes.
        """
        platform = platform_here(self.runner, threads=self.options.threads)
        with alone_with(self.campaign):
            nothing_submitted(self.campaign)
            admit(self.campaign, platform, self.again)
            self.campaign.repeat(self.again)
            settle = settle or Settle()
            self._measure_missing(platform)
            while self.campaign.settling_rounds < settle.rounds:
                if not self.campaign.settle(settle.least):
                    break
                self._measure_missing(platform)
            return self.campaign.progress(self.db)

    def _measure_missing(self, platform: Platform) -> None:
        """Measure and store the missing points of all current tasks, those at which a program was
        killed once more. Raises: ProgramKilled if the machine is the reason."""
        campaign = self.campaign
        tasks = [t for t in campaign.tasks() if not campaign.is_stored(self.db, t)]
        self._refuse_lost(tasks)
        self._prepare(tasks)
        if self.try_default and not campaign.progress().statuses["ok"]:
            self._try_default(tasks)
        campaign.killed.clear()
        stopped = self._measure(tasks, platform)
        before: dict[tuple[Task, int], ProgramKilled] = {}
        while stopped or (campaign.killed and campaign.killed != before):
            before = dict(campaign.killed)
            if campaign.killed:
                self._refuse_broken()
            rest = [t for t in tasks if not campaign.is_stored(self.db, t)]
            stopped = self._measure(rest, platform)

    def _measure(self, tasks: Sequence[Task], platform: Platform) -> bool:
        """Measure and store tasks; True if programs were killed several times in a row before the
        end."""
        campaign, in_a_row = self.campaign, 0
        done = campaign.progress()
        what = "measure again" if campaign.settling_rounds else "measure"
        for task in tasks:
            pattern = planned_pattern(campaign.plan.matrices[task.matrix], self.read)
            missing = len(campaign.missing(task))
            if missing:
                self._note_state(task)
            for status in campaign.measure(task, self.runner, pattern, options=self.options):
                done.measured += status != KILLED
                self.progress(what, done.measured, done.points)
                in_a_row = in_a_row + 1 if status in (KILLED, GIVEN_UP) else 0
                if in_a_row == _KILLED_IN_A_ROW:
                    return True
            if missing:
                self._note_state(task)
            campaign.store(self.db, task, pattern, platform)
        return False

    def _refuse_broken(self) -> None:
        """Run what should run, without recording it. Raises: ProgramKilled, the first that is held
        back, if it does not."""
        campaign, killed = self.campaign, next(iter(self.campaign.killed.values()))
        task, config = self._should_run()
        pattern = planned_pattern(campaign.plan.matrices[task.matrix], self.read)
        try:
            op, options = Op.parse(task.op), self.options
            runs = checked_run(self.runner, pattern, op, [config], options=options)
            works = any(measured.ok for _, measured in runs)
        except ProgramKilled:
            works = False
        if not works:
            rule = "; if others still run, a point at which it ends so twice is stored as a crash"
            raise ProgramKilled(str(killed), signal=killed.signal, hint=f"{killed.hint}{rule}")

    def _should_run(self) -> tuple[Task, Config]:
        """The fastest point that ran, on a matrix of which a program was killed if possible; before
        any ran the default on the smallest matrix, another one if possible."""
        campaign, plan = self.campaign, self.campaign.plan
        killed = {plan.matrices[task.matrix].path for task, _ in campaign.killed}
        tasks = [(plan.matrices[task.matrix].path in killed, task) for task in campaign.tasks()]
        ran = [
            (not same, measured.seconds, at, config)
            for at, (same, task) in enumerate(tasks)
            if campaign.outcome(task).statuses.get("ok")
            for config, measured in campaign.lines(task).items()
            if measured.ok
        ]
        if ran:
            _, _, at, config = min(ran, key=lambda point: point[:3])
            return tasks[at][1], config
        _, task = min(tasks, key=lambda one: (one[0], plan.matrices[one[1].matrix].nnz))
        sizes = plan.matrices[task.matrix].sizes
        return task, campaign.platform.default(Op.parse(task.op), sizes)

    def _try_default(self, tasks: Sequence[Task]) -> None:
        """Measure the default of the first tasks before anything else. Raises: InputError if it
        crashes on all with the same error; a timeout may be of the default alone."""
        campaign, first = self.campaign, tasks[:_TRIED]
        outcomes = []
        for number, task in enumerate(first):
            self.progress("measure the default", number, len(first))
            at, options = campaign.default(task), self.options
            if at is None:
                continue
            pattern = planned_pattern(campaign.plan.matrices[task.matrix], self.read)
            for _ in campaign.measure(task, self.runner, pattern, options=options, only=at):
                pass
            if default := campaign.lines(task).get(campaign.configs[task.op][at]):
                outcomes.append((default.status, default.error))
        if campaign.killed and not any(status == "ok" for status, _ in outcomes):
            self._refuse_broken()
        alike = len(outcomes) == _TRIED and len(failure_kinds(Counter(outcomes))) == 1
        if alike and outcomes[0][0] in ("crash", "build"):
            raise nothing_ran(campaign, self.db.store.place)

    def _refuse_lost(self, tasks: Sequence[Task]) -> None:
        """Raises: InputError if files of matrices that are to be read are not there."""
        if self.read is not from_file or not tasks:
            return
        plan = self.campaign.plan
        paths = {plan.matrices[task.matrix].path for task in tasks}
        if not isinstance(plan.buying, msgspec.UnsetType) and plan.buying.left:
            paths |= {matrix.path for matrix in plan.matrices[: plan.buying.pool]}
        if lost := sorted(path for path in paths if not Path(path).exists()):
            raise InputError(
                f"matrix files missing: {named(lost)}",
                where=str(self.campaign.folder),
                hint="put back the files; or measure without them in another folder: `adopt` by "
                "--campaign DIR, `campaign plan` by its DIR",
            )

    def _note_state(self, task: Task) -> None:
        """Store the current state of the machine beside the task's results."""
        now = state_now(self.runner, threads=self.options.threads)
        self.campaign.states(task).note(self.campaign.outcome(task).lines, now)

    def _prepare(self, tasks: list[Task]) -> None:
        """Compile the configurations before anything is timed."""
        if not hasattr(self.runner, "prepare"):
            return
        missing: dict[str, set[int]] = {}
        for task in tasks:
            missing.setdefault(task.op, set()).update(self.campaign.missing(task))
        for op, positions in missing.items():
            configs = [self.campaign.configs[op][at] for at in sorted(positions)]
            for at in range(0, len(configs), _BUILT_AT_ONCE):
                self.progress(f"compile {op}", at, len(configs))
                self.runner.prepare(Op.parse(op), configs[at : at + _BUILT_AT_ONCE])


def run_campaign(
    job: CampaignJob, settle: Settle | None = None
) -> tuple[Campaign, CampaignProgress]:
    """Run a campaign to its end, with the rounds that a strategy buys, and index the results;
    returns the campaign as it has grown.

    Raises: InputError, RunnerUnavailable as `CampaignJob.run`.
    """
    done, place = job.run(settle), job.db.store.place
    while (grown := buy_more(job.campaign, job.progress, place)) is not None:
        job = replace(job, campaign=grown, again=())
        done = job.run(settle)
    embed(job.db, progress=job.progress)
    return job.campaign, done


#: Context key of a command's run: its seconds, including the start of the program.
_WALL_S = "wall_s"
#: Most patterns, runs of each, and tasks of a campaign that are sampled.
_PATTERNS, _RUNS, _TASKS = 20, 50, 200
#: Longest time between two results that counts as a sample.
_LONGEST_S = 24 * 3600.0
#: Seconds of a sample on a CPU, of which `cost_per_sample` is a multiple: compiling and repeats.
_CPU_SAMPLE_S = 0.5
#: `cost_per_sample` is wrong if it is off by more.
_OFF = 10.0


def seconds_seen(store: Store, platform: Platform) -> float | None:
    """Median seconds of a sample among stored runs of a platform and its instances; None if no run
    has them."""
    samples = [
        seconds
        for partition in store.partitions()
        if partition.platform.partition("@")[0] == platform.name
        for run in store.sample(partition, patterns=_PATTERNS, runs=_RUNS)
        if (seconds := _taken(run.measurement)) is not None
    ]
    return statistics.median(samples) if samples else None


def seconds_spent(campaign: Campaign) -> float | None:
    """Median seconds of a sample of a campaign, as recorded or by the times between results; None
    before there are any."""
    samples: list[float] = []
    for task in campaign.tasks():
        lines = list(campaign.lines(task).values())
        recorded = [seconds for m in lines if (seconds := _taken(m)) is not None]
        samples += recorded or _between(sorted(m.when for m in lines if m.when > 0))
        if len(samples) >= _TASKS * _RUNS:
            break
    return statistics.median(samples) if samples else None


def _taken(measurement: Measurement) -> float | None:
    for name in (_WALL_S, HARDWARE_S):
        seconds = (measurement.context or {}).get(name)
        if isinstance(seconds, (int, float)) and seconds > 0:
            return float(seconds)
    return None


def _between(moments: list[float]) -> list[float]:
    gaps = (later - earlier for earlier, later in pairwise(moments))
    return [gap for gap in gaps if 0 < gap < _LONGEST_S]


def surprising_cost(platform: Platform, seconds: float | None) -> str:
    """A warning if `cost_per_sample` in the user's platform file is far from the measured cost of
    samples; else empty."""
    if seconds is None or platform.name in builtin_platforms():
        return ""
    seen = seconds / _CPU_SAMPLE_S
    declared = platform.cost_per_sample
    if seen <= 0 or declared / _OFF <= seen <= declared * _OFF:
        return ""
    return (
        f"cost_per_sample is {declared:g} in the file of {platform.name}; samples take "
        f"{seconds:.2g} s, about {seen:.2g} times one of a CPU"
    )


def planned_matrices(
    folder: str | Path,
    *,
    max_nnz: int = 0,
    groups: Mapping[str, str] | None = None,
    seen: Callable[[Pattern], None] | None = None,
    note: Callable[[str], None] | None = None,
    progress: Progress = ignore_progress,
) -> list[Matrix]:
    """The matrix files below a folder with at most `max_nnz` non-zeros (0: no limit), each shown to
    `seen`; unreadable files are left out and reported to `note`.
    `groups` has the group by name, else a matrix is one of its own.

    Raises: MatrixError if it is not a folder.
    """
    report = note or (lambda _: None)
    files = matrix_files(folder, note=report)
    names = matrix_names(files, Path(folder))
    matrices = []
    for at, path in enumerate(files):
        name = names[path]
        progress("read matrices", at, len(files))
        try:
            if plain_text(path) != str(path):
                raise MatrixError("a plan cannot hold its name", where=plain_text(path))
            pattern = read_pattern(path)
        except MatrixError as e:
            report(f"warning: left out: {e}")
            continue
        if not max_nnz or pattern.nnz <= max_nnz:
            families = groups or {}
            group = families.get(name) or families.get(plain_name(name), name)
            sizes = (*pattern.shape, pattern.nnz)
            matrices.append(Matrix(str(path.resolve()), name, group, *sizes))
            if seen is not None:
                seen(pattern)
    return matrices


def plan_campaign(
    lookup: Lookup,
    folder: Path,
    platform: Platform,
    ops: Sequence[Op],
    matrices: Sequence[Matrix],
    options: PlanOptions | None = None,
    *,
    progress: Progress = ignore_progress,
) -> tuple[Campaign, dict[str, list[Config]]]:
    """The campaign in a folder, new or taken up, and the static top by op.

    Raises: UsageError if there is nothing to measure; InputError if another campaign is there.
    """
    matrices_only(ops, "a campaign")
    options = options or PlanOptions()
    best = {str(op): static_top(lookup, platform, op, options.top) for op in ops}
    plan = make_plan(platform, ops, matrices, options, top=best, progress=progress)
    return Campaign.create(folder, plan), best
