"""Connections to a server: its address, a pool, and translation of its errors."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import psycopg
from psycopg import conninfo, errors

from embeddb.core.errors import (
    EmbeddbError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    UsageError,
)
from embeddb.core.server_url import redacted

DEFAULT_SCHEMA = "embeddb"
#: Largest number of idle connections; a server allows a hundred in total.
_MOST_IDLE = 4
#: Largest length of the name of a schema and of a client, in bytes.
_MOST_NAME = 63
_PAUSE_S = 0.2
#: Connections inherited by a forked child: closing them would end the parent's sessions.
_INHERITED: list[psycopg.Connection] = []


def split_url(url: str) -> tuple[str, str]:
    """The address for libpq, and the schema: `postgresql://host/team?schema=kernels`.

    Raises: UsageError for an invalid schema name, and for an invalid address.
    """
    base, _, query = url.partition("?")
    words = [word for word in query.split("&") if word]
    named = [unquote(word.partition("=")[2]) for word in words if word.startswith("schema=")]
    rest = "&".join(word for word in words if not word.startswith("schema="))
    address, schema = f"{base}?{rest}" if rest else base, named[-1] if named else DEFAULT_SCHEMA
    if not (0 < len(schema.encode()) <= _MOST_NAME) or "\0" in schema or schema.startswith("pg_"):
        raise UsageError(f"{redacted(url)}: {schema!r} is not a valid schema name")
    try:
        conninfo.conninfo_to_dict(address)
    except psycopg.Error as e:
        reason = redacted(" ".join(str(e).split()))
        raise UsageError(f"{redacted(url)}: not an address of a server ({reason})") from None
    return address, schema


class Connections:
    """Pool of connections to one server. Passwords, TLS and services are those of libpq: its
    environment variables, `~/.pgpass`, `pg_service.conf`, and the address.

    Raises: StoreError where the server cannot be reached.
    """

    def __init__(self, url: str, *, wait_s: float) -> None:
        self._address, self.schema = split_url(url)
        self.place = redacted(url)
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._idle: list[psycopg.Connection] = []
        self._lock = threading.Lock()

    def take(self) -> psycopg.Connection:
        """Borrow a connection that is in no transaction; return it with `give`."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
        with speaking(self.place):
            return self._connected()

    def give(self, connection: psycopg.Connection) -> None:
        """Return a connection; it is closed if it cannot serve another transaction."""
        usable = not connection.closed and not connection.info.transaction_status
        with self._lock:
            if usable and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def wait_for_server(self) -> None:
        """Wait after a lost connection; the idle ones are dropped as well. Raises: StoreError."""
        self.close()
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self.give(self._connected())
                return
            except psycopg.Error as e:
                if not is_lost(e, None) or time.monotonic() > deadline:
                    with speaking(self.place):
                        raise
            time.sleep(_PAUSE_S)

    def _connected(self) -> psycopg.Connection:
        who = f"embeddb {os.getpid()}@{socket.gethostname()}"
        connection = psycopg.connect(
            self._address,
            autocommit=True,
            application_name=who.encode()[:_MOST_NAME].decode(errors="ignore"),
        )
        try:
            # Committed data is on the disk, even if the server's default is asynchronous.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def refuse_fork(self) -> None:
        """Refuse use in a child of the process that opened the database. Raises: StoreError."""
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.place}: opened before a fork",
                hint="in the child process, close it and open the database again",
            )

    def close(self) -> None:
        """Close the pool; in a forked child too, without harm to its parent's connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        if os.getpid() != self._pid:
            _INHERITED.extend(idle)
            return
        for connection in idle:
            connection.close()


#: Hint where a user may not write.
REFUSED = "the database's owner grants writing, see docs/howto/team.md"
#: SQL states of a server that is shutting down or starting.
_GOING = ("57P01", "57P02", "57P03")


@contextmanager
def speaking(place: str) -> Iterator[None]:
    """Translate exceptions of the client library. Raises: StoreError. The cause is not chained,
    since its message may contain a password."""
    try:
        yield
    except psycopg.Error as e:
        raise _translated(e, place) from None


def is_lost(e: BaseException, connection: psycopg.Connection | None) -> bool:
    """Return true if an error concerns the connection, not the statement."""
    if not isinstance(e, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return e.sqlstate in _GOING or connection is None or connection.closed


def _translated(e: psycopg.Error, place: str) -> EmbeddbError:
    text = redacted(" ".join(str(e).split()))[:300]
    if isinstance(e, errors.ReadOnlySqlTransaction):
        return StoreReadOnly(f"{place}: the server is read-only", hint=REFUSED)
    if isinstance(e, errors.InsufficientPrivilege):
        return StoreReadOnly(f"{place}: permission denied ({text})", hint=REFUSED)
    if isinstance(e, errors.LockNotAvailable):
        return StoreLocked(f"{place}: another session keeps a table locked", hint="try again")
    if isinstance(e, (errors.DiskFull, errors.InsufficientResources)):
        return StoreFull(f"{place}: the server has no space left; the batch was not written")
    if isinstance(e, (errors.DataCorrupted, errors.IndexCorrupted)):
        return StoreCorrupt(f"{place}: {text}", hint="restore the server's backup")
    if isinstance(e, (errors.UndefinedTable, errors.InvalidSchemaName)):
        return StoreError(f"{place}: the database no longer exists ({text})")
    if isinstance(e, psycopg.OperationalError):
        return StoreError(
            f"{place}: {text}", hint="is the server up, and PGPASSFILE or PGSERVICE set?"
        )
    return StoreError(f"{place}: {text}")
