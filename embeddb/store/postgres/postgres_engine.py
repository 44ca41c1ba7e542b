"""The engine of a team: tables in a schema of a PostgreSQL server, as on a disk for everybody.

One writes at a time: an advisory lock of the schema stands for LMDB's writer lock, so generations
have no gaps and rise in the order of commits. Whoever reads has a snapshot and neither waits nor is
waited for. A connection that is lost while a transaction is being committed leaves open whether it
was: each client notes the number of its last transaction in the same transaction, looks there once
the server is back, and only then, if it was not, runs the body again.
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
from embeddb.store.postgres.schema import Found, Tallies, WriterLock, inspect, make
from embeddb.store.postgres.transactions import ReadTxn, Statements, WriteTxn

T = TypeVar("T")

#: So often a body is run because the connection was lost.
_MOST_TRIES = 5
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1"


def has_database(url: str) -> bool:
    """Whether there is one. Raises: StoreError where the server cannot be reached."""
    server = Connections(url, wait_s=1.0)
    connection = server.take()
    try:
        with speaking(server.place):
            return inspect(connection, server.schema, server.place).whole
    finally:
        connection.close()


class PostgresEngine:
    """An open database on a server.

    `wait_s` bounds the time a write waits for somebody else's to end, and for a server that went
    away to be back. A user who may not write has it read-only.

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
            found = self._found(create=create)
        except BaseException:
            self._server.close()
            raise
        self._may_write, self._owns = found.may_write, found.owns
        self.readonly = readonly or not found.may_write
        self.path: Path | None = folder_beside(found.id)

    def _found(self, *, create: bool) -> Found:
        """The database there, or made there. Raises: StoreError."""
        schema, place = self._server.schema, self.place
        connection = self._server.take()
        with self._given_back(connection), speaking(place):
            found = inspect(connection, schema, place)
            if create:
                if found.whole:
                    raise StoreError(f"{place}: a database is there already")
                make(connection, schema)
                found = inspect(connection, schema, place)
        if not found.whole:
            raise no_database(place)
        return found

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
        """A connection that has executed something; one that was idle may be dead."""
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
        """Threads take turns: a client's last number tells of all before it."""
        results: list[T] = []
        for _ in range(_MOST_TRIES):
            connection = self._server.take()
            try:
                with self._given_back(connection), _losing(self.place, connection):
                    self._writer.begin(connection)
                    if results and self._writer.was_noted(connection, number):
                        return results[-1]  # only the answer to COMMIT was lost
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
            raise StoreReadOnly(f"{self.place}: this user may only read there", hint=REFUSED)
        self._gate.refuse_own_read()

    # -- the whole -------------------------------------------------------------------------

    def close(self) -> None:
        """Also in a forked child, which may then open the database for itself."""
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
        """VACUUM FULL, which only the owner may do: readers wait meanwhile, a table at a time.

        Raises: StoreLocked while somebody writes, or reads for longer than that is waited for.
        """
        self._refuse_write()
        if not self._owns:  # the server would warn, and do nothing
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
        """The server looks at its pages itself, whenever it reads one."""
        self._server.refuse_fork()

    def problems(self) -> list[str]:
        with self.read() as txn:
            return [text for table in TABLES for text in txn.damaged(table)]


class _Lost(Exception):
    """The connection is gone, and with it the transaction, unless it was committed."""


@contextmanager
def _losing(place: str, connection: psycopg.Connection) -> Iterator[None]:
    """As `speaking`, but raises `_Lost` where the connection was."""
    with speaking(place):
        try:
            yield
        except psycopg.Error as e:
            if not is_lost(e, connection):
                raise
            raise _Lost(" ".join(str(e).split())[:200]) from None
