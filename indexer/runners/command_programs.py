"""A single run of a program: bounded output, limited time, no process left behind."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import Pattern
from embeddb.kernels.machine_failures import AGAIN, Deadline
from embeddb.nests.nest import Nest
from indexer.runners.harness.worker_process import kill_group

if TYPE_CHECKING:
    from embeddb.core.config import Op
    from embeddb.core.workload import Workload
    from embeddb.platforms.command import CommandSpec, TimeSpec


#: Seconds to wait for output in the pipes after the program has ended.
_DRAIN_S = 0.05
_POLL_S = 0.02
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a program. `problem` is "" if it ended by itself, else "timeout", "output" (it wrote
    more than allowed) or one line why these arguments cannot be passed; `code` is its exit status
    then, negative for a signal."""

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
    output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    with ExitStack() as at_end:
        try:
            with _interrupted_later():
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
                at_end.callback(kill_group, process)
        except ValueError as error:
            return Ended(f"cannot be started: {error}", 0, b"", b"")
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
            if error.errno == errno.E2BIG:  # the arguments are too long
                return Ended(problem, 0, b"", b"")
            raise RunnerUnavailable(f"{argv[0]} {problem}", hint=f"correct that, {AGAIN}") from None
        if max_memory:
            with suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_AS, (max_memory, max_memory))
        problem = _read(process, output, deadline, max_bytes)
    return Ended(problem, process.returncode, bytes(output["stdout"]), bytes(output["stderr"]))


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Raise an interrupt of the block at its end: `Popen` waits for a program that runs already,
    and one that is interrupted there leaves it without an owner."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *about: seen.append(about))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if seen:
            handler(*seen[-1])


def _read(
    process: subprocess.Popen[bytes],
    output: dict[str, bytearray],
    deadline: Deadline,
    max_bytes: int,
) -> str:
    """Collect output until the program ends; returns the problem, or ""."""
    assert process.stdout is not None and process.stderr is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, "stdout")
        waiting.register(process.stderr, selectors.EVENT_READ, "stderr")
        ended_at = float("inf")
        while True:
            now, left_s = time.monotonic(), deadline.left_s()
            if ended_at == float("inf") and _ended(process):
                ended_at = now
            # A child that outlives the program may keep the pipes open: they are not waited for.
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
                stream = output[key.data]
                stream += data
                if len(stream) > max_bytes:
                    del stream[max_bytes:]
                    return "output"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """True if it has ended; it is not reaped yet, so its group's number remains reserved."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, how) is not None


_MAX_TIMES = 10_000
#: Units that may stand behind a number, as `TimeSpec.unit` has them.
_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), "us"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("cycle", "cycles"), "cycles"),
}
_BEHIND = re.compile(r"[ \t]*([^\W\d_]+)")


def read_times(spec: TimeSpec, text: str) -> list[float]:
    """Seconds of every repeat. Raises: ValueError with one line if the output has no such times."""
    if spec.regex is not None:
        raw: list[Any] = [_matched(match, spec) for match in spec.regex.finditer(text)]
    else:
        raw = _json_field(text, spec.path)
    if not raw:
        raise ValueError(f"no time in its {spec.stream}")
    if len(raw) > _MAX_TIMES:
        raise ValueError(f"{len(raw)} times in its {spec.stream}, at most {_MAX_TIMES} are read")
    return [_seconds(value, spec) for value in raw]


def _matched(match: re.Match[str], spec: TimeSpec) -> str:
    """The number. Raises: ValueError if another unit stands right behind it."""
    number = match[1] or ""
    behind = _BEHIND.match(match.string, match.end(1)) if number else None
    unit = _UNITS.get(behind[1], spec.unit) if behind else spec.unit
    if unit != spec.unit:
        shown = one_line(match.string[match.start(1) : match.end(1) + 20].splitlines()[0])[:60]
        raise ValueError(f"a time of {shown!r}, and command.time.unit is {spec.unit!r}")
    return number


def _seconds(value: Any, spec: TimeSpec) -> float:
    shown = one_line(repr(value))[:60]
    try:
        seconds = float(value) * spec.unit_s
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"a time of {shown}, which is no number") from None
    if isinstance(value, bool) or not 0 < seconds < math.inf:
        raise ValueError(f"a time of {shown}, which is not positive and finite")
    return seconds


def _json_field(text: str, path: Sequence[str]) -> list[Any]:
    """The value or list at a path of the text's JSON: all of it, or its last line."""
    lines = text.strip().splitlines()
    for part in (text, *lines[-1:]):
        try:
            value = json.loads(part)
            break
        except (ValueError, RecursionError):
            continue
    else:
        raise ValueError("no JSON, neither the whole output nor its last line")
    for key in path:
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise ValueError(f"no field {'.'.join(path)} in its JSON")
    return value if isinstance(value, list) else [value]


