"""What every executor offers, and what it is given."""

from __future__ import annotations

import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

#: A chunk that is in none of them has ended, however that was.
ChunkState = Literal["waiting", "running", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """What a user says of an executor: the address of a service, and a script of their own."""

    address: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a worker is told beside its tasks: the repeats and threads of a measurement, and the
    platform's file where a command of it measures."""

    repeats: int = 5
    threads: int = 0
    platform: str = ""

    def words(self) -> list[str]:
        """As options of `embeddb campaign work`."""
        named = ["--platform", self.platform] if self.platform else []
        return ["--repeats", str(self.repeats), "--threads", str(self.threads), *named]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Chunks 0 .. `chunks` - 1 of a campaign's tasks, frozen in `submit/NUMBER.json` of its folder.
    With `exclusive` each needs a node for itself: two timings on a node disturb one another."""

    folder: Path
    campaign: str
    number: int
    chunks: int
    exclusive: bool
    effort: Effort = field(default_factory=Effort)

    @property
    def name(self) -> str:
        """What a queue shows, and the same for nothing else."""
        return f"embeddb-{self.campaign}-{self.number}"

    @property
    def logs(self) -> Path:
        """The folder, which is there, for what workers print, a file CHUNK.log each."""
        return self.folder / "submit" / f"{self.number:04d}"

    def command(self, chunk: int | None = None) -> list[str]:
        """What a node runs for one chunk; without one, what `--chunk N` is to be added to."""
        work = [sys.executable, "-m", "embeddb", "campaign", "work", str(self.folder)]
        asked = [*work, "--submission", str(self.number), *self.effort.words()]
        return asked if chunk is None else [*asked, "--chunk", str(chunk)]


class Executor(Protocol):
    """Has the chunks of submissions worked on, somewhere. It is made with `ExecutorOptions`.

    Requirements: `start` has every chunk's command run at least once, on any machine that sees the
    campaign's folder under the same path, or ends without; what became of it is in the folder's
    files, and an executor is never asked. A chunk that is run twice, also at the same time, does no
    harm. Where `detached`, what was started goes on when this process ends, and another process can
    ask for its states; else `close` ends it.
    """

    name: str
    detached: bool

    def available(self) -> str | None:
        """None if it can be used here, else one line that says why not and what to install."""

    def start(self, work: Submission, *, after: str = "") -> str:
        """Have the chunks run, none before all of job `after` have ended, however they did; the
        name of the job.

        Raises: UsageError for options that it has not; InputError for a script, or a request, that
        is refused.
        """

    def states(self, job: str) -> Mapping[int, ChunkState] | None:
        """Chunks that have not ended; none of a job that is not known (any more). None where it
        cannot be asked now."""

    def cancel(self, job: str) -> None:
        """Have what waits not begin; what runs ends now, or with its chunk."""

    def close(self) -> None:
        """Give up what it holds; further calls do nothing."""


@dataclass(slots=True)
class Job:
    """A submission that a thread of this process looks after."""

    work: Submission
    states: dict[int, ChunkState]
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def end(self, chunk: int) -> None:
        """Note that a chunk has ended."""
        self.states.pop(chunk, None)


class JobsInOrder(ABC):
    """What executors share whose jobs live in this process: a thread for each, which waits for the
    job that it follows. Subclasses work a job off, and end with all its chunks ended."""

    detached = False
    name = ""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    @abstractmethod
    def _work_off(self, job: Job) -> None:
        """Have every chunk run and note its end; leave early when `job.stop` is set."""

    def start(self, work: Submission, *, after: str = "") -> str:
        """As `Executor.start`."""
        name = f"{self.name}-{uuid.uuid4().hex[:12]}"
        job = Job(work, dict.fromkeys(range(work.chunks), "waiting"))
        earlier = self._jobs.get(after)
        job.thread = threading.Thread(target=self._run, args=(job, earlier), daemon=True)
        self._jobs[name] = job
        job.thread.start()
        return name

    def _run(self, job: Job, earlier: Job | None) -> None:
        if earlier is not None and earlier.thread is not None:
            earlier.thread.join()
        try:
            if not job.stop.is_set():
                self._work_off(job)
        finally:
            left = dict.fromkeys(job.states, "cancelled") if job.stop.is_set() else {}
            job.states = dict[int, ChunkState](left)  # type: ignore[arg-type]  # values of a literal

    def states(self, job: str) -> Mapping[int, ChunkState] | None:
        """As `Executor.states`."""
        known = self._jobs.get(job)
        return {} if known is None else dict(known.states)

    def cancel(self, job: str) -> None:
        """As `Executor.cancel`."""
        known = self._jobs.get(job)
        if known is not None and known.thread is not None:
            known.stop.set()
            known.thread.join()

    def close(self) -> None:
        """As `Executor.close`."""
        for job in self._jobs.values():
            job.stop.set()
        for name in list(self._jobs):
            self.cancel(name)
