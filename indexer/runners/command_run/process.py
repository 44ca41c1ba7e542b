"""One program run once: its output bounded, its time limited, and nothing of it left behind."""

from __future__ import annotations

import errno
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels.machine_failures import AGAIN, Deadline

#: How long output that is still in the pipes is waited for once the program itself has ended.
_DRAIN_S = 0.05
_POLL_S = 0.02
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `problem` is "" for an end of its own, else "timeout", "output" (it
    wrote more than allowed) or the line that says why these arguments cannot be passed; `code` is
    its exit status then, negative for a signal."""

    problem: str
    code: int
    stdout: bytes
    stderr: bytes


def run_once(
    argv: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    deadline: Deadline,
    max_bytes: int,
    max_memory: int,
) -> Ended:
    """Run a program in a session of its own until it ends or the time is up.

    Of stdout and stderr at most `max_bytes` each are kept; a program that writes more is killed.
    `max_memory` bounds the address space of each of its processes, in bytes; 0 does not. Whatever
    happens, all processes of the session's group are killed before this returns or raises.

    Raises: RunnerUnavailable if it cannot be started.
    """
    try:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except ValueError as error:
        return Ended(f"cannot be started: {error}", 0, b"", b"")
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
        if error.errno == errno.E2BIG:  # what it is told is that long
            return Ended(problem, 0, b"", b"")
        raise RunnerUnavailable(f"{argv[0]} {problem}", hint=f"mend that, {AGAIN}") from None
    found: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        if max_memory:
            with suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_AS, (max_memory, max_memory))
        problem = _read(process, found, deadline, max_bytes)
    finally:
        _kill(process)
    return Ended(problem, process.returncode, bytes(found["stdout"]), bytes(found["stderr"]))


def _read(
    process: subprocess.Popen[bytes],
    found: dict[str, bytearray],
    deadline: Deadline,
    max_bytes: int,
) -> str:
    """Collect output until the program ends; returns what went wrong, or ""."""
    assert process.stdout is not None and process.stderr is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, "stdout")
        waiting.register(process.stderr, selectors.EVENT_READ, "stderr")
        ended_at = float("inf")
        while True:
            now, left_s = time.monotonic(), deadline.left_s()
            if ended_at == float("inf") and _ended(process):
                ended_at = now
            # A child that outlives the program may hold the pipes open: they are not waited for.
            if ended_at < float("inf") and (not waiting.get_map() or now > ended_at + _DRAIN_S):
                return ""
            if left_s <= 0 and ended_at == float("inf"):
                return "timeout"
            if not waiting.get_map():
                time.sleep(_POLL_S / 10)
                continue
            for key, _ in waiting.select(max(0.0, min(_POLL_S, left_s))):
                data = os.read(key.fd, _CHUNK)
                if not data:
                    waiting.unregister(key.fileobj)
                held = found[key.data]
                held += data
                if len(held) > max_bytes:
                    del held[max_bytes:]
                    return "output"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it is not reaped yet, so its group's number stays its own."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, how) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group and reap the program. What it started may have outlived it."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
