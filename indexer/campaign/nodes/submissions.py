"""Tasks given to executors: submissions of a folder, attempts at a task, tasks by state."""

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
from typing import Any, BinaryIO, NamedTuple

import msgspec

from embeddb.core import plugins
from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, InputError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.files.safe_write import OwnFolder, write_new
from embeddb.kernels.machine_failures import ProgramKilled
from indexer.campaign.folder import Campaign, Task
from indexer.campaign.results import Line, Moment, read_json
from indexer.executors.base import ChunkState, Executor, ExecutorOptions

#: Least estimated seconds of a chunk, and the default of the most chunks of one submission:
#: SLURM's usual MaxArraySize.
CHUNK_S, MOST_CHUNKS = 60.0, 1000
_MOST_BYTES = 256 << 20
#: First estimate of a point: seconds to start and compile, and operations per second.
_POINT_S, _PACE = 0.2, 1e9


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A submission to an executor: task ids by chunk, all of one round; with `mixed` nodes of
    several instances may work on it."""

    version: int = 1
    executor: str
    address: str = ""
    round: int = 0
    mixed: bool = False
    chunks: list[list[str]]


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a submission; empty if it was not noted."""

    job: str = ""
    ended: bool = False


class Submissions:
    """The folder `submit` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "submit")

    def add(self, one: Submitted) -> int:
        """Freeze a list under the next free number, and make an empty folder for its workers'
        output. Raises: OSError."""
        raw = msgspec.json.encode(one)
        for number in count(max(self.numbers(), default=0) + 1):
            # An existing folder may contain links, and others write into it by its path.
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
        """Numbers of all submissions, in order."""
        stems = (name.removesuffix(".json") for name in self._folder.files())
        return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) < 10)

    def read(self, number: int) -> Submitted:
        """A submission. Raises: InputError if it is missing, or of another version."""
        name, why = f"{number:04d}.json", "not a submission"
        submitted = read_json(self._folder, name, Submitted, why, most=_MOST_BYTES)
        if submitted.version != 1:
            raise InputError(
                f"a submission of version {submitted.version}, this program reads version 1",
                where=str(self._folder.path / name),
            )
        return submitted

    def note(self, number: int, job: SubmittedJob) -> None:
        """Store the job of a submission. Raises: OSError."""
        self._folder.write(f"{number:04d}.job.json", msgspec.json.encode(job))

    def job(self, number: int) -> SubmittedJob:
        """The job of a submission. Raises: InputError for an invalid file."""
        name = f"{number:04d}.job.json"
        if name not in self._folder.files():
            return SubmittedJob()
        return read_json(self._folder, name, SubmittedJob, "not a submission")

    def open(self) -> list[int]:
        """Numbers of submissions with a job whose end is not recorded."""
        return [n for n in self.numbers() if (job := self.job(n)).job and not job.ended]

    def last_words(self, number: int) -> str:
        """The last line that a worker of a submission printed; empty if none did."""
        logs = OwnFolder(self._folder.path.parent, "submit", f"{number:04d}")
        for name in reversed(logs.files()):
            printed = logs.read(name, _MOST_BYTES).decode(errors="replace").split("\n")
            if lines := [line.strip() for line in printed if line.strip()]:
                return lines[-1][:300]
        return ""


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

    The estimate is by operations, scaled by the seconds of the tasks that workers have done.
    """
    guesses = {task: _guess(campaign, task, len(campaign.missing(task)), repeats) for task in tasks}
    scale = _scale(campaign, repeats)
    total = scale * sum(guesses.values())
    if len(tasks) > most:  # chunks close at this or above, so there are at most most / 2 + 1
        least_s = max(least_s, 2 * total / most)
    chunks: list[list[str]] = []
    seconds = least_s
    for task in (t for t in tasks if t.id not in suspects):
        if seconds >= least_s:
            chunks.append([])
            seconds = 0.0
        chunks[-1].append(task.id)
        seconds += scale * guesses[task]
    alone = [[task.id] for task in tasks if task.id in suspects]
    together = [*chunks, *alone]
    last = [name for chunk in together[most - 1 :] for name in chunk]
    return [*together[: most - 1], last] if last else together


def _guess(campaign: Campaign, task: Task, points: int, repeats: int) -> float:
    work = 2.0 * campaign.plan.matrices[task.matrix].nnz * max(1, Op.parse(task.op).width)
    return points * (_POINT_S + (repeats + 2) * work / _PACE)


