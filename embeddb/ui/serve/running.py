"""Running the server: one process on a socket, until it is interrupted."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from embeddb.core.errors import EmbeddbError, StoreError, UsageError
from embeddb.database import Database, open_database
from embeddb.store import Store, open_store
from embeddb.ui.serve.access import LOOPBACK, Address
from embeddb.ui.serve.app import build_app

if TYPE_CHECKING:
    from starlette.applications import Starlette

#: Connections waiting to be accepted.
_WAITING = 128
#: Connections at a time; a browser opens six. Further ones get status 503.
_CONNECTIONS = 200
#: Trusted sources of forwarded headers: a proxy on this machine.
_PROXIES = ["127.0.0.1", "::1"]
#: Time limit of a request's head, in seconds, from the connection or its first byte.
HEAD_S = 20.0
#: Seconds until the next request, and `HEAD_S` more for unread data.
KEEP_S = 15


def listening(port: int, host: str = LOOPBACK) -> socket.socket:
    """A bound socket of an IP address of this machine; port 0 picks a free one.

    Raises: UsageError if the port is taken or not allowed, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio disables Nagle's delay only then.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
        place.listen(_WAITING)
    except OSError as e:
        place.close()
        if e.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"--host {host}: not an address of this machine", hint="0.0.0.0 is all of them"
            ) from None
        why = "in use" if e.errno == errno.EADDRINUSE else (e.strerror or str(e)).lower()
        raise UsageError(f"port {port}: {why}", hint="--port 0 picks a free one") from None
    return place