def one_line(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


#: Upper bounds of the bytes of an entry and of a row in any of the formats.
_ENTRY_BYTES, _ROW_BYTES = 48, 24


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder. Raises: RunnerUnavailable if it cannot be created."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="embeddb-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritten(error) from None
    with folder as text:
        yield Path(text)


def most_bytes(subject: Workload) -> int:
    """Upper bound of the size of a workload's file in bytes."""
    if isinstance(subject, Pattern):
        return subject.nnz * _ENTRY_BYTES + subject.shape[0] * _ROW_BYTES
    return len(kind_of(subject.kind).write(subject))


def write_subject(subject: Workload, folder: Path, spec: CommandSpec, op: Op, seed: int) -> Path:
    """Write a matrix with values, in the form that a command requests, or another workload as JSON.

    Raises: RunnerUnavailable if it cannot be written completely; UsageError for a nest with a
    matrix, which its JSON lacks.
    """
    if isinstance(subject, Nest) and subject.matrix_ids:
        raise UsageError(
            f"{subject.name or subject.id} has a matrix, which cannot be passed to a command"
        )
    path = folder / (f"matrix.{spec.matrix}" if op.workload.sparse else f"{op.kind}.json")
    try:
        with path.open("wb") as out:
            if isinstance(subject, Pattern):
                _write_matrix(subject, out, spec, op, seed)
            else:
                out.write(kind_of(subject.kind).write(subject))
        path.chmod(0o400)  # every configuration is to see the same file
    except OSError as error:
        raise _unwritten(error) from None
    return path


def _write_matrix(pattern: Pattern, out: BinaryIO, spec: CommandSpec, op: Op, seed: int) -> None:
    """Write a matrix file; `smtx` has no values. Raises: OSError."""
    if spec.matrix == "smtx":
        m, n = pattern.shape
        out.write(f"{m}, {n}, {pattern.nnz}\n".encode())
        for numbers in (pattern.indptr, pattern.indices):
            out.write((" ".join(map(str, numbers.tolist())) + "\n").encode())
        return
    from scipy.io import mmwrite
    from scipy.sparse import csr_matrix, save_npz

    matrix = csr_matrix(pattern.to_scipy(np.float64 if op.dtype == "f64" else np.float32))
    if spec.values == "random":
        # Never 0: a program might drop such an entry, and the pattern would be another.
        matrix.data[:] = 1.0 - np.random.default_rng(seed).random(pattern.nnz, np.float32)
    if spec.matrix == "npz":
        save_npz(out, matrix, compressed=False)
    else:  # to a stream of ours: by its name scipy would write it without a look at errors
        mmwrite(out, matrix, field="real", symmetry="general")


def _unwritten(error: OSError) -> RunnerUnavailable:
    return RunnerUnavailable(
        f"its file cannot be written for the program: {error.strerror or error}",
        hint=f"free space in the folder for temporary files, or name another by TMPDIR; {AGAIN}",
    )