def _scale(campaign: Campaign, repeats: int) -> float:
    """Measured over estimated seconds of the tasks that workers have done; 1 before."""
    spent = guessed = 0.0
    for task in campaign.tasks():
        seconds = campaign.outcome(task).spent_s
        if seconds > 0:
            spent += seconds
            guessed += _guess(campaign, task, campaign.outcome(task).lines, repeats)
    return spent / guessed if guessed else 1.0


_HOST = re.compile(r"[^A-Za-z0-9.-]")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Place of an attempt: the instance, the host, the number of the part of the task, and the
    `submission` and `chunk` (0 and -1: none)."""

    on: str
    host: str
    part: int = 0
    submission: int = 0
    chunk: int = -1


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt as in its file: `open` is the configuration that was started and has no result,
    `ended` the reason of an orderly stop, `alive` true while a worker writes it."""

    file: str
    task: str
    place: Place
    lines: list[Line]
    states: list[Moment]
    open: int | None
    ended: str
    alive: bool


class Attempt:
    """The file of a running attempt, and its content. Methods raise OSError."""

    def __init__(self, out: BinaryIO, place: Place) -> None:
        self._out = out
        self.lines: list[Line] = []
        self.states: list[Moment] = []
        self._write(place)

    def start(self, config: int) -> None:
        """Write to the disk that a configuration runs from now on."""
        self._write({"start": config})
        os.fsync(self._out.fileno())

    def point(self, line: Line) -> None:
        """Store a measured point."""
        self._write(line)
        self.lines.append(line)

    def state(self, moment: Moment) -> None:
        """Store the state of the machine."""
        self._write({"state": moment})
        self.states.append(moment)

    def ended(self, reason: str) -> None:
        """Note an orderly stop."""
        self._write({"ended": reason})

    def _write(self, line: Any) -> None:
        self._out.write(msgspec.json.encode(line) + b"\n")
        self._out.flush()


class Reached(NamedTuple):
    """The most `points` measured by an attempt, by task, part, instance and host, since an attempt
    only resumes one of its host; and the `ends` of processes, by task, part and the point that was
    running."""

    points: Counter[tuple[str, int, str, str]]
    ends: Counter[tuple[str, int, int]]