def serve(
    app: Starlette,
    place: socket.socket,
    *,
    behind_proxy: bool = False,
    started: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; running requests get a moment to finish. `behind_proxy`: trust
    forwarded headers from this machine. `started` is called once the server answers."""
    log, log_filter = logging.getLogger("uvicorn.error"), _RateLimitedLog()
    log.addFilter(log_filter)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _Server(config(app, behind_proxy=behind_proxy), started).run(sockets=[place])
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has ended
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        log.removeFilter(log_filter)


class _Server(uvicorn.Server):
    """Server that accepts one connection at a time, so that other workers get theirs."""

    def __init__(self, how: uvicorn.Config, started: Callable[[], None] | None) -> None:
        super().__init__(how)
        self._on_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for place in sockets or ():
            place.listen(_WAITING)  # asyncio has set the backlog to the number it accepts at a time
        if self._on_started is not None and self.started:
            self._on_started()


class _RateLimitedLog(logging.Filter):
    """Log filter: drops requests cancelled by shutdown, and logs a repeated warning, which clients
    may cause without limit, only the 1st, 10th, 100th … time."""

    def __init__(self) -> None:
        super().__init__()
        self._times: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        if record.levelno != logging.WARNING:
            return True
        self._times[record.msg] += 1
        times = self._times[record.msg]
        if times > 1:
            record.msg = f"{record.msg} ({times:,} times so far)"
        return str(times).strip("0") == "1"


def config(app: Starlette, *, behind_proxy: bool = False) -> uvicorn.Config:
    """Settings of uvicorn: bounded connections and time limits for clients."""
    return uvicorn.Config(
        app,
        http=_Patient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=behind_proxy,
        forwarded_allow_ips=_PROXIES,
        backlog=1,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=3,
    )


class _Patient(H11Protocol):
    """Protocol that closes connections without a request head: uvicorn would wait for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_head()
        elif self._deadline is not None and self.conn.their_state is not h11.IDLE:
            self._deadline.cancel()
            self._deadline = None

    def timeout_keep_alive_handler(self) -> None:
        """Abort later: closing waits until all is sent, for ever if the client does not read."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(HEAD_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)


# Several worker processes on one socket: started together, restarted after a crash, ended together.
#
# uvicorn's own supervisor restarts without a pause, ends the server if one worker cannot start, and
# its workers outlive a killed supervisor. These are processes of `multiprocessing`, which hands
# them the socket and their orders.

#: A new interpreter each: a fork would inherit open databases and threads.
_SPAWN = multiprocessing.get_context("spawn")
#: Time limits of workers to start and to end, in seconds.
_START_S, _END_S = 120.0, 8.0
_LOOK_S = 0.2
#: Pause before restarting a worker that did not live for `_LIVED_S`: doubled up to a limit.
_FIRST_PAUSE_S, _MOST_PAUSE_S, _LIVED_S = 0.2, 30.0, 10.0


class Orders(NamedTuple):
    """Settings of a server: the database at `place`, the address; `scratch` is the folder of the
    store that workers share, `max_upload` in bytes."""

    place: str
    scratch: str
    writable: bool
    max_upload: int
    address: Address
    token: str
    workers: int

    def app(self, db: Database, scratch: Store | None = None) -> Starlette:
        return build_app(
            db,
            writable=self.writable,
            max_upload=self.max_upload,
            address=self.address,
            token=self.token,
            scratch=scratch,
        )


def _work(orders: Orders, place: socket.socket, report: Connection) -> None:
    """Main function of a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with ExitStack() as stack:
            db = stack.enter_context(open_database(orders.place, readonly=not orders.writable))
            scratch = open_store(orders.scratch)
            stack.callback(scratch.close)
            behind_proxy = bool(orders.address.public)
            started = partial(report.send, ("", ""))
            serve(orders.app(db, scratch), place, behind_proxy=behind_proxy, started=started)
    except EmbeddbError as e:
        report.send((str(e), e.hint))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Worker:
    def __init__(self, orders: Orders, place: socket.socket) -> None:
        self._report, report = _SPAWN.Pipe(duplex=False)
        self.process = _SPAWN.Process(target=_work, args=(orders, place, report))
        # Ctrl-C in a terminal goes to all processes there, and is for the supervisor.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        report.close()
        self.born = time.monotonic()
        self._started: tuple[str, str] | None = None

    def started(self, within_s: float) -> tuple[str, str] | None:
        """The error and hint of a worker, both empty if it answers; None if it reported nothing
        yet."""
        if self._started is None and self._report.poll(within_s):
            try:
                self._started = self._report.recv()
            except EOFError:
                self._started = f"worker {self.process.pid} ended before it answered", ""
        return self._started

    def wait(self, deadline: float) -> None:
        """Wait until the process has ended; kill it at the deadline."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def epitaph(self) -> str:
        """Exit status and reason of a worker that ended."""
        code, started = self.process.exitcode or 0, self.started(0)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        why = f": {started[0]}" if started is not None and started[0] else ""
        return f"worker {self.process.pid} ended ({how}){why}"


class Supervisor:
    """Workers with the same orders on one socket; `note` gets a line for each that ends. A
    context manager."""

    def __init__(self, orders: Orders, place: socket.socket, note: Callable[[str], None]) -> None:
        self._orders, self._place, self._note = orders, place, note
        self._workers: list[_Worker | None] = [None] * orders.workers
        self._pauses = [_FIRST_PAUSE_S] * orders.workers
        self._due = [0.0] * orders.workers
        self._ended = threading.Event()
        self._signals = ExitStack()

    def __enter__(self) -> Supervisor:
        """Start all. Raises: StoreError if one does not answer; KeyboardInterrupt on a signal."""
        self._signals.enter_context(_signalled(self._ended))
        try:
            workers = [self._start(at) for at in range(len(self._workers))]
            deadline = time.monotonic() + _START_S
            for worker in workers:
                while (started := worker.started(0.02)) is None:
                    if self._ended.is_set():
                        raise KeyboardInterrupt
                    if time.monotonic() > deadline:
                        raise StoreError(f"a worker did not answer within {_START_S:g} s")
                if started[0]:
                    raise StoreError(started[0], hint=started[1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.process.terminate()
        deadline = time.monotonic() + _END_S
        for worker in workers:
            worker.wait(deadline)
        self._signals.close()

    def _start(self, at: int) -> _Worker:
        self._workers[at] = worker = _Worker(self._orders, self._place)
        return worker

    def run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for at, worker in enumerate(self._workers):
                now = time.monotonic()
                if worker is None:
                    if now >= self._due[at]:
                        self._start(at)
                elif not worker.process.is_alive():
                    lived = now - worker.born > _LIVED_S
                    pause = _FIRST_PAUSE_S if lived else self._pauses[at]
                    self._pauses[at] = min(2 * pause, _MOST_PAUSE_S)
                    self._workers[at], self._due[at] = None, now + pause
                    self._note(f"{worker.epitaph()}; restarting in {pause:g} s")


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
