"""Storage engine for a team: tables in a schema of a PostgreSQL server.

One client writes at a time: an advisory lock of the schema takes the place of LMDB's writer lock,
so generations have no gaps and rise in the order of commits. A reader has a snapshot and neither
waits nor is waited for. If a connection is lost during a commit, it is unknown whether the commit
succeeded: each client stores the number of its last transaction in the same transaction, checks it
once the server is back, and runs the body again only if it is missing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import LiteralString, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg import conninfo, errors, sql

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
from embeddb.store.engine import TABLES, Engine, Txn
from embeddb.store.failures import no_database, refuse_fork
from embeddb.store.locks import ReadGate
from embeddb.store.postgres.schema import SchemaState, Tallies, WriterLock, inspect, make
from embeddb.store.postgres.transactions import ReadTxn, WriteTxn, statements_in
from embeddb.store.tables import folder_beside

T = TypeVar("T")

#: Largest number of runs of a body after lost connections.
_MOST_TRIES = 5
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1"


def has_database(url: str) -> bool:
    """Return true if there is a database. Raises: StoreError where the server cannot be reached."""
    server = Connections(url, wait_s=1.0)
    connection = server.take()
    try:
        with speaking(server.place):
            return inspect(connection, server.schema, server.place).whole
    finally:
        connection.close()


class PostgresEngine(Engine):
    """An open database on a server.

    `wait_s` bounds the time a write waits for another client's write, and for a server that is
    down. Read-only for a user who may not write.

    Raises: StoreError if there is none, or with `create` if there is one; StoreLocked, StoreFull,
    StoreReadOnly, StoreVersion from `write`.
    """

    shared = True

    def __init__(
        self, url: str, *, readonly: bool = False, create: bool = False, wait_s: float = 60.0
    ) -> None:
        self._server = Connections(url, wait_s=wait_s)
        self.place = self._server.place
        self._gate = ReadGate()
        self._number, self._lock, self._wait_s = 0, Lock(), wait_s
        schema = self._server.schema
        self._statements = statements_in(schema)
        self._tallies = Tallies(schema)
        self._writer = WriterLock(schema, self.place, self._tallies, wait_s=wait_s)
        try:
            database = self._inspected(create=create)
        except BaseException:
            self._server.close()
            raise
        self._may_write, self._owns = database.may_write, database.owns
        self.readonly = readonly or not database.may_write
        self.path = folder_beside(database.id)

    def _inspected(self, *, create: bool) -> SchemaState:
        """State of the database, created if requested. Raises: StoreError."""
        schema, place = self._server.schema, self.place
        connection = self._server.take()
        with self._given_back(connection), speaking(place):
            database = inspect(connection, schema, place)
            if create:
                if database.whole:
                    raise StoreError(f"{place}: a database is there already")
                make(connection, schema)
                database = inspect(connection, schema, place)
        if not database.whole:
            raise no_database(place)
        return database

    @contextmanager
    def _given_back(self, connection: psycopg.Connection) -> Iterator[None]:
        try:
            yield
        finally:
            if not connection.closed and connection.info.transaction_status:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
            self._server.give(connection)

    # -- reading ---------------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        self._server.refuse_fork()
        thread = self._gate.enter()
        try:
            connection, _ = self._begun(_BEGIN_READ)
            with self._given_back(connection), speaking(self.place):
                yield ReadTxn(connection, self._statements, self._tallies)
        finally:
            self._gate.leave(thread)

    def version(self) -> str:
        self._server.refuse_fork()
        connection, cursor = self._begun(self._tallies.version)
        with self._given_back(connection), speaking(self.place):
            row = cursor.fetchone()
            return "" if row is None else str(row[0])

    def _begun(self, text: LiteralString | bytes) -> tuple[psycopg.Connection, psycopg.Cursor]:
        """A connection that has executed a statement; an idle one may be dead."""
        for last in (False, True):
            connection = self._server.take()
            try:
                return connection, connection.execute(text)
            except psycopg.Error as e:
                lost = is_lost(e, connection)
                connection.close()
                if last or not lost:
                    with speaking(self.place):
                        raise
                self._server.wait_for_server()
        raise AssertionError("unreachable")

    # -- writing ---------------------------------------------------------------------------

    def write(self, body: Callable[[Txn], T]) -> T:
        self._refuse_write()
        if not self._lock.acquire(timeout=self._wait_s):
            raise StoreLocked(f"{self.place}: this process writes since {self._wait_s:g} s or more")
        try:
            self._number += 1
            return self._written(body, self._number)
        finally:
            self._lock.release()

    def _written(self, body: Callable[[Txn], T], number: int) -> T:
        """Run a write. Threads take turns: a client's last number confirms all before it."""
        results: list[T] = []
        for _ in range(_MOST_TRIES):
            connection = self._server.take()
            try:
                with self._given_back(connection), _losing(self.place, connection):
                    self._writer.begin(connection)
                    if results and self._writer.was_noted(connection, number):
                        return results[-1]  # only the reply to COMMIT was lost
                    txn = WriteTxn(connection, self._statements, self._tallies)
                    results.append(body(txn))
                    txn.flush()
                    self._writer.note(connection, number, txn.more)
                    connection.execute("COMMIT")
                    return results[-1]
            except _Lost as lost:
                why = lost
                self._server.wait_for_server()
        raise StoreError(f"{self.place}: the connection was lost {_MOST_TRIES} times ({why})")

    def _refuse_write(self) -> None:
        self._server.refuse_fork()
        if self.readonly:
            if self._may_write:
                raise StoreReadOnly(f"{self.place}: opened read-only", hint="open it for writing")
            raise StoreReadOnly(f"{self.place}: this user may only read", hint=REFUSED)
        self._gate.refuse_own_read()

    # -- the whole -------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections; a forked child may then open the database for itself."""
        self._server.close()

    def size_bytes(self) -> int:
        connection = self._server.take()
        with self._given_back(connection), speaking(self.place):
            row = connection.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relkind = 'r'",
                (self._server.schema,),
            ).fetchone()
            return 0 if row is None else int(row[0])

    def compact(self) -> None:
        """VACUUM FULL, which only the owner may do: readers wait meanwhile, one table at a time.
        Raises: StoreLocked during another client's write, or a read that takes longer than
        `wait_s`."""
        self._refuse_write()
        if not self._owns:  # the server would only warn
            raise StoreReadOnly(f"{self.place}: only its owner may compact it")
        connection = self._server.take()
        with self._given_back(connection), speaking(self.place):
            self._writer.take(connection)
            try:
                for table in TABLES:
                    name = sql.Identifier(self._server.schema, table)
                    connection.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(name))
                self._tallies.count(connection)
            finally:
                self._writer.leave(connection)

    def refuse_damage(self) -> None:
        """No-op: the server checks its pages on every read."""
        self._server.refuse_fork()

    def problems(self) -> list[str]:
        with self.read() as txn:
            return [text for table in TABLES for text in txn.damaged(table)]


