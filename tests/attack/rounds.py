"""`kill -9`, a torn write or a full disk in the middle of a verb that writes; then what must hold.

Every round begins anew: the verb is stopped at a system call, or after a time, that the seed
chooses; the database must then be sound and hold what was acknowledged, answer as before, and
repeating the verb must give what an uninterrupted run gives.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attack.syscalls import Ended, missing, traced
from attack.verbs import VERBS, Board, Verb, state_of

_MOST_S = 120.0


@dataclass(frozen=True)
class Stop:
    """Where a verb is stopped: `how` of `syscalls.HOWS` at call `at`, or "time" after `after_s`."""

    how: str
    at: int = 0
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.how} {self.after_s:.3f} s" if self.how == "time" else f"{self.how} {self.at}"


class NotSound(Exception):
    """A verb that fails with nobody stopping it."""


@dataclass
class _Reference:
    """Of an uninterrupted run: how many calls and seconds it took, and what it left."""

    points: int
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    file: bytes | None


@dataclass
class Rounds:
    """Rounds on one board, and what they found: lines of (verb, stop, what)."""

    board: Board
    seed: int = 1
    done: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._known: dict[str, _Reference] = {}
        self._rng = random.Random(self.seed)
        self._traces = not missing()

    def reference(self, verb: Verb) -> _Reference:
        if verb.name not in self._known:
            folder = self.board.round(verb, self.board.root / "reference")
            before = self._state(verb, folder)
            started = time.monotonic()
            how = "count" if self._traces else ""
            ended = traced(self.board.work(verb, folder), how=how, under=folder, most_s=_MOST_S)
            if ended.code not in verb.fine or ended.signal:
                raise NotSound(f"not stopped at all it ends with {ended.code}: {ended.said[-300:]}")
            taken = time.monotonic() - started
            self._known[verb.name] = _Reference(
                ended.points, taken, before, self._state(verb, folder), self._file(verb, folder)
            )
        return self._known[verb.name]

    def chosen(self, verb: Verb, hows: Sequence[str] = ("kill", "torn", "full", "time")) -> Stop:
        known = self.reference(verb)
        how = self._rng.choice([h for h in hows if self._traces or h == "time"] or ["time"])
        if how == "time":
            return Stop("time", 0, self._rng.uniform(0, known.seconds))
        return Stop(how, self._rng.randint(1, max(1, known.points)))

    def points(self, name: str) -> int:
        """Calls that an uninterrupted run of a verb comes to."""
        return self.reference(next(verb for verb in VERBS if verb.name == name)).points

    def round(self, verb: Verb, stop: Stop) -> list[str]:
        """One verb, stopped once, examined and repeated; what did not hold."""
        started = time.monotonic()
        known = self.reference(verb)
        folder = self.board.round(verb, self.board.root / "round")
        work = self.board.work(verb, folder)
        if stop.how == "time":
            ended = traced(work, how="", under=folder, kill_s=stop.after_s or 1e-4, most_s=_MOST_S)
        else:
            ended = traced(work, how=stop.how, under=folder, at=stop.at, most_s=_MOST_S)
        self.done[verb.name] += 1
        self.stopped[verb.name] += ended.killed or (stop.how == "full" and ended.code != 0)
        found = [*self._ending(verb, stop, ended), *self._examined(verb, folder, known, ended)]
        again = self.board.work(verb, folder, again=_unfinished(folder))
        found += self._repeated(
            verb, folder, known, traced(again, how="", under=folder, most_s=_MOST_S)
        )
        self.problems += [(verb.name, str(stop), what) for what in found]
        self.seconds += time.monotonic() - started
        return found

    def _ending(self, verb: Verb, stop: Stop, ended: Ended) -> list[str]:
        """A kill is a kill; a full disk is one line."""
        if ended.hung:
            return [f"hangs: {ended.said[-300:]}"]
        if "Traceback" in ended.said or ended.code in (98, 99):
            return [f"traceback: {ended.said[-700:]}"]
        if ended.signal and not ended.killed:
            return [f"ended by {ended.signal}"]
        if stop.how == "full" and ended.code not in (0, 1, 3):
            return [f"ends with {ended.code}: {ended.said[-300:]}"]
        return []

    def _examined(self, verb: Verb, folder: Path, known: _Reference, ended: Ended) -> list[str]:
        """Sound, nothing acknowledged is lost, nothing is there in part."""
        db = folder / verb.db
        if not (db / "data.mdb").exists():
            return ["a database is gone"] if known.before else []
        checked, now = self.board.run(f"db check {db}", folder), self._state(verb, folder)
        if checked.code and "fault" in now and not known.before:
            return []  # it was being made: to be taken up, and no database yet
        if checked.code:
            return [f"db check: {checked.said.strip()[-400:]}"]
        if "fault" in now:
            return [f"cannot be read: {now['fault']}"]
        found = self._acknowledged(ended, now)
        lost = set(known.before.get("runs", ())) - set(now["runs"])
        if lost and verb.name != "withdraw":
            found.append(f"{len(lost)} runs of before are gone")
        if verb.exact and set(now["runs"]) - set(known.after["runs"]) - set(
            known.before.get("runs", ())
        ):
            found.append("runs that no uninterrupted call makes")
        if verb.answers and now["answer"] not in (known.before["answer"], known.after["answer"]):
            found.append(f"answers {now['answer']}, before {known.before['answer']}")
        part = self._file(verb, folder)
        same = part == known.file if verb.exact else len(part or b"") == len(known.file or b"")
        if part is not None and not same and not verb.acknowledges:
            found.append(f"{verb.file} is there in part: {len(part)} bytes")
        return found

    def _acknowledged(self, ended: Ended, now: dict[str, Any]) -> list[str]:
        """Rows of the log that were said to be stored."""
        rows = max((int(line) for line in ended.acknowledged.split()), default=0)
        good = sum(1 for line in range(1, rows + 1) if line not in self.board.bad_lines)
        return (
            [f"{good} rows acknowledged, {len(now['runs'])} there"]
            if len(now["runs"]) < good
            else []
        )

    def _repeated(self, verb: Verb, folder: Path, known: _Reference, ended: Ended) -> list[str]:
        if ended.code not in verb.fine:
            return [
                f"repeated it ends with {ended.code} {ended.signal}: {ended.said.strip()[-400:]}"
            ]
        checked = self.board.run(f"db check {folder / verb.db}", folder)
        if checked.code:
            return [f"db check after repeating: {checked.said.strip()[-400:]}"]
        now = self._state(verb, folder)
        keys = ("runs", "patterns", "platforms", "answer") if verb.exact else ("patterns", "answer")
        found = [f"repeated, {key} differ" for key in keys if now.get(key) != known.after.get(key)]
        if verb.exact and verb.file and self._file(verb, folder) != known.file:
            found.append(f"repeated, {verb.file} differs")
        left = sorted(
            p.name for p in (folder / verb.db).iterdir() if p.name.endswith((".part", ".tmp"))
        )
        return [*found, *([f"left behind: {left}"] if left else [])]

    def _state(self, verb: Verb, folder: Path) -> dict[str, Any]:
        db = folder / verb.db
        return state_of(db) if (db / "data.mdb").exists() else {}

    def _file(self, verb: Verb, folder: Path) -> bytes | None:
        path = folder / verb.file
        if not (verb.file and path.is_file()):
            return None
        # A plan and a rejects file name the folder of the round.
        return path.read_bytes().replace(str(folder).encode(), b"")


def _unfinished(folder: Path) -> bool:
    """Whether a training left something to go on with."""
    return any(
        p.name.endswith(".training") and any(p.iterdir()) for p in folder.rglob("*.training")
    )


def usable(verb: Verb, *, nightly: bool = False) -> bool:
    """Whether this checkout and machine have what a verb needs."""
    if verb.nightly and not nightly:
        return False
    if verb.name == "withdraw" and find_spec("embeddb.ui.cli.verbs.db_exchange") is None:
        return False
    return all(shutil.which(n) if n == "gcc" else find_spec(n) is not None for n in verb.needs)
