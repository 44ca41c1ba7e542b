"""The result files of a campaign's tasks, in `results/`.

`TASK.jsonl` holds a line `[configuration, measurement]` for each point. Whoever is alone with a
campaign (`campaign run` on one machine) adds to it line by line; a worker, one of many, writes it
whole when its task is done, with a first line that says where (`Origin`), and the first of two
wins. What is measured of a task that has such a file already, because it was begun only or is
repeated, a worker writes as `TASK.1.jsonl`, `TASK.2.jsonl`, …: the parts of a task are read in this
order, and lines are counted over all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

import msgspec

from embeddb.core.errors import InputError
from embeddb.core.files.own_files import OwnFolder, drop_torn_line, write_new
from embeddb.core.records import SOURCES, STATUSES, Measurement
from indexer.campaign.state import Moment, read_lines

__all__ = ["Line", "Origin", "ResultFiles", "TaskResult"]


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One measured point: the position of its configuration, and its outcome."""

    config: int
    measurement: Measurement


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's part of a task was measured: the instance's id, the host, the seconds it
    took in all, and the states of the machine around it."""

    on: str
    host: str
    spent_s: float = 0.0
    states: list[Moment] = []


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All that was written of one task. `origins` has the number of a part's first line beside the
    origin, of the parts that a worker wrote."""

    lines: Sequence[Line]
    origins: Sequence[tuple[int, Origin]]
    parts: int

    def moments(self) -> list[tuple[Moment, int]]:
        """States of the machine in the workers' parts, counted over all parts, each with -1 for
        the last of its part, 1 for another."""
        found = []
        for first, origin in self.origins:
            for at, one in enumerate(origin.states, 1):
                rank = -1 if at == len(origin.states) > 1 else 1
                found.append((Moment(first + one.done, one.figures), rank))
        return found


class ResultFiles:
    """The folder `results` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "results")

    def make(self) -> None:
        """Have the folder. Raises: OSError."""
        self._folder.make()

    def stamp(self, task: str) -> tuple[tuple[int, int], ...]:
        """Bytes and time of each part: the same as long as nothing was written."""
        found = []
        for name in _names(task):
            try:
                about = (self._folder.path / name).lstat()
            except FileNotFoundError:
                break
            found.append((about.st_size, about.st_mtime_ns))
        return tuple(found)

    def read(self, task: str, allowed: Callable[[int], bool]) -> TaskResult:
        """Every line that was written; a last one without its end does not count.

        Raises: InputError for a line that is none, or of a configuration that is not `allowed`.
        """
        lines: list[Line] = []
        origins = []
        parts = len(self.stamp(task))
        for _, name in zip(range(parts), _names(task), strict=False):
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
        return TaskResult(lines, origins, parts)

    @contextmanager
    def adding(self, task: str) -> Iterator[BinaryIO]:
        """The last part, to add lines to by one who is alone; they are on the disk at the end.

        Raises: OSError.
        """
        last = max(len(self.stamp(task)) - 1, 0)
        with self._folder.open(_name(task, last), "a+b") as out:
            drop_torn_line(out)
            yield out
            out.flush()
            os.fsync(out.fileno())

    def deliver(self, task: str, part: int, origin: Origin, lines: Sequence[Line]) -> bool:
        """Write a part whole; False if another has written it, whose lines count.

        Raises: OSError; nothing of the part is there then.
        """
        body = [msgspec.json.encode(one) for one in (origin, *lines)]
        return write_new(self._folder, _name(task, part), b"\n".join(body) + b"\n")


def _name(task: str, part: int) -> str:
    return f"{task}.{part}.jsonl" if part else f"{task}.jsonl"


def _names(task: str) -> Iterator[str]:
    return (_name(task, part) for part in count())


def _point(line: bytes, allowed: Callable[[int], bool]) -> Line:
    """Raises: ValueError for what no runner says: a folder may come from elsewhere."""
    entry = msgspec.json.decode(line, type=Line)
    if not allowed(entry.config):
        raise ValueError(f"configuration {entry.config} is not of this task")
    m = entry.measurement
    if m.status not in STATUSES or m.source not in SOURCES:
        raise ValueError(f"unknown status {m.status!r} or source {m.source!r}")
    if not all(0 < t < math.inf for t in m.times_s) or (m.ok and not m.times_s):
        raise ValueError("times that no measurement has")
    return entry
