"""The executor protocol, its options, and the base class of executors whose jobs are threads."""

from __future__ import annotations

import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

#: A chunk in none of these states has ended or failed.
ChunkState = Literal["waiting", "running", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """User options of an executor: the address of a service, and a script."""

    address: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Options of a worker beside its tasks: the repeats and threads of a measurement, and the
    platform's file if a command in it measures."""

    repeats: int = 5
    threads: int = 0
    platform: str = ""

    def words(self) -> list[str]:
        """The same as options of `embeddb campaign work`."""
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
        """Unique name in a queue."""
        return f"embeddb-{self.campaign}-{self.number}"

    @property
    def logs(self) -> Path:
        """Existing folder for the output of workers, a file CHUNK.log each."""
        return self.folder / "submit" / f"{self.number:04d}"

    def command(self, chunk: int | None = None) -> list[str]:
        """Command line for one chunk; without one, `--chunk N` is to be appended."""
        work = [sys.executable, "-m", "embeddb", "campaign", "work", str(self.folder)]
        words = [*work, "--submission", str(self.number), *self.effort.words()]
        return words if chunk is None else [*words, "--chunk", str(chunk)]


class Executor(Protocol):
    """Run the chunks of submissions. Constructed with `ExecutorOptions`.

    Requirements: `start` has every chunk's command run at least once, on any machine that sees the
    campaign's folder under the same path, or ends without. Results are in the folder's files only.
    A chunk that is run twice, also at the same time, does no harm. Where `detached`, started work
    continues when this process ends, and another process can query its states; else `close` ends
    it.
    """

    name: str
    detached: bool

    def available(self) -> str | None:
        """None if it can be used here, else one line with the reason and what to install."""

    def start(self, work: Submission, *, after: str = "") -> str:
        """Run the chunks, none before all of job `after` have ended or failed; returns the name of
        the job.

        Raises: UsageError for unsupported options; InputError for a rejected script or request.
        """

    def states(self, job: str) -> Mapping[int, ChunkState] | None:
        """Chunks that have not ended; empty for an unknown or forgotten job. None if the states
        cannot be queried now."""

    def cancel(self, job: str) -> None:
        """Cancel waiting chunks; running ones end now, or with their chunk."""

    def close(self) -> None:
        """Release all resources; further calls do nothing."""


@dataclass(slots=True)
class Job:
    """A submission run by a thread of this process."""

    work: Submission
    states: dict[int, ChunkState]
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def end(self, chunk: int) -> None:
        """Mark a chunk as ended."""
        self.states.pop(chunk, None)


class JobsInOrder(ABC):
    """Base of executors whose jobs live in this process: a thread for each job, which waits for the
    job that it follows. Subclasses process a job and return when all its chunks have ended."""

    detached = False
    name = ""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    @abstractmethod
    def _work_off(self, job: Job) -> None:
        """Run every chunk and mark its end; return early when `job.stop` is set."""

    def start(self, work: Submission, *, after: str = "") -> str:
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
        entry = self._jobs.get(job)
        return {} if entry is None else dict(entry.states)

    def cancel(self, job: str) -> None:
        entry = self._jobs.get(job)
        if entry is not None and entry.thread is not None:
            entry.stop.set()
            entry.thread.join()

    def close(self) -> None:
        for job in self._jobs.values():
            job.stop.set()
        for name in list(self._jobs):
            self.cancel(name)
