"""A child process that answers requests, seen from the parent: sent, awaited, killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["Session"]

_ROOT = Path(__file__).resolve().parents[3]


class Session:
    """One worker process at a time, started when first needed and again after it died.

    `request` answers with the worker's reply, or with `{"status": "timeout"}` or
    `{"status": "crash"}` and an `error` when there is none; the worker is gone then, and
    `generation` differs for the next one. Not thread-safe; belongs to the process that made it.
    """

    def __init__(self, module: str, *, env: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-P", "-m", module]
        self._env = {**os.environ, **env}
        path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        self._env["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._pending = b""
        self._end: weakref.finalize[..., Any] | None = None
        self.generation = 0

    def ensure(self) -> int:
        """Start the worker unless it lives; returns its generation."""
        if self._process is not None and self._process.poll() is None:
            return self.generation
        self.close()
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
        self.generation += 1
        return self.generation

    def request(
        self, message: Mapping[str, Any], payload: Sequence[Any] = (), *, timeout_s: float
    ) -> dict[str, Any]:
        """Send one request, with buffers of raw bytes behind it, and wait for its reply."""
        self.ensure()
        process = self._process
        assert process is not None and process.stdin is not None
        views = [memoryview(part).cast("B") for part in payload]
        head = {**message, "bytes": sum(v.nbytes for v in views)}
        deadline = time.monotonic() + timeout_s
        try:
            for data in (memoryview(json.dumps(head).encode() + b"\n"), *views):
                _send(process.stdin, data)
            line = self._line(deadline)
        except BrokenPipeError:
            line = b""
        except BaseException:
            self.close()
            raise
        if line is None:
            self.close()
            return {"status": "timeout", "error": f"no answer within {timeout_s:g} s, killed"}
        return dict(json.loads(line)) if line else self._died()

    def _line(self, deadline: float) -> bytes | None:
        """One line of the reply, empty at the end of the stream, None after the deadline."""
        process = self._process
        assert process is not None and process.stdout is not None
        handle = process.stdout.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                if time.monotonic() < deadline:
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
        said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return {"status": "crash", "error": ": ".join([f"the worker ended with {how}", *said])}

    def close(self) -> None:
        """End the worker if there is one. The session can be used again."""
        if self._end is not None:
            self._end()
        self._process = self._errors = self._end = None
        self._pending = b""


def _send(stream: IO[bytes], data: memoryview) -> None:
    while data:
        data = data[stream.write(data) :]


def _end(process: subprocess.Popen[bytes], errors: IO[bytes], owner: int) -> None:
    """Kill the worker and close what is open to it, unless this is a fork of its owner."""
    if os.getpid() != owner:
        return
    # The whole session: compilers that the worker started must not outlive it either.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            stream.close()
