"""Files of a campaign's folder: results, states of the machine, lines to repeat, and the instances
of the platform that measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.files.safe_read import reason_of, refusing
from embeddb.core.files.safe_write import OwnFolder, drop_torn_line, write_new
from embeddb.core.records import Measurement, fault_of
from embeddb.core.timing import APART, State, between, distance
from embeddb.platforms.machines import same_build
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store.merge_facts import extends
from indexer.campaign.plan import Plan

#: Larger files are not those of a task.
_MOST_BYTES = 256 << 20
_T = TypeVar("_T")


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """State of the machine after so many runs of a task."""

    done: int
    figures: dict[str, float]


def read_lines(folder: OwnFolder, name: str) -> bytes:
    """Complete lines of a campaign's file; empty without a file.

    Raises: InputError if it cannot be read: a folder may come from elsewhere.
    """
    hint = "it is no file of a campaign: remove it and resume"
    with refusing(InputError, where=str(folder.path / name), hint=hint):
        try:
            raw = folder.read(name, _MOST_BYTES)
        except FileNotFoundError:
            return b""
    return raw[: raw.rfind(b"\n") + 1]


def read_json(
    folder: OwnFolder,
    name: str,
    kind: type[_T],
    why: str,
    *,
    hint: str = "",
    most: int = 64 << 20,
) -> _T:
    """Decode a file of a campaign of at most so many bytes. Raises: InputError that begins with
    `why` if it is missing or invalid: a folder may come from elsewhere."""
    try:
        return msgspec.json.decode(folder.read(name, most), type=kind)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as e:
        where = str(folder.path / name)
        raise InputError(f"{why}: {reason_of(e)}", where=where, hint=hint) from None


class TaskStates:
    """States of the machine around one task: those in its file, and those `delivered` with its
    results (each with -1 for the last of its part, 1 for another)."""

    def __init__(self, file: Path, delivered: Sequence[tuple[Moment, int]] = ()) -> None:
        self._file, self._delivered = file, delivered
        # Below the folder that the user names nothing may be a link.
        self._folder = OwnFolder(file.parent.parent, file.parent.name)

    def note(self, done: int, figures: Mapping[str, float]) -> None:
        """Add a moment, unless it has no figures."""
        if not figures:
            return
        self._folder.make()
        with self._folder.open(self._file.name, "a+b") as out:
            drop_torn_line(out)
            out.write(msgspec.json.encode(Moment(done, dict(figures))) + b"\n")

    def moments(self) -> list[Moment]:
        """All moments in order. Raises: InputError for an invalid line."""
        raw = read_lines(self._folder, self._file.name)
        noted = []
        for number, line in enumerate(raw.splitlines(), 1):
            try:
                noted.append(msgspec.json.decode(line, type=Moment))
            except msgspec.MsgspecError as e:
                raise InputError(
                    f"not a state of the machine: {e}",
                    where=str(self._file),
                    line=number,
                    hint="delete the file: nothing is then known of the state of these runs",
                ) from None
        if not self._delivered:
            return noted
        # Where one part ends and the next begins, the end comes first and the begin last.
        ranked = [*self._delivered, *((one, 0) for one in noted)]
        return [one for one, _ in sorted(ranked, key=lambda pair: (pair[0].done, pair[1]))]

    def contexts(self, count: int) -> list[dict[str, float]]:
        """Contexts of `count` runs, in the order in which they were measured."""
        moments = self.moments()
        contexts = []
        for at in range(count):
            before: State = next((m.figures for m in reversed(moments) if m.done <= at), {})
            after: State = next((m.figures for m in moments if m.done > at), {})
            contexts.append(between(before, after))
        return contexts

    def spoilt(self, normal: State) -> bool:
        """True if the state changed during the task or differs from `normal`."""
        figures = [m.figures for m in self.moments()]
        changes = (distance(one, other) for one, other in pairwise(figures))
        offs = (distance(one, normal) for one in figures)
        return any((far or 0.0) > APART for far in (*changes, *offs))


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One measured point: the position of its configuration, and its outcome."""

    config: int
    measurement: Measurement


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a worker's part of a task: the instance's id, the host, its total seconds, and the
    states of the machine around it."""

    on: str
    host: str
    spent_s: float = 0.0
    states: list[Moment] = []


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Lines of one task, and for each part by a worker the number of its first line and its
    origin."""

    lines: Sequence[Line]
    origins: Sequence[tuple[int, Origin]]

    def moments(self) -> list[tuple[Moment, int]]:
        """States of the machine in the workers' parts, counted over all parts, as `TaskStates`
        takes them."""
        moments = []
        for first, origin in self.origins:
            for at, one in enumerate(origin.states, 1):
                rank = -1 if at == len(origin.states) > 1 else 1
                moments.append((Moment(first + one.done, one.figures), rank))
        return moments