class _Lost(Exception):
    """The connection is lost, and with it the transaction, unless it was committed."""


@contextmanager
def _losing(place: str, connection: psycopg.Connection) -> Iterator[None]:
    """Like `speaking`, but raises `_Lost` for a lost connection."""
    with speaking(place):
        try:
            yield
        except psycopg.Error as e:
            if not is_lost(e, connection):
                raise
            raise _Lost(" ".join(str(e).split())[:200]) from None


# -- Connections to a server: its address, a pool, and translation of its errors ------------------

DEFAULT_SCHEMA = "embeddb"
#: Largest number of idle connections; a server allows a hundred in total.
_MOST_IDLE = 4
#: Largest length of the name of a schema and of a client, in bytes.
_MOST_NAME = 63
_PAUSE_S = 0.2
#: Connections inherited by a forked child: closing them would end the parent's sessions.
_INHERITED: list[psycopg.Connection] = []


def split_url(url: str) -> tuple[str, str]:
    """The address for libpq, and the schema: `postgresql://host/team?schema=kernels`. Raises:
    UsageError for an invalid schema name, and for an invalid address."""
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
    environment variables, `~/.pgpass`, `pg_service.conf`, and the address. Raises: StoreError where
    the server cannot be reached."""

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
        refuse_fork(self._pid, self.place)

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
