"""Storage engine for a team: tables in a schema of a PostgreSQL server.

One client writes at a time: an advisory lock of the schema takes the place of LMDB's writer lock,
so generations have no gaps and rise in the order of commits. A reader has a snapshot and neither
waits nor is waited for. If a connection is lost during a commit, it is unknown whether the commit
succeeded: each client stores the number of its last transaction in the same transaction, checks it
once the server is back, and runs the body again only if it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import LiteralString, TypeVar

import psycopg
from psycopg import sql

from embeddb.core.errors import StoreError, StoreLocked, StoreReadOnly
from embeddb.store.engine import TABLES, Engine, Txn
from embeddb.store.failures import no_database
from embeddb.store.locks import ReadGate
from embeddb.store.postgres.connections import REFUSED, Connections, is_lost, speaking
from embeddb.store.postgres.local_folder import folder_beside
from embeddb.store.postgres.schema import SchemaState, Tallies, WriterLock, inspect, make
from embeddb.store.postgres.transactions import ReadTxn, Statements, WriteTxn

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


class PostgresEngine:
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
        self._statements = Statements.by_table(schema)
        self._tallies = Tallies(schema)
        self._writer = WriterLock(schema, self.place, self._tallies, wait_s=wait_s)
        try:
            database = self._inspected(create=create)
        except BaseException:
            self._server.close()
            raise
        self._may_write, self._owns = database.may_write, database.owns
        self.readonly = readonly or not database.may_write
        self.path: Path | None = folder_beside(database.id)

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
        """Close the connections; in a forked child too, which may then open the database for
        itself."""
        self._server.close()

    def shared_state(self, make: Callable[[Engine], T]) -> T:
        return make(self)

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
        `wait_s`.
        """
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
