"""Running the server: one process on a socket, until it is interrupted."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from embeddb.core.errors import UsageError
from embeddb.ui.serve.access import LOOPBACK

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