class ResultFiles:
    """The folder `results` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "results")

    def make(self) -> None:
        """Make the folder. Raises: OSError."""
        self._folder.make()

    def stamp(self, task: str) -> tuple[tuple[int, int], ...]:
        """Size and time of each part, unchanged as long as nothing is written."""
        stamps = []
        for name in _names(task):
            try:
                about = (self._folder.path / name).lstat()
            except FileNotFoundError:
                break
            stamps.append((about.st_size, about.st_mtime_ns))
        return tuple(stamps)

    def read(self, task: str, allowed: Callable[[int], bool]) -> TaskResult:
        """All complete lines.

        Raises: InputError for an invalid line, or one of a configuration that is not `allowed`.
        """
        lines: list[Line] = []
        origins = []
        for name in islice(_names(task), len(self.stamp(task))):
            raw = read_lines(self._folder, name).splitlines()
            for number, line in enumerate(raw, 1):
                try:
                    if number == 1 and line.startswith(b"{"):
                        origins.append((len(lines), msgspec.json.decode(line, type=Origin)))
                    else:
                        lines.append(_point(line, allowed))
                except (msgspec.MsgspecError, ValueError) as e:
                    raise InputError(
                        f"not a result of this campaign: {e}",
                        where=str(self._folder.path / name),
                        line=number,
                        hint="delete the file and resume: its points are measured again",
                    ) from None
        return TaskResult(lines, origins)

    @contextmanager
    def adding(self, task: str) -> Iterator[BinaryIO]:
        """The last part, opened to add lines by the only writer; they are on the disk at the end.

        Raises: OSError.
        """
        last = max(len(self.stamp(task)) - 1, 0)
        with self._folder.open(_name(task, last), "a+b") as out:
            drop_torn_line(out)
            yield out
            out.flush()
            os.fsync(out.fileno())

    def deliver(self, task: str, part: int, origin: Origin, lines: Sequence[Line]) -> bool:
        """Write a whole part; False if another worker wrote it before, whose lines count.

        Raises: OSError without writing anything.
        """
        body = [msgspec.json.encode(one) for one in (origin, *lines)]
        return write_new(self._folder, _name(task, part), b"\n".join(body) + b"\n")


def _name(task: str, part: int) -> str:
    return f"{task}.{part}.jsonl" if part else f"{task}.jsonl"


def _names(task: str) -> Iterator[str]:
    return (_name(task, part) for part in count())


def _point(line: bytes, allowed: Callable[[int], bool]) -> Line:
    """Decode a line. Raises: ValueError for invalid values: a folder may come from elsewhere."""
    entry = msgspec.json.decode(line, type=Line)
    if not allowed(entry.config):
        raise ValueError(f"configuration {entry.config} is not of this task")
    if fault := fault_of(entry.measurement):
        raise ValueError(fault)
    return entry


_REPEATS_FILE = "again.json"


class Repeats:
    """Repeated lines of a campaign's folder. Raises: InputError for an invalid file."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder)
        self._lines = {task: frozenset(lines) for task, lines in self._read().items()}

    def of(self, task: str) -> frozenset[int]:
        """Numbers of the lines of a task that do not count."""
        return self._lines.get(task, frozenset())

    def add(self, lines: Mapping[str, Iterable[int]]) -> None:
        """Exclude further lines, all of them or none. Raises: OSError."""
        changed = {task: self.of(task) | frozenset(more) for task, more in lines.items()}
        if changed:
            self._lines |= changed
            body = {task: sorted(numbers) for task, numbers in sorted(self._lines.items())}
            self._folder.write(_REPEATS_FILE, msgspec.json.encode(body))

    def _read(self) -> dict[str, list[int]]:
        if not os.path.lexists(self._folder.path / _REPEATS_FILE):
            return {}
        why = "not a list of repeated results"
        hint = "delete the file: the last measurements then count"
        return read_json(self._folder, _REPEATS_FILE, dict[str, list[int]], why, hint=hint)


