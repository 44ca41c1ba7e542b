"""Several processes on one socket: started together, started again where one died, ended together.

uvicorn has such a thing, but it hands its workers an application by name or by pickle, and knows no
end of theirs where it is killed itself; ours get their orders through a pipe, and end when it does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import msgspec

from embeddb.core.errors import StoreError
from embeddb.ui.serve.workers.worker import Orders, Told

__all__ = ["Supervisor"]

#: Seconds in which workers have to answer at first, and in which they have to end.
_START_S, _END_S = 120.0, 8.0
_LOOK_S = 0.2
#: Before a worker that did not live for `_LIVED_S` is started again: doubled up to the last.
_FIRST_PAUSE_S, _MOST_PAUSE_S, _LIVED_S = 0.2, 30.0, 10.0


class _Worker:
    """A process, and what it said."""

    def __init__(self, orders: Orders) -> None:
        # -P: nothing of the folder the server was started in is imported.
        command = [sys.executable, "-P", "-m", "embeddb.ui.serve.workers.worker"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[orders.socket],
            start_new_session=True,  # Ctrl-C is for the supervisor
        )
        self.born = time.monotonic()
        self.told: Told | None = None
        self._order(orders)
        threading.Thread(target=self._listen, daemon=True).start()

    def _order(self, orders: Orders) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended already, and is found so
            self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            try:
                self.told = msgspec.json.decode(said.readline(), type=Told)
            except msgspec.MsgspecError:
                self.told = Told(f"worker {self.process.pid} ended before it answered")

    def end(self) -> None:
        """Ask it to; `wait` sees to it."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.terminate()
        with suppress(OSError):
            self.process.stdin.close()

    def wait(self, deadline: float) -> None:
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Supervisor:
    """`count` workers with the same orders; `note` is told of each that ends. A context manager."""

    def __init__(self, orders: Orders, count: int, note: Callable[[str], None]) -> None:
        self._orders, self._note = orders, note
        self._workers: list[_Worker | None] = [None] * count
        self._pauses = [_FIRST_PAUSE_S] * count
        self._due = [0.0] * count
        self._ended = threading.Event()
        self._signals = ExitStack()

    def __enter__(self) -> Supervisor:
        """Raises: StoreError where one does not answer; KeyboardInterrupt at the end's signal."""
        self._signals.enter_context(_signalled(self._ended))
        try:
            self._workers = [_Worker(self._orders) for _ in self._workers]
            self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.end()
        deadline = time.monotonic() + _END_S
        for worker in workers:
            worker.wait(deadline)
        self._signals.close()

    def _await(self) -> None:
        deadline = time.monotonic() + _START_S
        for worker in self._workers:
            assert worker is not None
            while worker.told is None and time.monotonic() < deadline:
                if self._ended.wait(0.02):
                    raise KeyboardInterrupt
            told = worker.told or Told(f"a worker did not answer within {_START_S:g} s")
            if told.error:
                raise StoreError(told.error, hint=told.hint)

    def run(self) -> None:
        """Until SIGINT or SIGTERM."""
        while not self._ended.wait(_LOOK_S):
            for at in range(len(self._workers)):
                self._look_after(at)

    def _look_after(self, at: int) -> None:
        worker, now = self._workers[at], time.monotonic()
        if worker is None:
            if now >= self._due[at]:
                self._workers[at] = _Worker(self._orders)
        elif worker.process.poll() is not None:
            worker.end()
            lived = now - worker.born > _LIVED_S
            pause = _FIRST_PAUSE_S if lived else self._pauses[at]
            self._pauses[at] = min(2 * pause, _MOST_PAUSE_S)
            self._workers[at], self._due[at] = None, now + pause
            self._note(f"{_how(worker)}; another takes its place in {pause:g} s")


def _how(worker: _Worker) -> str:
    code, told = worker.process.returncode, worker.told
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = f": {told.error}" if told is not None and told.error else ""
    return f"worker {worker.process.pid} ended ({how}){why}"


@contextmanager
def _signalled(ended: threading.Event) -> Iterator[None]:
    def end(_: int, __: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