class Attempts:
    """The folder `attempts` of a campaign."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder, "attempts")

    def all(self, task: str = "") -> list[Begun]:
        """All attempts, or those at one task, by name, without invalid files."""
        attempts = map(self._read, self._names(task))
        return [one for one in attempts if one is not None]

    def _names(self, task: str) -> list[str]:
        prefix = f"{task}~" if task else ""
        return [name for name in self._folder.files() if name.startswith(prefix)]

    def under_way(self) -> int:
        """Number of measured points that workers have not delivered yet."""
        return sum(len(one.lines) for one in self.all() if one.alive)

    def count(self) -> int:
        """Number of files."""
        return len(self._folder.files())

    def reached(self) -> Reached:
        """Progress in tasks that are not delivered; an attempt that stopped in order without a new
        point adds none, or a task that always fails would be submitted for ever."""
        points, ends = Counter[tuple[str, int, str, str]](), Counter[tuple[str, int, int]]()
        for one in self.all():
            part = one.task, one.place.part
            where = (*part, one.place.on, one.place.host)
            points[where] = max(points[where], len(one.lines))
            if one.open is not None:
                ends[(*part, one.open)] += 1
        return Reached(points, ends)

    @contextmanager
    def beginning(self, task: str, place: Place) -> Iterator[Attempt]:
        """A new attempt; an exception that ends it is noted, except for a program that was killed.

        Raises: OSError.
        """
        host = _HOST.sub("_", place.host)[:60]
        self._folder.make()
        with self._folder.open(f"{task}~{host}~{uuid.uuid4().hex[:12]}.jsonl", "ab") as out:
            with suppress(OSError):  # no locks on this file system: no attempt then seems alive
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attempt = Attempt(out, place)
            try:
                yield attempt
            except ProgramKilled:
                raise  # its point stays open, and is given up after several attempts
            except BaseException as error:
                with suppress(OSError):
                    attempt.ended(reason_of(error))
                raise

    def forget(self, task: str) -> None:
        """Remove the attempts of a task that is done. Raises: OSError."""
        for name in self._names(task):
            self._folder.remove(name)

    def _read(self, name: str) -> Begun | None:
        try:
            with self._folder.open(name, "rb") as file:
                alive = _locked(file)
                raw = file.read(_MOST_BYTES)
            whole = raw[: raw.rfind(b"\n") + 1].splitlines()
            return _begun(name, whole, alive)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None  # its lines are measured again, and its open point is not counted


def _locked(file: BinaryIO) -> bool:
    """True if another process holds the lock of a file."""
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
        event: Mapping[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        if "start" in event:
            started = msgspec.convert(event["start"], type=int)
        elif "state" in event:
            states.append(msgspec.convert(event["state"], type=Moment))
        elif "ended" in event:
            started, ended = None, str(event["ended"])
    task = name.partition("~")[0]
    return Begun(name, task, place, points, states, started, ended, alive)


class HostTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one host: tasks done, running, stopped after their begin, and points given up.
    Tasks without a host name were measured by `campaign run` itself."""

    host: str
    instance: str
    done: int = 0
    running: int = 0
    stopped: int = 0
    given_up: int = 0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tasks by state. `waiting` are submitted and not begun; None while the executor is
    not available. `points_given_up` ended every process that tried them."""

    done: int
    running: int
    waiting: int | None
    stopped: int
    points_given_up: int
    hosts: list[HostTasks]


def executor_named(name: str, options: ExecutorOptions) -> Executor:
    """An executor plug-in. Raises: UsageError, MissingDependency, PluginError."""
    executor: Executor = plugins.created("executor", name, options)
    return executor


def open_chunks(
    campaign: Campaign, executor: Executor | None = None
) -> dict[int, Mapping[int, ChunkState] | None]:
    """The chunks that have not ended, by submission; None if their executor is not available.
    Submissions of `executor`, and those of other executors that outlive their coordinator."""
    submissions, chunks = Submissions(campaign.folder), dict[int, Mapping[int, ChunkState] | None]()
    for number in submissions.open():
        frozen, job = submissions.read(number), submissions.job(number).job
        own = executor if executor is not None and executor.name == frozen.executor else None
        if own is not None and not own.detached:
            chunks[number] = own.states(job)
            continue
        try:
            one = own or executor_named(frozen.executor, ExecutorOptions(address=frozen.address))
            if one.detached:
                chunks[number] = None if one.available() is not None else one.states(job)
        except EmbeddbError:
            chunks[number] = None
    return chunks


def spread_of(campaign: Campaign) -> Spread:
    """Tasks of a campaign by state and host. Raises: InputError for invalid files."""
    chunks, submissions = open_chunks(campaign), Submissions(campaign.folder)
    tasks = {task.id: task for task in campaign.tasks()}
    done = {name for name, task in tasks.items() if not campaign.missing(task)}
    attempts = [a for a in Attempts(campaign.folder).all() if a.task in tasks.keys() - done]
    running = {a.task: a for a in attempts if _runs(a, chunks)}
    begun = {a.task: a for a in attempts} | running
    waiting: set[str] = set()
    for number, states in chunks.items():
        lists = submissions.read(number).chunks
        live = [at for at, state in (states or {}).items() if state in ("waiting", "running")]
        waiting.update(name for at in live if at < len(lists) for name in lists[at])
    hosts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name in done:
        outcome = campaign.outcome(tasks[name])
        counts = hosts[outcome.host, campaign.instance_of(tasks[name])]
        counts.update(done=1, given_up=outcome.given_up)
    for name, one in begun.items():
        hosts[one.place.host, one.place.on]["running" if name in running else "stopped"] += 1
    unknown = any(states is None for states in chunks.values())
    return Spread(
        done=len(done),
        running=len(running),
        waiting=None if unknown else len((waiting & tasks.keys()) - done - running.keys()),
        stopped=len(begun) - len(running),
        points_given_up=sum(campaign.outcome(tasks[name]).given_up for name in done),
        hosts=[
            HostTasks(host=host, instance=on, **counts)
            for (host, on), counts in sorted(hosts.items())
        ],
    )


def _runs(one: Begun, chunks: Mapping[int, Mapping[int, ChunkState] | None]) -> bool:
    """True if an attempt is running: by its executor, else by the lock of its file, which is only
    visible on the same host."""
    states = chunks.get(one.place.submission)
    if states is None or one.ended:
        return one.alive
    return one.alive or states.get(one.place.chunk) == "running"
