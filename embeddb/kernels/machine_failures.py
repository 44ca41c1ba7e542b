"""Failures of the machine, as opposed to those of a configuration.

A full disk, a killed compiler or worker, a process that cannot start: none of this is stored as
the status of a configuration. A runner raises `RunnerUnavailable` instead, and the point is
measured another time. docs/reference/cpu.md has the classification.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import tempfile
import time
from pathlib import Path

from embeddb.core.errors import RunnerUnavailable

#: Second half of the hint: how to continue.
AGAIN = "then run the same command again: nothing is stored of failed measurements"
#: Signals sent by a person, by the system (out of memory, shutdown), or at a limit of the shell;
#: not those caused by a kernel itself (SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGBUS).
_FROM_OUTSIDE = frozenset(
    {
        *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGXCPU, signal.SIGXFSZ),
    }
)
#: Of these, what the system sends for use of memory, time or disk: perhaps the program's own.
LIMITS = frozenset(one.name for one in (signal.SIGKILL, signal.SIGXCPU, signal.SIGXFSZ))
_SPACE = (errno.ENOSPC, errno.EDQUOT)
_OTHERS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS)
_FULL = re.compile("|".join(re.escape(os.strerror(code)) for code in _SPACE))
#: Messages of the system, and those of gcc, clang, ld and libgomp, in English.
_BLAMED = re.compile(
    "|".join(
        [
            *(re.escape(os.strerror(code)) for code in (*_SPACE, *_OTHERS, errno.EFBIG)),
            r"(?i:out of memory|memory exhausted|bad_alloc)",
            r"(?:Killed|Terminated|Hangup|limit exceeded)(?: signal)? terminated program",
            r"unable to execute command: (?:Killed|Terminated|Hangup|.*limit exceeded)",
            r"terminated with signal (?:1|2|9|15|24|25)\b",
            r"Thread creation failed",
        ]
    )
)


class ProgramKilled(RunnerUnavailable):
    """A user's program that ended by `signal`, one of `LIMITS`, at one configuration. A single end
    says nothing about it: another process may have used up the memory. A second one at the same
    point does if others still run, which a campaign tries."""

    def __init__(self, message: str, *, signal: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.signal = signal


#: Gap between two reads of the clock, in seconds, that shows that the process was stopped.
_STOPPED_S = 2.0
_LOOK_S = 0.25
_ROOM_BYTES = 1 << 16


def killed_by(code: int) -> str:
    """Name of the external signal that ended a process, by its return code; else ""."""
    return signal.Signals(-code).name if -code in _FROM_OUTSIDE else ""


def blamed_line(output: str) -> str:
    """First line in the output of a compiler or worker that blames the machine."""
    return _first(_BLAMED, output)


def full_line(output: str) -> str:
    """First line that reports a full disk. No other message of a user's program is trusted: its
    configuration may just need too much memory."""
    return _first(_FULL, output)


def _first(what: re.Pattern[str], output: str) -> str:
    return next((line.strip() for line in output.splitlines() if what.search(line)), "")


def refuse_full(folder: Path) -> None:
    """Check that a folder can take a file. Raises: RunnerUnavailable."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
    except OSError as error:
        raise RunnerUnavailable(
            f"no file can be written in {folder}: {error.strerror}",
            hint=f"free space there, or name another folder by TMPDIR; {AGAIN}",
        ) from None


class Deadline:
    """Time limit in seconds during which this process runs, excluding time while it was stopped.
    For that, call `left_s` at least every `wait_s` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seen = time.monotonic()
        self._end = self._seen + seconds

    def left_s(self) -> float:
        """Seconds left; at most 0 after the limit."""
        now = time.monotonic()
        if now - self._seen > _STOPPED_S:
            self._end += now - self._seen
        self._seen = now
        return self._end - now

    def wait_s(self) -> float:
        """Longest wait until the next call of `left_s`; 0 after the limit."""
        return min(max(self.left_s(), 0.0), _LOOK_S)
