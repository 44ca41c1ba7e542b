"""Campaigns: many measurements, planned once, run in shuffled rounds, resumed after any stop.

A campaign is a folder. `plan.json` says what to measure; a *task* is one matrix, one op, one
round, and its outcome is the file `results/<task>.jsonl`, a line per configuration, written as it
is measured. Nothing but finished lines counts: a line cut by a kill is dropped, and its point is
measured again. Matrices whose rounds disagree, or were measured while the machine was in another
state (`states/<task>.jsonl`), get further rounds, listed in `settle.json`; no round is ever
dropped. A point that is measured again (`again.json`) gets another line, and the one before stops
counting. Workers never open the database; whoever runs the campaign reads finished tasks into it,
each at most once, so a folder may be filled on one machine and read on another.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.files.gate import reason_of
from embeddb.core.files.own_files import OwnFolder, drop_torn_line
from embeddb.core.pattern import Pattern
from embeddb.core.records import SOURCES, STATUSES, Measurement, Run, in_context
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from indexer.campaign.agreement import AGREE, Agreement, comparisons, summary
from indexer.campaign.plan import Plan
from indexer.campaign.plan_file import PLAN, plan_bytes, read_plan, write_plan
from indexer.campaign.repeats import Repeats
from indexer.campaign.state import TaskStates, normal_of, read_lines

__all__ = ["Campaign", "Progress", "Task"]

#: The file of the rounds that were added; larger ones are none of a campaign's.
_SETTLE, _MOST_SETTLE_BYTES = "settle.json", 64 << 20
#: Further rounds beyond it are not believed to be a campaign's.
_MOST_SETTLED = 1000


class Task(msgspec.Struct, frozen=True):
    """One matrix, one op, one round."""

    matrix: int
    op: str
    round: int

    @property
    def id(self) -> str:
        return f"{self.matrix:04d}-{self.op.replace(':', '_')}-{self.round}"


class _Line(msgspec.Struct, frozen=True, array_like=True):
    config: int
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a result file holds, as of its size and time: seconds by configuration of the lines
    that count, and how many there are in all."""

    stamp: tuple[int, int]
    lines: int
    seconds: Mapping[int, float]
    statuses: Mapping[str, int]


@dataclass(slots=True)
class Progress:
    """Points of a campaign by state; `statuses` counts the measured ones."""

    points: int = 0
    measured: int = 0
    tasks: int = 0
    tasks_done: int = 0
    tasks_stored: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


def _check(m: Measurement) -> None:
    """Raises: ValueError for what no runner says: a folder may come from elsewhere."""
    if m.status not in STATUSES or m.source not in SOURCES:
        raise ValueError(f"unknown status {m.status!r} or source {m.source!r}")
    if not all(0 < t < math.inf for t in m.times_s) or (m.ok and not m.times_s):
        raise ValueError("times that no measurement has")


