"""One of several processes that serve the same socket.

It is started by `supervisor`, which says on standard input, in one line, what to serve, and keeps
that pipe open: its end is the supervisor's, and the worker's. On standard output goes one line:
that it answers, or why it cannot.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack

import msgspec

from embeddb.core.errors import EmbeddbError
from embeddb.database import open_database
from embeddb.store import open_store
from embeddb.ui.serve.access.address import Address
from embeddb.ui.serve.app import build_app
from embeddb.ui.serve.running import serve

__all__ = ["Orders", "Told"]

_MOST_ORDERS = 64 << 10


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve: the database at `place`, on the file descriptor `socket`, under an address;
    `scratch` is the folder of what the workers share. They are no arguments, for these can be read
    by everybody on this machine."""

    place: str
    socket: int
    scratch: str
    writable: bool
    max_upload: int
    host: str
    public: str
    token: str


class Told(msgspec.Struct, frozen=True):
    """What a worker says once: that it answers, or an `error` and what can be done."""

    error: str = ""
    hint: str = ""


def _serve(orders: Orders) -> None:
    os.set_inheritable(orders.socket, False)
    address = Address(orders.host, orders.public)
    with ExitStack() as stack:
        place = stack.enter_context(socket.socket(fileno=orders.socket))
        db = stack.enter_context(open_database(orders.place, readonly=not orders.writable))
        scratch = open_store(orders.scratch)
        stack.callback(scratch.close)
        app = build_app(
            db,
            writable=orders.writable,
            max_upload=orders.max_upload,
            address=address,
            token=orders.token,
            scratch=scratch,
        )
        serve(app, place, behind_proxy=bool(address.public), started=lambda: _tell(Told()))


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_supervisor() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _main() -> int:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(_MOST_ORDERS), type=Orders)
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    try:
        _serve(orders)
    except EmbeddbError as e:
        _tell(Told(str(e), e.hint))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
