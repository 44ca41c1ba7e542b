"""What a failure says of the machine, and not of the configuration that it happened to.

A disk without space, a compiler or worker that was killed, a process that cannot start: none of
this is a status of a configuration, for it would be kept for good. A runner raises
`RunnerUnavailable` instead; nothing is stored of the point, and it is measured another time.
docs/reference/cpu.md tells what counts as which.
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

#: How to go on, behind what to do about the machine.
AGAIN = "then run the same command again: nothing is stored of what could not be measured"
#: Sent by a person, by the system when memory runs out or at its end, or at a limit of the shell.
#: What a kernel does to itself (SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGBUS) is not among them.
_FROM_OUTSIDE = frozenset(
    {
        *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGXCPU, signal.SIGXFSZ),
    }
)
_SPACE = (errno.ENOSPC, errno.EDQUOT)
_OTHERS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS)
_FULL = re.compile("|".join(re.escape(os.strerror(code)) for code in _SPACE))
#: Beside the words of the system those of gcc, clang, ld and libgomp, in English.
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
#: A gap of this length between two looks at the clock: the process did not run meanwhile.
_STOPPED_S = 2.0
_LOOK_S = 0.25
_ROOM_BYTES = 1 << 16


def killed_by(code: int) -> str:
    """The name of the signal from outside that ended a process, by its return code; else ""."""
    return signal.Signals(-code).name if -code in _FROM_OUTSIDE else ""


def blamed_line(said: str) -> str:
    """The first line of what a compiler or worker of ours complains of that blames the machine."""
    return _first(_BLAMED, said)


def full_line(said: str) -> str:
    """The first line that says that a disk is full: all that a stranger's program is believed, for
    a configuration may need more memory than there is."""
    return _first(_FULL, said)


def _first(what: re.Pattern[str], said: str) -> str:
    return next((line.strip() for line in said.splitlines() if what.search(line)), "")


def refuse_full(folder: Path) -> None:
    """Raises: RunnerUnavailable if a folder cannot take a file now."""
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
    """So many seconds in which this process runs: what it was stopped for does not count. For that
    `left_s` is to be asked for at least every `wait_s` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seen = time.monotonic()
        self._end = self._seen + seconds

    def left_s(self) -> float:
        """Not above 0 once the time is up."""
        now = time.monotonic()
        if now - self._seen > _STOPPED_S:
            self._end += now - self._seen
        self._seen = now
        return self._end - now

    def wait_s(self) -> float:
        """How long to wait at most before the next look; 0 once the time is up."""
        return min(max(self.left_s(), 0.0), _LOOK_S)