class Campaign:
    """A campaign folder. Raises: InputError if its plan cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own, self._results = OwnFolder(folder), OwnFolder(folder, "results")
        self.plan = read_plan(folder / PLAN)
        self.id = self.plan.id
        configs = self.plan.configs.items()
        self._configs = {op: [Config(c) for c in given] for op, given in configs}
        self._outcomes: dict[Task, _Outcome] = {}
        self._settling = self._read_settling()
        self._repeats = Repeats(folder)

    @classmethod
    def create(cls, folder: Path, plan: Plan) -> Campaign:
        """Raises: InputError if another plan is there; the same plan is taken up again."""
        raw = write_plan(plan)
        if os.path.lexists(folder / PLAN):
            if plan_bytes(folder / PLAN) != raw:
                raise InputError(
                    "another campaign is there",
                    where=str(folder),
                    hint="go on with that one by `embeddb campaign run`, or name another folder",
                )
            return cls(folder)
        folder.mkdir(parents=True, exist_ok=True)
        OwnFolder(folder, "results").make()
        OwnFolder(folder).write(PLAN, raw)
        return cls(folder)

    # -- what there is to do -------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Every task; round after round, each round in an order of its own."""
        every = self._pairs()
        found = []
        for number, pairs in enumerate([*[every] * self.plan.rounds, *self._settling]):
            order = np.random.default_rng([self.plan.seed, number]).permutation(len(pairs))
            found += [Task(pairs[i][0], pairs[i][1], number) for i in order]
        return found

    def _pairs(self) -> list[tuple[int, str]]:
        plan = self.plan
        chosen = ((m, op) for m in range(len(plan.matrices)) for op in plan.ops)
        return [(m, op) for m, op in chosen if plan.choices[op][m].configs]

    def wanted(self, task: Task) -> list[int]:
        """Positions of a task's configurations, in the order they are measured.

        The first round and those that settle a disagreement measure the whole choice; the others
        the plan's share of it, always the same, the default and the static top among them.
        """
        plan = self.plan
        choice = plan.choices[task.op][task.matrix]
        chosen = choice.configs
        place = [task.matrix, plan.ops.index(task.op)]
        if 0 < task.round < plan.rounds and plan.repeat_share < 1:
            rest = np.random.default_rng([plan.seed, *place]).permutation(chosen[choice.pinned :])
            count = math.ceil(plan.repeat_share * len(chosen))
            kept = [*chosen[: choice.pinned], *rest.tolist()]
            chosen = kept[: max(count, choice.pinned)]
        order = np.random.default_rng([plan.seed, task.round, *place]).permutation(len(chosen))
        return [chosen[i] for i in order]

    def configs(self, op: str, positions: set[int]) -> list[Config]:
        """Configurations of an op's table, in its order."""
        return [self._configs[op][at] for at in sorted(positions)]

    def _read_settling(self) -> list[list[tuple[int, str]]]:
        """Pairs of matrix and op of each further round."""
        if not os.path.lexists(self.folder / _SETTLE):
            return []
        known = set(self._pairs())
        try:
            raw = self._own.read(_SETTLE, _MOST_SETTLE_BYTES)
            rounds = msgspec.json.decode(raw, type=list[list[tuple[int, str]]])
            if len(rounds) > _MOST_SETTLED or not all(known.issuperset(pairs) for pairs in rounds):
                raise ValueError("it names what is not in the plan")
        except (msgspec.MsgspecError, ValueError, OSError) as e:
            raise InputError(
                f"not the further rounds of this campaign: {reason_of(e)}",
                where=str(self.folder / _SETTLE),
                hint="delete the file and resume: they are decided again",
            ) from None
        return [list(dict.fromkeys(pairs)) for pairs in rounds]

    def settle(self, least: float = AGREE) -> bool:
        """Add a round for every (matrix, op) whose complete rounds disagree, or that has fewer
        rounds than planned in the machine's usual state; False if there is none."""
        spoilt = Counter((t.matrix, t.op) for t in self.spoilt())
        pairs = [
            (m, op)
            for m, op in self._pairs()
            if self._disagree(m, op, least) or self._owed(m, op, spoilt[m, op])
        ]
        if pairs:
            self._own.write(_SETTLE, msgspec.json.encode([*self._settling, pairs]))
            self._settling.append(pairs)
        return bool(pairs)

    def _disagree(self, matrix: int, op: str, least: float) -> bool:
        compared = comparisons(self._rounds(matrix, op))
        return bool(compared) and not any(c.agrees(least) for c in compared)

    def _owed(self, matrix: int, op: str, spoilt: int) -> bool:
        complete = len(self._rounds(matrix, op))
        return spoilt > 0 and complete - spoilt < self.plan.rounds <= complete

    def spoilt(self) -> list[Task]:
        """Complete tasks during which the machine's state changed, or which were measured in
        another state than the campaign's median."""
        complete = [task for task in self.tasks() if not self.missing(task)]
        normal = normal_of(self.states(task) for task in complete)
        return [task for task in complete if self.states(task).spoilt(normal)] if normal else []

    def states(self, task: Task) -> TaskStates:
        """The machine's states around a task."""
        return TaskStates(self.folder / "states" / f"{task.id}.jsonl")

    @property
    def settling_rounds(self) -> int:
        return len(self._settling)

    def _rounds(self, matrix: int, op: str) -> list[Mapping[int, float]]:
        """Seconds by configuration of every complete round."""
        planned = range(self.plan.rounds)
        added = (self.plan.rounds + at for at, pairs in enumerate(self._settling))
        found = []
        for number in (*planned, *added):
            task = Task(matrix, op, number)
            if not self.missing(task):
                found.append(self._outcome(task).seconds)
        return found

    # -- what is measured ----------------------------------------------------------------------

    def lines(self, task: Task) -> dict[Config, Measurement]:
        """What is measured of a task so far. A last line without its end does not count."""
        lines = self._lines(task)
        counting = (lines[at] for at in self._counting(task, lines).values())
        return {self._configs[task.op][line.config]: line.measurement for line in counting}

    def _counting(self, task: Task, lines: Sequence[_Line]) -> dict[int, int]:
        """The line that counts, by configuration: the last, unless it is to be measured again."""
        gone = self._repeats.of(task.id)
        return {line.config: at for at, line in enumerate(lines) if at not in gone}

    def _lines(self, task: Task) -> list[_Line]:
        """Every line that was written of a task, also those that do not count any more."""
        raw = read_lines(self._results, self._name(task))
        found = []
        wanted = set(self.wanted(task))
        for number, line in enumerate(raw.splitlines(), 1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
                if entry.config not in wanted:
                    raise ValueError(f"configuration {entry.config} is not of this task")
                _check(entry.measurement)
                found.append(entry)
            except (msgspec.MsgspecError, ValueError) as e:
                raise InputError(
                    f"not a result of this campaign: {e}",
                    where=str(self._results.path / self._name(task)),
                    line=number,
                    hint="delete the file and resume: its points are measured again",
                ) from None
        return found

    def _outcome(self, task: Task) -> _Outcome:
        """Seconds and statuses of a task, read again only if its file has changed."""
        try:
            about = (self._results.path / self._name(task)).lstat()
        except FileNotFoundError:
            return _Outcome((0, 0), 0, {}, {})
        stamp = (about.st_size, about.st_mtime_ns)
        known = self._outcomes.get(task)
        if known is None or known.stamp != stamp:
            lines = self._lines(task)
            held = {c: lines[at].measurement for c, at in self._counting(task, lines).items()}
            statuses = Counter(m.status for m in held.values())
            seconds = {config: m.seconds for config, m in held.items()}
            known = _Outcome(stamp, len(lines), seconds, statuses)
            self._outcomes[task] = known
        return known

    def _name(self, task: Task) -> str:
        return f"{task.id}.jsonl"

    def written(self, task: Task) -> int:
        """How many runs of a task were made, also those that do not count any more."""
        return self._outcome(task).lines

    def repeat(self, statuses: Collection[str]) -> int:
        """Have every point whose outcome has one of these statuses measured again; returns how
        many there are. What was said of them stays, but no longer counts."""
        chosen: dict[str, list[int]] = {}
        for task in self.tasks():
            if statuses and not self._outcome(task).statuses.keys().isdisjoint(statuses):
                lines = self._lines(task)
                counting = self._counting(task, lines).values()
                chosen[task.id] = [
                    at for at in counting if lines[at].measurement.status in statuses
                ]
        self._repeats.add(chosen)
        self._outcomes.clear()
        return sum(map(len, chosen.values()))

    def missing(self, task: Task) -> list[int]:
        """Positions of the configurations still to be measured, in their order."""
        have = self._outcome(task).seconds
        return [at for at in self.wanted(task) if at not in have]

    def measure(self, task: Task, runner: Any, pattern: Pattern, *, options: Any) -> Iterator[str]:
        """Measure what is missing of a task; yields the status of each new point."""
        todo = self.missing(task)
        if not todo:
            return
        configs = self._configs[task.op]
        number = {configs[at]: at for at in todo}
        with self._results.open(self._name(task), "a+b") as out:
            drop_torn_line(out)
            asked = [configs[at] for at in todo]
            for config, m in runner.run(pattern, Op.parse(task.op), asked, options=options):
                out.write(msgspec.json.encode(_Line(number[config], m)) + b"\n")
                out.flush()
                yield m.status
            os.fsync(out.fileno())

    def progress(self, db: Lookup | None = None) -> Progress:
        """Points and tasks by state; `tasks_stored` are those in `db`."""
        done = Progress()
        for task in self.tasks():
            outcome, wanted = self._outcome(task), len(self.wanted(task))
            done.tasks += 1
            done.points += wanted
            done.measured += len(outcome.seconds)
            done.tasks_done += len(outcome.seconds) == wanted
            done.statuses.update(outcome.statuses)
            done.tasks_stored += db is not None and self.is_stored(db, task)
        return done

    def agreement(self, least: float = AGREE) -> list[Agreement]:
        """Rank agreement of the complete rounds so far, per op with two or more of them."""
        found = []
        for op in self.plan.ops:
            rounds = [
                (self.plan.matrices[m].name, self._rounds(m, name))
                for m, name in self._pairs()
                if name == op
            ]
            several = [(name, held) for name, held in rounds if len(held) > 1]
            if several:
                found.append(summary(op, several, least=least))
        return found

    # -- into the database ---------------------------------------------------------------------

    def _mark(self, task: Task) -> str:
        return f"campaign/{self.id}/{task.id}"

    def is_stored(self, db: Lookup, task: Task) -> bool:
        raw, repeated = db.store.journal.get(self._mark(task)), self._repeats.of(task.id)
        return raw is not None and (not repeated or _stored_again(raw) >= len(repeated))

    def store(self, db: Lookup, task: Task, pattern: Pattern, platform: Platform) -> int:
        """Read a complete task into the database, once; returns the runs added (none of a task
        that is not complete yet). A run that was measured again replaces the one before."""
        if self.is_stored(db, task) or self.missing(task):
            return 0
        runs = self._runs(task, pattern, platform)
        db.record([], pattern, platform)
        stamp = {"runs": len(runs)}
        if repeated := self._repeats.of(task.id):
            stamp["again"] = len(repeated)
        marks = {self._mark(task): json.dumps(stamp).encode()}
        return db.store.append(runs, journal=marks).added

    def _runs(self, task: Task, pattern: Pattern, platform: Platform) -> list[Run]:
        op, name, lines = Op.parse(task.op), f"{self.id}:{task.round}", self._lines(task)
        counting, gone = self._counting(task, lines), self._repeats.of(task.id)
        states = self.states(task).contexts(len(lines))
        found, before = list[Run](), dict[int, str]()
        for at, (line, state) in enumerate(zip(lines, states, strict=True)):
            if at in gone or counting[line.config] == at:
                measured = in_context(line.measurement, state)
                config, replaces = self._configs[task.op][line.config], before.get(line.config, "")
                run = Run(pattern.id, op, platform.id, config, measured, name, replaces)
                before[line.config] = run.id
                found.append(run)
        return found


def _stored_again(raw: bytes) -> int:
    """How many repeated lines a task had when it was stored."""
    try:
        return int(json.loads(raw).get("again", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
