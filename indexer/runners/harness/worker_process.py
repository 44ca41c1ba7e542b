"""A worker process that answers requests, as seen from its parent, and the facts of a machine
stored between processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from embeddb.core.errors import RunnerUnavailable
from embeddb.core.files.safe_write import whole_file
from embeddb.kernels.build import cache_folder
from embeddb.kernels.machine_failures import AGAIN, Deadline, blamed_line, killed_by

_ROOT = Path(__file__).resolve().parents[3]
#: Variables of a worker with threads of OpenMP: they sleep while they wait, and are not pinned.
THREADS_ENV = {
    "OMP_WAIT_POLICY": "passive",
    "OMP_DYNAMIC": "false",
    "OMP_PROC_BIND": "false",
    "OPENBLAS_NUM_THREADS": "1",
}


class WorkerProcess:
    """One worker process at a time, started when first needed and again after it died.

    `request` returns the worker's reply, or `{"status": "timeout"}` or `{"status": "crash"}` and an
    `error` when there is none; the worker is gone then, and `generation` differs for the next one.
    Not thread-safe; belongs to the process that created it. A worker that cannot be started, that
    was killed or stopped from outside, or that replies `{"status": "machine"}`, raises
    RunnerUnavailable: that is no answer to any request. `python` is the interpreter, by default
    this one.
    """

    def __init__(self, module: str, *, env: Mapping[str, str], python: str = "") -> None:
        self._command = [python or sys.executable, "-P", "-m", module]
        self._env = {**os.environ, **env}
        path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        self._env["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._pending = b""
        self._end: weakref.finalize[..., Any] | None = None
        self.generation = 0

    def ensure(self) -> int:
        """Start the worker unless it lives; returns its generation.

        Raises: RunnerUnavailable if it cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return self.generation
        self.close()
        try:
            self._start()
        except OSError as error:
            if self._errors is not None:
                self._errors.close()
            reason = error.strerror or str(error)
            raise _unable(f"the worker process cannot be started: {reason}") from None
        self.generation += 1
        return self.generation

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._env,
            bufsize=0,
            start_new_session=True,  # Ctrl-C goes to the parent alone, which ends the worker
        )
        self._end = weakref.finalize(self, _end, self._process, self._errors, os.getpid())

    def request(
        self, message: Mapping[str, Any], payload: Sequence[Any] = (), *, timeout_s: float
    ) -> dict[str, Any]:
        """Send one request, followed by buffers of raw bytes, and wait for its reply.

        Raises: RunnerUnavailable if a failure of the machine prevented an answer.
        """
        self.ensure()
        process = self._process
        assert process is not None and process.stdin is not None
        views = [memoryview(part).cast("B") for part in payload]
        head = {**message, "bytes": sum(v.nbytes for v in views)}
        deadline = Deadline(timeout_s)
        try:
            for data in (memoryview(json.dumps(head).encode() + b"\n"), *views):
                while data:
                    data = data[process.stdin.write(data) :]
            line = self._line(deadline)
        except BrokenPipeError:
            line = b""
        except BaseException:
            self.close()
            raise
        if line is None:
            return self._late(timeout_s)
        reply = dict(json.loads(line)) if line else self._died()
        if reply["status"] == "machine":
            raise _unable(reply["error"])
        return reply

    def _late(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        stopped = _is_stopped(self._process.pid)
        self.close()
        if stopped:
            raise _unable("the worker process was stopped by a signal")
        return {"status": "timeout", "error": f"no answer within {timeout_s:g} s, killed"}

    def _line(self, deadline: Deadline) -> bytes | None:
        """One line of the reply, empty at the end of the stream, None after the deadline."""
        process = self._process
        assert process is not None and process.stdout is not None
        handle = process.stdout.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while b"\n" not in self._pending:
            # Looked at also when the time is up: this process may have been stopped meanwhile.
            if not poll.poll(deadline.wait_s() * 1000):
                if deadline.left_s() > 0:
                    continue
                return None
            data = os.read(handle, 1 << 16)
            if not data:
                return b""
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self) -> dict[str, Any]:
        process, errors = self._process, self._errors
        assert process is not None and errors is not None
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        errors.seek(0)
        last_line = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        how = f"exit status {code}" if code >= 0 else f"signal {_name(-code)}"
        error = ": ".join([f"the worker ended with {how}", *last_line])
        blamed = killed_by(code) or any(map(blamed_line, last_line))
        return {"status": "machine" if blamed else "crash", "error": error}

    def close(self) -> None:
        """End the worker if there is one. The session can be used again."""
        if self._end is not None:
            self._end()
        self._process = self._errors = self._end = None
        self._pending = b""


def _unable(reason: str) -> RunnerUnavailable:
    return RunnerUnavailable(
        reason, hint=f"look at the memory, space and processes that are left, {AGAIN}"
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return str(number)


def _is_stopped(pid: int) -> bool:
    """True if a process waits for SIGCONT, as far as the system reports it."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return about.rpartition(")")[2].split()[:1] == ["T"]


def _end(process: subprocess.Popen[bytes], errors: IO[bytes], owner: int) -> None:
    """Kill the worker and close its pipes, unless this is a fork of its owner."""
    if os.getpid() != owner:
        return
    kill_group(process)
    errors.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all others of its group, which may have outlived it, reap it and close
    its pipes."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


class Closing(ABC):
    """A context manager that calls `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class WorkingRunner(Closing):
    """Base of runners with a worker process."""

    def __init__(self, worker: str, env: Mapping[str, str], python: str = "") -> None:
        self.session = WorkerProcess(worker, env=env, python=python)

    def close(self) -> None:
        """End the worker process."""
        self.session.close()

    @abstractmethod
    def available(self) -> str | None:
        """None if it can run here, else the reason in one line."""

    def require_available(self) -> None:
        """Raises: RunnerUnavailable."""
        if (reason := self.available()) is not None:
            raise RunnerUnavailable(reason)


def stored_facts(identity: Mapping[str, str], probe: str) -> dict[str, str]:
    """Stored facts of an environment by a probe; empty if there are none, or their file is damaged.
    `probe` is its source or version: another one measures other things under the same names."""
    try:
        stored = json.loads(_file(identity, probe).read_bytes())
        figures = {str(k): float(v) for k, v in stored["figures"].items()}
        whole = stored["sum"] == _sum(figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return _texts(figures) if whole else {}


def store_facts(
    identity: Mapping[str, str], probe: str, figures: Mapping[str, float]
) -> dict[str, str]:
    """Store measured figures, and return them as facts. If they cannot be written they are measured
    again later."""
    path = _file(identity, probe)
    body = json.dumps({"figures": dict(figures), "sum": _sum(figures)}).encode()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(path) as out:
            out.write(body)
    return _texts(figures)


def _texts(figures: Mapping[str, float]) -> dict[str, str]:
    return {k: f"{v:g}" for k, v in figures.items() if 0 < v < math.inf}


def _file(identity: Mapping[str, str], probe: str) -> Path:
    parts = [*(f"{k}={identity[k]}" for k in sorted(identity)), probe]
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{key}.facts"


def _sum(figures: Mapping[str, float]) -> str:
    text = json.dumps(dict(sorted(figures.items())))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
