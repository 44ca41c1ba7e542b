"""Campaigns: many measurements, planned once, run in shuffled rounds, resumed after any stop.

A campaign is a folder. `plan.json` lists the measurements; a *task* is one matrix, one op, one
round, and its outcome is the file `results/<task>.jsonl`, a line per configuration (see
`indexer.campaign.results`). Only finished lines count: a line cut by a kill is dropped, and its
point is measured again. Matrices whose rounds disagree, or were measured while the machine was in
another state (`states/<task>.jsonl`), get further rounds, listed in `settle.json`; no round is
dropped. A point that is measured again (`again.json`) gets another line, and the one before stops
counting. Workers never open the database: the coordinator stores finished tasks, each at most once,
so a folder may be filled on one machine and read on another.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from embeddb.core.checked_run import checked_run
from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, failure_kinds, in_context
from embeddb.core.timing import median_state
from embeddb.index.lookup import Lookup
from embeddb.kernels.machine_failures import ProgramKilled
from embeddb.platforms.platform import Platform, parse_platform
from indexer.campaign.agreement import AGREE, Agreement, comparisons, summary
from indexer.campaign.plan import PLAN, Plan, plan_bytes, read_plan, write_plan
from indexer.campaign.results import (
    Instances,
    Line,
    Repeats,
    ResultFiles,
    TaskResult,
    TaskStates,
    read_json,
)

#: The file of the further rounds.
_SETTLE = "settle.json"
#: Context key of a point that ended every process that ran it: the number of attempts.
GIVEN_UP = "given_up"
#: Most further rounds that a file may list.
_MOST_SETTLED = 1000


class Task(msgspec.Struct, frozen=True):
    """One matrix, one op, one round."""

    matrix: int
    op: str
    round: int

    @property
    def id(self) -> str:
        return f"{self.matrix:04d}-{self.op.replace(':', '_')}-{self.round}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Content of a task's result files, by their sizes and times: seconds by configuration of the
    lines that count, and the number of all. `on` is the instance, `host` the host of the last
    worker (both empty without one), `spent_s` the seconds that workers took, `given_up` the number
    of points that crashed every process."""

    stamp: tuple[tuple[int, int], ...] = ()
    lines: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
    on: str = ""
    host: str = ""
    spent_s: float = 0.0
    given_up: int = 0


def another_campaign(
    folder: Path,
    difference: str = "",
    hint: str = "go on with that one by `embeddb campaign run`, or name another folder",
) -> InputError:
    """The error for a folder with another campaign."""
    what = f" ({difference})" if difference else ""
    return InputError(f"another campaign is there{what}", where=str(folder), hint=hint)


def nothing_ran(campaign: Campaign, place: str) -> InputError:
    """The error for a campaign of a database at `place` without a point that ran."""
    done = campaign.progress()
    (((status, error), count),) = done.reasons.most_common(1)
    why = f"{status}: {error}" if error else status
    words = f"{shlex.quote(place)} {shlex.quote(str(campaign.folder))}"
    file = " --platform FILE" if campaign.platform.command else ""
    return InputError(
        f"all {done.measured} samples so far failed, {count} of them alike: {why}",
        where=str(campaign.folder),
        hint=f"see `embeddb campaign status {words}`; after a repair run `adopt` again as before; "
        f"a campaign of `campaign plan` goes on by `embeddb campaign resume {words}{file} "
        f"--again {','.join(sorted(done.statuses))}`",
    )


def crash_of(platform: Platform, error: str, *, tries: int) -> Measurement:
    """The measurement of a point that ended every process that tried it."""
    return Measurement(
        "crash",
        source="simulator" if platform.simulated else "hardware",
        when=time.time(),
        error=error,
        context={GIVEN_UP: float(tries)},
    )


#: Yielded for a point whose program was killed, and that is to be tried again.
KILLED = "killed"


@dataclass(slots=True)
class CampaignProgress:
    """Points of a campaign by state; `statuses` counts the measured ones, `reasons` the failed ones
    by status and error."""

    points: int = 0
    measured: int = 0
    tasks: int = 0
    tasks_done: int = 0
    tasks_stored: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)