_INSTANCE_FILE, _INSTANCE_FOLDER = "measured-on.json", "measured-on"


class _Machine(msgspec.Struct):
    platform: str
    environment: dict[str, str] = {}


def _about(here: Platform) -> bytes:
    about = {"platform": here.id, "environment": dict(here.environment)}
    return json.dumps(about, indent=1).encode()


class Instances:
    """Instances of a platform that measured one campaign."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._own, self._further = OwnFolder(folder), OwnFolder(folder, _INSTANCE_FOLDER)
        self._platforms: dict[str, Platform] = {}

    @property
    def first(self) -> str:
        """Id of the first instance; empty before any. Raises: InputError."""
        there = os.path.lexists(self._folder / _INSTANCE_FILE)
        return self._read(self._own, _INSTANCE_FILE).platform if there else ""

    def admit(self, here: Platform, *, mixed: bool = False) -> None:
        """Note that the folder has times of an instance; with `mixed` beside those of others.

        Raises: InputError for another instance than the folder's, or another platform than the
        planned one or a later version that extends it and allows all that is planned.
        """
        self._refuse_unplanned(here)
        body = _about(here)
        if not os.path.lexists(self._folder / _INSTANCE_FILE) and write_new(
            self._own, _INSTANCE_FILE, body
        ):
            return
        first = self._read(self._own, _INSTANCE_FILE)
        if first.platform == here.id or same_build(first.environment, here.environment):
            return
        if mixed:
            write_new(self._further, f"{here.id}.json", body)
            return
        raise InputError(
            f"its results are of {first.platform}, and this is {here.id}: another build or machine",
            where=str(self._folder),
            hint="finish it there with the same threads, or take another folder: `adopt` by "
            "--campaign DIR, `campaign plan` by its DIR; the runs it has stay evidence of theirs",
        )

    def replace(self, here: Platform) -> None:
        """Note another first instance, where no result of the one before counts.

        Raises: InputError for another platform than the planned one; OSError.
        """
        self._refuse_unplanned(here)
        self._own.write(_INSTANCE_FILE, _about(here))

    def _refuse_unplanned(self, here: Platform) -> None:
        planned = parse_platform(self._plan.platform)
        same = here.digest == planned.digest or extends(here, planned)
        if here.name != planned.name or not same:
            raise InputError(
                f"planned for {planned.name}, and not as {here.name} is here",
                where=str(self._folder),
                hint="plan the campaign anew",
            )
        # A runner would note what its version forbids as failed, also for the planned version.
        for text, configs in self._plan.configs.items() if here.digest != planned.digest else ():
            space = here.space(Op.parse(text))
            for config in map(Config, configs):
                if reason := space.reason(config):
                    raise InputError(
                        f"version {here.version} of {here.name} forbids a planned configuration, "
                        f"{config}: {reason}",
                        where=str(self._folder),
                        hint=f"go on with the file of version {planned.version}",
                    )

    def platform(self, name: str) -> Platform:
        """The planned platform as that instance.

        Raises: InputError if the folder does not describe it.
        """
        if name in self._platforms:
            return self._platforms[name]
        machine = self._read(self._own, _INSTANCE_FILE)
        if machine.platform != name:
            machine = self._read(self._further, f"{name}.json")
        planned = parse_platform(self._plan.platform)
        base, _, instance = name.partition("@")
        if machine.platform != name or base != planned.name:
            raise InputError(f"does not describe {name}", where=str(self._folder))
        self._platforms[name] = planned.at(instance, machine.environment)
        return self._platforms[name]

    def _read(self, folder: OwnFolder, file: str) -> _Machine:
        return read_json(folder, file, _Machine, "does not name a machine", most=1 << 20)
