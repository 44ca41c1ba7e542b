"""Who is given what: task lists that are frozen when they are submitted, in `submit/`.

`submit/0003.json` has the tasks of submission 3 by chunk and is never changed; `0003.job.json` says
which job of which executor it became, and whether that has ended; `0003/` has what its workers
printed. Nothing that is measured hangs on these files: what is missing is submitted again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.files.gate import reason_of
from embeddb.core.files.own_files import OwnFolder, write_new
from indexer.campaign.folder import Campaign, Task

__all__ = ["CHUNK_S", "MOST_CHUNKS", "Submissions", "Submitted", "SubmittedJob", "in_chunks"]

#: Estimated work that is worth a start on a node, and the largest number of chunks of one
#: submission unless the user sets a smaller one: what SLURM's usual MaxArraySize takes.
CHUNK_S, MOST_CHUNKS = 60.0, 1000
_MOST_BYTES = 256 << 20
_T = TypeVar("_T")
#: A point before anything is measured: starting and compiling, and 10^9 operations a second.
_POINT_S, _PACE = 0.2, 1e9


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What was submitted: task ids by chunk, all of one round, to which executor; with `mixed`
    nodes of several instances may work on it."""

    version: int = 1
    executor: str
    address: str = ""
    round: int = 0
    mixed: bool = False
    chunks: list[list[str]]


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a submission became; empty where that was not noted."""

    job: str = ""
    ended: bool = False


class Submissions:
    """The folder `submit` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "submit")

    def add(self, one: Submitted) -> int:
        """Freeze a list under the next number that nobody has, and make an empty folder for what
        its workers print. Raises: OSError."""
        raw = msgspec.json.encode(one)
        for number in count(max(self.numbers(), default=0) + 1):
            # A folder that was there already may hold links, and others write into it by its path.
            if write_new(self._folder, f"{number:04d}.json", raw) and self._made(f"{number:04d}"):
                return number
        raise AssertionError

    def _made(self, name: str) -> bool:
        with self._folder.opened() as where:
            try:
                os.mkdir(name, dir_fd=where)
            except FileExistsError:
                return False
        return True

    def numbers(self) -> list[int]:
        """All there are, in order."""
        stems = (name.removesuffix(".json") for name in self._folder.files())
        return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) < 10)

    def read(self, number: int) -> Submitted:
        """Raises: InputError if there is none, or it is none of this version."""
        found = self._read(f"{number:04d}.json", Submitted)
        if found.version != 1:
            raise InputError(
                f"a submission of version {found.version}, this program reads version 1",
                where=str(self._folder.path / f"{number:04d}.json"),
            )
        return found

    def note(self, number: int, job: SubmittedJob) -> None:
        """Keep what became of one. Raises: OSError."""
        self._folder.write(f"{number:04d}.job.json", msgspec.json.encode(job))

    def job(self, number: int) -> SubmittedJob:
        """Raises: InputError for a file that is none."""
        name = f"{number:04d}.job.json"
        return self._read(name, SubmittedJob) if name in self._folder.files() else SubmittedJob()

    def open(self) -> list[int]:
        """Those that became a job of which nobody has noted the end."""
        return [n for n in self.numbers() if (job := self.job(n)).job and not job.ended]

    def last_words(self, number: int) -> str:
        """The last line that a worker of a submission printed; empty if none did."""
        logs = OwnFolder(self._folder.path.parent, "submit", f"{number:04d}")
        for name in reversed(logs.files()):
            said = logs.read(name, _MOST_BYTES).decode(errors="replace").split("\n")
            if lines := [line.strip() for line in said if line.strip()]:
                return lines[-1][:300]
        return ""

    def _read(self, name: str, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(self._folder.read(name, _MOST_BYTES), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as e:
            where = str(self._folder.path / name)
            raise InputError(f"not a submission: {reason_of(e)}", where=where) from None


def in_chunks(
    campaign: Campaign,
    tasks: Sequence[Task],
    *,
    suspects: frozenset[str] = frozenset(),
    repeats: int = 5,
    least_s: float = CHUNK_S,
    most: int = MOST_CHUNKS,
) -> list[list[str]]:
    """Task ids in their order, in at most `most` chunks of at least `least_s` estimated seconds;
    `suspects` (ids of tasks that ended a process) have a chunk each while there is room.

    The estimate is by operations, scaled by what the tasks took that workers have done.
    """
    guesses = {task: _guess(campaign, task, len(campaign.missing(task)), repeats) for task in tasks}
    scale = _scale(campaign, repeats)
    total = scale * sum(guesses.values())
    if len(tasks) > most:  # chunks close at this or above, so there are at most most / 2 + 1
        least_s = max(least_s, 2 * total / most)
    chunks: list[list[str]] = []
    held = least_s
    for task in (t for t in tasks if t.id not in suspects):
        if held >= least_s:
            chunks.append([])
            held = 0.0
        chunks[-1].append(task.id)
        held += scale * guesses[task]
    alone = [[task.id] for task in tasks if task.id in suspects]
    together = [*chunks, *alone]
    last = [name for chunk in together[most - 1 :] for name in chunk]
    return [*together[: most - 1], last] if last else together


def _guess(campaign: Campaign, task: Task, points: int, repeats: int) -> float:
    work = 2.0 * campaign.plan.matrices[task.matrix].nnz * max(1, Op.parse(task.op).width)
    return points * (_POINT_S + (repeats + 2) * work / _PACE)


def _scale(campaign: Campaign, repeats: int) -> float:
    """Seconds of work per guessed one, of what workers have done; 1 before."""
    spent = guessed = 0.0
    for task in campaign.tasks():
        seconds = campaign.spent_s(task)
        if seconds > 0:
            spent += seconds
            guessed += _guess(campaign, task, campaign.written(task), repeats)
    return spent / guessed if guessed else 1.0
