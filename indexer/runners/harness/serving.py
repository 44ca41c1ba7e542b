"""Server loop of a child process: lines of JSON on stdin, followed by raw bytes.

Requests arrive as one line of JSON, followed by as many raw bytes as its `bytes` says; each is
answered by one line on the original stdout (all other output goes to stderr). The status of an
answer is that of a measurement, or `machine` for a failure of the machine. When stdin ends, the
process ends, even in the middle of a kernel. The other end is
`indexer.runners.harness.worker_process`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, BinaryIO

Reply = dict[str, Any]


class Answering:
    """Answer requests by methods of their names, with the bytes that follow if there are any."""

    def answer(self, request: Reply, payload: bytes) -> Reply:
        arguments = (request, payload) if payload else (request,)
        reply: Reply = getattr(self, request["do"])(*arguments)
        return reply


def serve(
    answer: Callable[[Reply, bytes], Reply], *, machine: tuple[type[Exception], ...] = (OSError,)
) -> None:
    """Answer requests and their raw bytes until stdin ends. Errors of `machine` are failures of the
    machine. (This module imports nothing of this project: another interpreter may run it.)"""
    sys.excepthook = _give_up
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)
    inbox: SimpleQueue[tuple[Reply, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    while True:
        request, payload = inbox.get()
        try:
            reply = answer(request, payload)
        except MemoryError:
            reply = {"status": "oom", "error": "the system has no memory left"}
        except machine as error:
            # A kernel opens nothing: its object cannot be loaded, a baseline not be compiled.
            reply = {"status": "machine", "error": " ".join(str(error).split())}
        data = (json.dumps(reply) + "\n").encode()
        while data:
            data = data[os.write(answers, data) :]


def _listen(stream: BinaryIO, inbox: SimpleQueue[tuple[Reply, bytes]]) -> None:
    """Pass requests on; at the end of the stream end the process, whatever it is doing."""
    while line := stream.readline():
        request = json.loads(line)
        count = request.get("bytes", 0)
        payload = stream.read(count)
        if len(payload) < count:
            break
        inbox.put((request, payload))
    if os.getpgrp() == os.getpid():  # with compilers it may have started
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _give_up(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """End at once: Python's own way out aborts on the lock of stdin, which the listener holds."""
    traceback.print_exception(kind, error, at)
    sys.stderr.flush()
    os._exit(1)
