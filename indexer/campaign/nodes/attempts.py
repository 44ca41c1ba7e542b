"""What was begun of a task, by whoever: a file per attempt in `attempts/`, gone when it is done.

An attempt's file `TASK~HOST~ID.jsonl` has a first line that says where it runs, then for every
point a line `{"start": configuration}`, on the disk before anything runs, and its result. A file
that ends in a start names what killed its process or node; one that ends in `{"ended": reason}`
was stopped in order. Whoever writes holds a lock on the file as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from embeddb.core.files.gate import reason_of
from embeddb.core.files.own_files import OwnFolder
from indexer.campaign.results import Line
from indexer.campaign.state import Moment

__all__ = ["Attempt", "Attempts", "Begun", "Place"]

_MOST_BYTES = 256 << 20
_HOST = re.compile(r"[^A-Za-z0-9.-]")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt runs: the instance, the host, which part of the task it is to become, and
    the `submission` and `chunk` it belongs to (0 and -1: none)."""

    on: str
    host: str
    part: int = 0
    submission: int = 0
    chunk: int = -1


class _Start(msgspec.Struct):
    start: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt as its file tells: `open` is the configuration that was started and has no result,
    `ended` why it was stopped in order, `alive` whether somebody writes it now."""

    file: str
    task: str
    place: Place
    lines: list[Line]
    states: list[Moment]
    open: int | None
    ended: str
    alive: bool


class Attempt:
    """The file of an attempt that is going on."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def start(self, config: int) -> None:
        """Say, and have on the disk, that a configuration runs from now on. Raises: OSError."""
        self._write({"start": config})
        os.fsync(self._out.fileno())

    def point(self, line: Line) -> None:
        """Keep what was measured. Raises: OSError."""
        self._write(line)

    def state(self, moment: Moment) -> None:
        """Keep the state of the machine. Raises: OSError."""
        self._write({"state": moment})

    def ended(self, reason: str) -> None:
        """Say that it was stopped in order. Raises: OSError."""
        self._write({"ended": reason})

    def _write(self, line: Any) -> None:
        self._out.write(msgspec.json.encode(line) + b"\n")
        self._out.flush()


class Attempts:
    """The folder `attempts` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "attempts")

    def all(self) -> list[Begun]:
        """Every attempt there is, by name; files that are none are passed over."""
        return [one for name in self._folder.files() if (one := self._read(name)) is not None]

    def of(self, task: str) -> list[Begun]:
        """Those of one task."""
        names = (name for name in self._folder.files() if name.startswith(f"{task}~"))
        return [one for name in names if (one := self._read(name)) is not None]

    def under_way(self) -> int:
        """Points measured of tasks that workers are at now, which no result has yet."""
        return sum(len(one.lines) for one in self.all() if one.alive)

    def count(self) -> int:
        """How many files there are."""
        return len(self._folder.files())

    @contextmanager
    def beginning(self, task: str, place: Place) -> Iterator[Attempt]:
        """A new attempt; what ends it by an exception is noted, a kill cannot be.

        Raises: OSError.
        """
        host = _HOST.sub("_", place.host)[:60]
        self._folder.make()
        with self._folder.open(f"{task}~{host}~{uuid.uuid4().hex[:12]}.jsonl", "ab") as out:
            with suppress(OSError):  # no locks on this file system: nobody is then known to live
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attempt = Attempt(out)
            attempt._write(place)
            try:
                yield attempt
            except BaseException as error:
                with suppress(OSError):
                    attempt.ended(reason_of(error))
                raise

    def forget(self, task: str) -> None:
        """Remove the attempts of a task that is done. Raises: OSError."""
        for name in self._folder.files():
            if name.startswith(f"{task}~"):
                self._folder.remove(name)

    def _read(self, name: str) -> Begun | None:
        try:
            with self._folder.open(name, "rb") as file:
                alive = _held(file)
                raw = file.read(_MOST_BYTES)
            whole = raw[: raw.rfind(b"\n") + 1].splitlines()
            return _begun(name, whole, alive)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None  # its point is not blamed and its lines are measured again: nothing is lost


def _held(file: BinaryIO) -> bool:
    """Whether another holds the lock of a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _begun(name: str, lines: list[bytes], alive: bool) -> Begun:
    place = msgspec.json.decode(lines[0] if lines else b"", type=Place)
    points: list[Line] = []
    states: list[Moment] = []
    started: int | None = None
    ended = ""
    for line in lines[1:]:
        if line.startswith(b"["):
            points.append(msgspec.json.decode(line, type=Line))
            started = None
            continue
        said: Mapping[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        if "start" in said:
            started = msgspec.convert(said, type=_Start).start
        elif "state" in said:
            states.append(msgspec.convert(said["state"], type=Moment))
        elif "ended" in said:
            started, ended = None, str(said["ended"])
    task = name.partition("~")[0]
    return Begun(name, task, place, points, states, started, ended, alive)