class Campaign:
    """A campaign folder. Raises: InputError if its plan cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own, self.results = OwnFolder(folder), ResultFiles(folder)
        self.plan = read_plan(folder / PLAN)
        self.instances = Instances(folder, self.plan)
        self.id = self.plan.id
        #: The table of each op.
        self.configs = {op: [*map(Config, configs)] for op, configs in self.plan.configs.items()}
        self._outcomes: dict[Task, Outcome] = {}
        self._settling = self._read_settling()
        self._repeats = Repeats(folder)
        #: The one end of a program at each point that is to be tried again.
        self.killed: dict[tuple[Task, int], ProgramKilled] = {}

    @cached_property
    def platform(self) -> Platform:
        """The planned platform, without a file, so that its command cannot run."""
        return parse_platform(self.plan.platform)

    @classmethod
    def create(cls, folder: Path, plan: Plan) -> Campaign:
        """The campaign of a plan, resumed if the folder has it already. Raises: InputError if
        another plan is there."""
        raw = write_plan(plan)
        if os.path.lexists(folder / PLAN):
            if plan_bytes(folder / PLAN) != raw:
                raise another_campaign(folder)
            return cls(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ResultFiles(folder).make()
        OwnFolder(folder).write(PLAN, raw)
        return cls(folder)

    # -- tasks and rounds ----------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Every task; round after round, each round in an order of its own."""
        every = self._pairs()
        tasks = []
        for number, pairs in enumerate([*[every] * self.plan.rounds, *self._settling]):
            order = np.random.default_rng([self.plan.seed, number]).permutation(len(pairs))
            tasks += [Task(pairs[i][0], pairs[i][1], number) for i in order]
        return tasks

    def _pairs(self) -> list[tuple[int, str]]:
        plan = self.plan
        chosen = ((m, op) for m in range(len(plan.matrices)) for op in plan.ops)
        return [(m, op) for m, op in chosen if plan.choices[op][m].configs]

    def wanted(self, task: Task) -> list[int]:
        """Positions of a task's configurations, in the order they are measured.

        The first round and those that settle a disagreement measure the whole choice; the others
        a fixed share of it, the default and the static top among them.
        """
        plan = self.plan
        choice = plan.choices[task.op][task.matrix]
        chosen = choice.configs
        place = [task.matrix, plan.ops.index(task.op)]
        if 0 < task.round < plan.rounds and plan.repeat_share < 1:
            rest = np.random.default_rng([plan.seed, *place]).permutation(chosen[choice.pinned :])
            count = math.ceil(plan.repeat_share * len(chosen))
            chosen = [*chosen[: choice.pinned], *rest.tolist()][: max(count, choice.pinned)]
        order = np.random.default_rng([plan.seed, task.round, *place]).permutation(len(chosen))
        return [chosen[i] for i in order]

    def default(self, task: Task) -> int | None:
        """Position of the default on the task's matrix; None if no matrix runs it."""
        matrix, op = self.plan.matrices[task.matrix], Op.parse(task.op)
        default = self.platform.default(op, matrix.sizes)
        table = self.configs[task.op]
        return table.index(default) if default in table else None

    def named(self, names: Iterable[str]) -> list[Task]:
        """Tasks by their ids. Raises: InputError for an unknown one."""
        tasks = {task.id: task for task in self.tasks()}
        names = list(names)
        if unknown := [name for name in names if name not in tasks]:
            raise InputError(
                f"no task {unknown[0]!r}",
                where=str(self.folder),
                hint=f"a task is named as {next(iter(tasks), 'in results/')}",
            )
        return [tasks[name] for name in names]

    def _read_settling(self) -> list[list[tuple[int, str]]]:
        """Pairs of matrix and op of each further round."""
        if not os.path.lexists(self.folder / _SETTLE):
            return []
        every = set(self._pairs())
        why = "not the further rounds of this campaign"
        hint = "delete the file and resume: they are decided again"
        rounds = read_json(self._own, _SETTLE, list[list[tuple[int, str]]], why, hint=hint)
        if len(rounds) > _MOST_SETTLED or not all(every.issuperset(pairs) for pairs in rounds):
            what = f"{why}: it names what is not in the plan"
            raise InputError(what, where=str(self.folder / _SETTLE), hint=hint)
        return [list(dict.fromkeys(pairs)) for pairs in rounds]

    def settle(self, least: float = AGREE) -> bool:
        """Add a round for every (matrix, op) whose complete rounds disagree, or that has fewer
        rounds than planned in the machine's usual state; False if there is none."""
        spoilt = Counter((t.matrix, t.op) for t in self.spoilt())

        def unsettled(pair: tuple[int, str]) -> bool:
            rounds = self._rounds(*pair)
            compared, usual = comparisons(rounds), len(rounds) - spoilt[pair]
            return (bool(compared) and not any(c.agrees(least) for c in compared)) or (
                usual < self.plan.rounds <= len(rounds)
            )

        pairs = list(filter(unsettled, self._pairs()))
        if pairs:
            self._own.write(_SETTLE, msgspec.json.encode([*self._settling, pairs]))
            self._settling.append(pairs)
        return bool(pairs)

    def spoilt(self) -> list[Task]:
        """Complete tasks during which the machine's state changed or differed from the campaign's
        median."""
        complete = [task for task in self.tasks() if not self.missing(task)]
        spoilt = []
        for on in dict.fromkeys(self.instance_of(task) for task in complete):
            states = {t: self.states(t) for t in complete if self.instance_of(t) == on}
            normal = median_state(m.figures for one in states.values() for m in one.moments())
            spoilt += [t for t, around in states.items() if normal and around.spoilt(normal)]
        return spoilt

    def states(self, task: Task) -> TaskStates:
        """The machine's states around a task."""
        file = self.folder / "states" / f"{task.id}.jsonl"
        # Most tasks of most campaigns have no states of a worker that would have to be read again.
        moments = self._result(task).moments() if self.outcome(task).on else ()
        return TaskStates(file, moments)

    @property
    def settling_rounds(self) -> int:
        return len(self._settling)

    def _rounds(self, matrix: int, op: str) -> list[Mapping[int, float]]:
        """Seconds by configuration of every complete round on the instance with most rounds:
        differences between machines are no disagreement."""
        planned = range(self.plan.rounds)
        added = (self.plan.rounds + at for at, pairs in enumerate(self._settling))
        tasks = [Task(matrix, op, number) for number in (*planned, *added)]
        complete = [self.outcome(task) for task in tasks if not self.missing(task)]
        ((on, _),) = Counter(one.on for one in complete).most_common(1) or [("", 0)]
        return [one.seconds for one in complete if one.on == on]

    # -- measurements --------------------------------------------------------------------------

    def lines(self, task: Task) -> dict[Config, Measurement]:
        """Measurements of a task so far, without an unfinished last line."""
        lines = self._result(task).lines
        counting = (lines[at] for at in self._counting(task, lines).values())
        return {self.configs[task.op][line.config]: line.measurement for line in counting}

    def _counting(self, task: Task, lines: Sequence[Line]) -> dict[int, int]:
        """The line that counts, by configuration: the last, unless it is to be measured again. A
        default that a worker ran in addition does not count."""
        gone, wanted = self._repeats.of(task.id), set(self.wanted(task))
        return {
            line.config: at
            for at, line in enumerate(lines)
            if at not in gone and line.config in wanted
        }

    def _result(self, task: Task) -> TaskResult:
        """All lines of a task, including superseded ones."""
        wanted = set(self.wanted(task))
        # A worker adds the default where the task lacks it; looking it up for every task is slow.
        return self.results.read(task.id, lambda at: at in wanted or at == self.default(task))

    def outcome(self, task: Task) -> Outcome:
        """Outcome of a task, read again only if its files have changed."""
        stamp = self.results.stamp(task.id)
        if not stamp:
            return Outcome()
        outcome = self._outcomes.get(task)
        if outcome is None or outcome.stamp != stamp:
            result = self._result(task)
            counting = self._counting(task, result.lines)
            measured = {c: result.lines[at].measurement for c, at in counting.items()}
            origins = [origin for _, origin in result.origins]
            outcome = self._outcomes[task] = Outcome(
                stamp=stamp,
                lines=len(result.lines),
                seconds={config: m.seconds for config, m in measured.items()},
                statuses=Counter(m.status for m in measured.values()),
                reasons=Counter((m.status, m.error) for m in measured.values() if not m.ok),
                on=origins[0].on if origins else "",
                host=origins[-1].host if origins else "",
                spent_s=sum(origin.spent_s for origin in origins),
                given_up=sum(GIVEN_UP in m.context for m in measured.values()),
            )
        return outcome

    def instance_of(self, task: Task) -> str:
        """Id of the instance on which a task was measured or begun; empty before."""
        outcome = self.outcome(task)
        return outcome.on or (self.instances.first if outcome.stamp else "")

    def repeat(self, statuses: Collection[str]) -> int:
        """Mark every point with one of these statuses to be measured again; returns their number.
        Their lines stay, but no longer count."""
        chosen: dict[str, list[int]] = {}
        for task in self.tasks():
            if statuses and not self.outcome(task).statuses.keys().isdisjoint(statuses):
                lines = self._result(task).lines
                counting = self._counting(task, lines).values()
                chosen[task.id] = [
                    at for at in counting if lines[at].measurement.status in statuses
                ]
        self._repeats.add(chosen)
        self._outcomes.clear()
        return sum(map(len, chosen.values()))

    def missing(self, task: Task) -> list[int]:
        """Positions of the configurations still to be measured, in their order."""
        have = self.outcome(task).seconds
        return [at for at in self.wanted(task) if at not in have]

    def measure(
        self, task: Task, runner: Any, pattern: Pattern, *, options: Any, only: int | None = None
    ) -> Iterator[str]:
        """Measure the missing points of a task, or the `only` one of them; yields the status of
        each new one, `KILLED`, or `GIVEN_UP` for a crash that is the second end of a program."""
        todo = [at for at in self.missing(task) if only in (None, at)]
        if not todo:
            return
        configs = self.configs[task.op]
        number = {configs[at]: at for at in todo}
        with self.results.adding(task.id) as out:
            while todo:
                missing = [configs[at] for at in todo]
                try:
                    op = Op.parse(task.op)
                    for config, m in checked_run(runner, pattern, op, missing, options=options):
                        todo.remove(number[config])
                        self.killed.pop((task, number[config]), None)
                        _add(out, Line(number[config], m))
                        yield m.status
                    return
                except ProgramKilled as killed:
                    at = todo.pop(0)
                    if again := self.killed.pop((task, at), None) is not None:
                        error = f"ended by {killed.signal}, 2 times at this point"
                        _add(out, Line(at, crash_of(self.platform, error, tries=2)))
                    else:
                        self.killed[task, at] = killed
                    yield GIVEN_UP if again else KILLED

    def progress(self, db: Lookup | None = None) -> CampaignProgress:
        """Points and tasks by state; `tasks_stored` are those in `db`."""
        done = CampaignProgress()
        for task in self.tasks():
            outcome, wanted = self.outcome(task), len(self.wanted(task))
            done.tasks += 1
            done.points += wanted
            done.measured += len(outcome.seconds)
            done.tasks_done += len(outcome.seconds) == wanted
            done.statuses.update(outcome.statuses)
            done.reasons.update(outcome.reasons)
            done.tasks_stored += db is not None and self.is_stored(db, task)
        done.reasons = failure_kinds(done.reasons)
        return done

    def agreement(self, least: float = AGREE) -> list[Agreement]:
        """Rank agreement of the complete rounds so far, per op with two or more of them."""
        agreements = []
        for op in self.plan.ops:
            rounds = [
                (self.plan.matrices[m].name, self._rounds(m, name))
                for m, name in self._pairs()
                if name == op
            ]
            several = [(name, measured) for name, measured in rounds if len(measured) > 1]
            if several:
                agreements.append(summary(op, several, least=least))
        return agreements

    # -- into the database ---------------------------------------------------------------------

    def _mark(self, task: Task) -> str:
        return f"campaign/{self.id}/{task.id}"

    def is_stored(self, db: Lookup, task: Task) -> bool:
        raw, repeated = db.store.journal.get(self._mark(task)), self._repeats.of(task.id)
        return raw is not None and (not repeated or _stored_again(raw) >= len(repeated))

    def store(self, db: Lookup, task: Task, pattern: Pattern, platform: Platform) -> int:
        """Store a complete task in the database, once; returns the number of runs added (0 for an
        incomplete task). A run that was measured again replaces the one before. `platform` is the
        instance that measured it, unless the task's files name another."""
        if self.is_stored(db, task) or self.missing(task):
            return 0
        on = self.instance_of(task)
        if on and on != platform.id:
            platform = self.instances.platform(on)
        runs = self._runs(task, pattern, platform)
        db.record([], pattern, platform)
        stamp = {"runs": len(runs)}
        if repeated := self._repeats.of(task.id):
            stamp["again"] = len(repeated)
        marks = {self._mark(task): json.dumps(stamp).encode()}
        return db.store.append(runs, journal=marks).added

    def _runs(self, task: Task, pattern: Pattern, platform: Platform) -> list[Run]:
        op, name = Op.parse(task.op), f"{self.id}:{task.round}"
        lines, gone = self._result(task).lines, self._repeats.of(task.id)
        states = self.states(task).contexts(len(lines))
        runs, before = list[Run](), dict[int, str]()
        for at, (line, state) in enumerate(zip(lines, states, strict=True)):
            measured = in_context(line.measurement, state)
            config, replaces = self.configs[task.op][line.config], before.pop(line.config, "")
            run = Run(pattern.id, op, platform.id, config, measured, name, replaces)
            if at in gone:
                before[line.config] = run.id
            runs.append(run)
        return runs


def _add(out: BinaryIO, line: Line) -> None:
    out.write(msgspec.json.encode(line) + b"\n")
    out.flush()


def _stored_again(raw: bytes) -> int:
    """Number of repeated lines that a task had when it was stored."""
    try:
        return int(json.loads(raw).get("again", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
