"""Tasks handed to executors: submissions of a folder, attempts at a task, how tasks are spread."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from embeddb.core import plugins
from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, InputError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.files.safe_write import OwnFolder, write_new
from indexer.campaign.folder import Campaign, Task
from indexer.campaign.results import Line, Moment
from indexer.executors.base import ChunkState, Executor, ExecutorOptions

#: Estimated work that is worth a start on a node, and the largest number of chunks of one
#: submission unless the user sets a smaller one: what SLURM's usual MaxArraySize takes.
CHUNK_S, MOST_CHUNKS = 60.0, 1000
_MOST_BYTES = 256 << 20
_T = TypeVar("_T")
#: A point before anything is measured: starting and compiling, and 10^9 operations a second.
_POINT_S, _PACE = 0.2, 1e9


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A submission: task ids by chunk, all of one round, to which executor; with `mixed`
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
        """Numbers of submissions with a job whose end is not recorded."""
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


_HOST = re.compile(r"[^A-Za-z0-9.-]")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The place of an attempt: the instance, the host, which part of the task it is to become, and
    the `submission` and `chunk` it belongs to (0 and -1: none)."""

    on: str
    host: str
    part: int = 0
    submission: int = 0
    chunk: int = -1


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
    """The file of an attempt that is going on, and what it holds. Methods raise OSError."""

    def __init__(self, out: BinaryIO, place: Place) -> None:
        self._out = out
        self.lines: list[Line] = []
        self.states: list[Moment] = []
        self._write(place)

    def start(self, config: int) -> None:
        """Say, and have on the disk, that a configuration runs from now on."""
        self._write({"start": config})
        os.fsync(self._out.fileno())

    def point(self, line: Line) -> None:
        """Keep what was measured."""
        self._write(line)
        self.lines.append(line)

    def state(self, moment: Moment) -> None:
        """Keep the state of the machine."""
        self._write({"state": moment})
        self.states.append(moment)

    def ended(self, reason: str) -> None:
        """Say that it was stopped in order."""
        self._write({"ended": reason})

    def _write(self, line: Any) -> None:
        self._out.write(msgspec.json.encode(line) + b"\n")
        self._out.flush()


class Attempts:
    """The folder `attempts` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "attempts")

    def all(self, task: str = "") -> list[Begun]:
        """Every attempt there is, or those at one task, by name; files that are none are passed
        over."""
        names = (
            name for name in self._folder.files() if name.startswith(f"{task}~" if task else "")
        )
        return [one for name in names if (one := self._read(name)) is not None]

    def under_way(self) -> int:
        """Points measured of tasks that workers are at now, which no result has yet."""
        return sum(len(one.lines) for one in self.all() if one.alive)

    def count(self) -> int:
        """Number of files."""
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
            attempt = Attempt(out, place)
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
    """Return true if another process holds the lock of a file."""
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
            started = msgspec.convert(said["start"], type=int)
        elif "state" in said:
            states.append(msgspec.convert(said["state"], type=Moment))
        elif "ended" in said:
            started, ended = None, str(said["ended"])
    task = name.partition("~")[0]
    return Begun(name, task, place, points, states, started, ended, alive)


class HostTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one host: those it has done, those its workers are at, those it had begun when
    their worker died or was stopped, and the points that it gave up. Without a name they were
    measured by `campaign run` itself."""

    host: str
    instance: str
    done: int = 0
    running: int = 0
    stopped: int = 0
    given_up: int = 0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by what became of them. `waiting` are submitted and not begun; None where the executor
    cannot be asked now. `points_given_up` ended every process that tried them."""

    done: int
    running: int
    waiting: int | None
    stopped: int
    points_given_up: int
    hosts: list[HostTasks]


def executor_named(name: str, options: ExecutorOptions | None = None) -> Executor:
    """An executor plug-in. Raises: UsageError, MissingDependency, PluginError."""
    found: Executor = plugins.load("executor", name)(options or ExecutorOptions())
    return found


def open_chunks(
    campaign: Campaign, executor: Executor | None = None
) -> dict[int, Mapping[int, ChunkState] | None]:
    """The chunks that have not ended, by submission; None where nobody can be asked. `executor` is
    asked in its own name; of others, submissions that may go on without whoever submitted them."""
    submissions, found = Submissions(campaign.folder), dict[int, Mapping[int, ChunkState] | None]()
    for number in submissions.open():
        frozen = submissions.read(number)
        known = executor if executor is not None and executor.name == frozen.executor else None
        if known is not None and not known.detached:
            found[number] = known.states(submissions.job(number).job)
            continue
        try:
            asked = known or executor_named(
                frozen.executor, ExecutorOptions(address=frozen.address)
            )
            if asked.detached:
                lost = asked.available() is not None
                found[number] = None if lost else asked.states(submissions.job(number).job)
        except EmbeddbError:
            found[number] = None
    return found


def spread_of(campaign: Campaign) -> Spread:
    """Tasks of a campaign by state and host. Raises: InputError for files that are none of it."""
    chunks, submissions = open_chunks(campaign), Submissions(campaign.folder)
    tasks = {task.id: task for task in campaign.tasks()}
    done = {name for name, task in tasks.items() if not campaign.missing(task)}
    begun = {a.task: a for a in Attempts(campaign.folder).all() if a.task in tasks}
    begun = {name: a for name, a in begun.items() if name not in done}
    running = {name for name, a in begun.items() if _runs(a, chunks)}
    waiting: set[str] = set()
    for number, states in chunks.items():
        lists = submissions.read(number).chunks
        live = [at for at, state in (states or {}).items() if state in ("waiting", "running")]
        waiting.update(name for at in live if at < len(lists) for name in lists[at])
    hosts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name in done:
        counts = hosts[campaign.host_of(tasks[name]), campaign.instance_of(tasks[name])]
        counts.update(done=1, given_up=campaign.given_up(tasks[name]))
    for name, one in begun.items():
        hosts[one.place.host, one.place.on]["running" if name in running else "stopped"] += 1
    unknown = any(states is None for states in chunks.values())
    return Spread(
        done=len(done),
        running=len(running),
        waiting=None if unknown else len((waiting & tasks.keys()) - done - running),
        stopped=len(begun) - len(running),
        points_given_up=sum(campaign.given_up(tasks[name]) for name in done),
        hosts=[
            HostTasks(host=host, instance=on, **counts)
            for (host, on), counts in sorted(hosts.items())
        ],
    )


def _runs(one: Begun, chunks: Mapping[int, Mapping[int, ChunkState] | None]) -> bool:
    """Return true if an attempt is running: by its executor, else by the lock of its file, which is
    visible on the same host only."""
    states = chunks.get(one.place.submission)
    if states is None or one.ended:
        return one.alive
    return one.alive or states.get(one.place.chunk) == "running"
