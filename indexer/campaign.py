"""Campaigns: many measurements, planned once, run in shuffled rounds, resumed after any stop.

A campaign is a folder. `plan.json` says what to measure; a *task* is one matrix, one op, one
round, and its outcome is the file `results/<task>.jsonl`, a line per configuration, written as it
is measured. Nothing but finished lines counts: a line cut by a kill is dropped, and its point is
measured again. Workers never open the database; whoever runs the campaign reads finished tasks
into it, each at most once, so a folder may be filled on one machine and read on another.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from embeddb.config import Config, Op
from embeddb.db import Database
from embeddb.errors import InputError, UsageError
from embeddb.pattern import Pattern
from embeddb.platform import Platform, parse_platform
from embeddb.records import Measurement, Run
from embeddb.space import ConfigSpace

__all__ = ["Campaign", "Matrix", "Plan", "Progress", "Task", "choose_configs", "make_plan"]


class Matrix(msgspec.Struct, frozen=True):
    """One matrix of a campaign: where it is, what it is called, whom it is held out with."""

    path: str
    name: str
    group: str


class Plan(msgspec.Struct, frozen=True):
    """What a campaign measures. `platform` is the TOML text, `configs` canonical JSON by op."""

    platform: str
    ops: list[str]
    matrices: list[Matrix]
    configs: dict[str, list[dict[str, Any]]]
    rounds: int
    seed: int

    @property
    def id(self) -> str:
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


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


@dataclass(slots=True)
class Progress:
    """Points of a campaign by state; `statuses` counts the measured ones."""

    points: int = 0
    measured: int = 0
    tasks: int = 0
    tasks_done: int = 0
    tasks_stored: int = 0
    statuses: dict[str, int] | None = None


def choose_configs(
    space: ConfigSpace, default: Config, count: int, *, rng: np.random.Generator
) -> list[Config]:
    """`count` legal configurations for every matrix: the default, what lies one step from it, and
    a sample that gives every value of a parameter the same chance.

    Drawing parameter by parameter matters: uniform over whole configurations, nearly all draws
    would come from the corner of the space with the most parameters.
    """
    chosen = dict.fromkeys([default, *space.neighbours(default)])
    for _ in range(100 * count):
        if len(chosen) >= count:
            break
        wish = {p.name: p.values[int(rng.integers(len(p.values)))] for p in space.params}
        found = space.nearest(wish)
        if found is not None:
            chosen.setdefault(found)
    return list(chosen)[:count]


def make_plan(
    platform: Platform,
    ops: Sequence[Op],
    matrices: Sequence[Matrix],
    *,
    configs: int,
    rounds: int = 2,
    seed: int = 0,
) -> Plan:
    """Raises: UsageError if there is nothing to measure."""
    if not matrices:
        raise UsageError("no matrix to measure", hint="check --matrices and --max-nnz")
    if rounds < 1 or configs < 2:
        raise UsageError("a campaign needs at least 1 round and 2 configurations")
    by_op = {}
    for op in ops:
        rng = np.random.default_rng(seed)
        chosen = choose_configs(platform.space(op), platform.default(op), configs, rng=rng)
        by_op[str(op)] = [dict(config) for config in chosen]
    return Plan(platform.text, [str(op) for op in ops], list(matrices), by_op, rounds, seed)


class Campaign:
    """A campaign folder. Raises: InputError if its plan cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "plan.json"
        try:
            self.plan = msgspec.json.decode(file.read_bytes(), type=Plan)
        except OSError:
            raise InputError(
                "no campaign there", where=str(folder), hint="make one with `embeddb campaign plan`"
            ) from None
        except msgspec.MsgspecError as e:
            raise InputError(f"not a plan: {e}", where=str(file)) from None
        self._configs = {
            op: [Config(c) for c in configs] for op, configs in self.plan.configs.items()
        }

    @classmethod
    def create(cls, folder: Path, plan: Plan) -> Campaign:
        """Raises: InputError if another plan is there; the same plan is taken up again."""
        file = folder / "plan.json"
        raw = msgspec.json.format(msgspec.json.encode(plan), indent=1)
        if file.exists():
            if file.read_bytes() != raw:
                raise InputError("another campaign is there", where=str(folder))
            return cls(folder)
        (folder / "results").mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".tmp")
        part.write_bytes(raw)
        part.replace(file)
        return cls(folder)

    def tasks(self) -> list[Task]:
        """Every task; round after round, each round in an order of its own."""
        plan = self.plan
        found = []
        for number in range(plan.rounds):
            pairs = [(m, op) for m in range(len(plan.matrices)) for op in plan.ops]
            order = np.random.default_rng([plan.seed, number]).permutation(len(pairs))
            found += [Task(pairs[i][0], pairs[i][1], number) for i in order]
        return found

    def lines(self, task: Task) -> dict[Config, Measurement]:
        """What is measured of a task so far. A last line without its end does not count."""
        file = self._file(task)
        if not file.exists():
            return {}
        raw = file.read_bytes()
        found = {}
        for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
                found[self._configs[task.op][entry.config]] = entry.measurement
            except (msgspec.MsgspecError, IndexError) as e:
                raise InputError(
                    f"not a result of this campaign: {e}",
                    where=str(file),
                    line=number,
                    hint="delete the file and resume: its points are measured again",
                ) from None
        return found

    def _file(self, task: Task) -> Path:
        return self.folder / "results" / f"{task.id}.jsonl"

    def measure(self, task: Task, runner: Any, pattern: Pattern, *, options: Any) -> Iterator[str]:
        """Measure what is missing of a task; yields the status of each new point."""
        have = self.lines(task)
        configs = self._configs[task.op]
        number = {config: at for at, config in enumerate(configs)}
        seed = [self.plan.seed, task.round, task.matrix, self.plan.ops.index(task.op)]
        order = np.random.default_rng(seed).permutation(len(configs))
        todo = [configs[i] for i in order if configs[i] not in have]
        if not todo:
            return
        self._drop_torn_line(task)
        with self._file(task).open("ab") as out:
            op = Op.parse(task.op)
            for config, measurement in runner.run(pattern, op, todo, options=options):
                out.write(msgspec.json.encode(_Line(number[config], measurement)) + b"\n")
                out.flush()
                yield measurement.status
            os.fsync(out.fileno())

    def _drop_torn_line(self, task: Task) -> None:
        file = self._file(task)
        if file.exists():
            raw = file.read_bytes()
            whole = raw.rfind(b"\n") + 1
            if whole < len(raw):
                os.truncate(file, whole)

    def progress(self, db: Database | None = None) -> Progress:
        done = Progress(statuses={})
        assert done.statuses is not None
        for task in self.tasks():
            lines = self.lines(task)
            wanted = len(self._configs[task.op])
            done.tasks += 1
            done.points += wanted
            done.measured += len(lines)
            done.tasks_done += len(lines) == wanted
            for m in lines.values():
                done.statuses[m.status] = done.statuses.get(m.status, 0) + 1
            if db is not None and db.store.journal.get(self._mark(task)) is not None:
                done.tasks_stored += 1
        return done

    def _mark(self, task: Task) -> str:
        return f"campaign/{self.plan.id}/{task.id}"

    def store(self, db: Database, task: Task, pattern: Pattern, platform: Platform) -> int:
        """Read a complete task into the database, once; returns the runs added (none of a task
        that is not complete yet)."""
        mark = self._mark(task)
        lines = self.lines(task)
        if db.store.journal.get(mark) is not None or len(lines) < len(self._configs[task.op]):
            return 0
        runs = [
            Run(
                pattern.id,
                Op.parse(task.op),
                platform.id,
                config,
                m,
                f"{self.plan.id}:{task.round}",
            )
            for config, m in lines.items()
        ]
        db.record([], pattern, platform)
        stamp = json.dumps({"runs": len(runs)}).encode()
        return db.store.append(runs, journal={mark: stamp}).added

    def run(
        self,
        db: Database,
        runner: Any,
        *,
        options: Any,
        read: Callable[[Matrix], Pattern],
        progress: Callable[[Progress], None] | None = None,
    ) -> Progress:
        """Measure everything that is missing and store every finished task."""
        platform = runner.platform(threads=options.threads)
        self._claim(platform)
        done = self.progress(db)
        for task in self.tasks():
            if db.store.journal.get(self._mark(task)) is not None:
                continue
            pattern = read(self.plan.matrices[task.matrix])
            for status in self.measure(task, runner, pattern, options=options):
                done.measured += 1
                assert done.statuses is not None
                done.statuses[status] = done.statuses.get(status, 0) + 1
                if progress is not None:
                    progress(done)
            self.store(db, task, pattern, platform)
        return self.progress(db)

    def _claim(self, platform: Platform) -> None:
        """Note whose times the folder holds. Raises: InputError if they are of another machine."""
        if platform.digest != parse_platform(self.plan.platform).digest:
            raise InputError(
                f"planned for another space of platform {platform.name}",
                where=str(self.folder),
                hint="plan the campaign anew",
            )
        file = self.folder / "measured-on.json"
        here = {"platform": platform.id, "environment": dict(platform.environment)}
        if not file.exists():
            part = file.with_suffix(".tmp")
            part.write_text(json.dumps(here, indent=1), encoding="utf-8")
            part.replace(file)
        known = json.loads(file.read_text(encoding="utf-8"))["platform"]
        if known != platform.id:
            raise InputError(
                f"its results are of {known}, and this is {platform.id}",
                where=str(self.folder),
                hint="finish it there with the same threads, or plan a campaign in another folder",
            )
