"""One writer at a time, and whether a client's last transaction was committed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

import psycopg
from psycopg import errors, sql

from embeddb.core.errors import StoreLocked
from embeddb.store.engine import refuse_other_schema
from embeddb.store.postgres.making import lock_key
from embeddb.store.postgres.tallies import Tallies

__all__ = ["WriterLock"]

#: Rows of clients that are gone are removed after a while.
_FORGET = "7 days"


class WriterLock:
    """The lock of one schema, as one client takes it."""

    def __init__(self, schema: str, place: str, tallies: Tallies, *, wait_s: float) -> None:
        self._place, self._tallies, self._wait_s = place, tallies, wait_s
        self._key = lock_key(schema)
        self._client = uuid.uuid4()
        self._meta = sql.Identifier(schema, "meta")
        self._writer = sql.Identifier(schema, "writer")
        self._milliseconds = sql.Literal(max(1, int(1000 * wait_s)))

    def begin(self, connection: psycopg.Connection) -> None:
        """Begin a transaction that has the lock, in one round trip.

        Raises: StoreLocked, StoreVersion.
        """
        text = sql.SQL(
            "BEGIN; SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock({});"
            " SELECT v FROM {} WHERE k = 'schema'"
        ).format(self._milliseconds, sql.Literal(self._key), self._meta)
        try:
            cursor = connection.execute(text)
        except errors.LockNotAvailable:
            connection.execute("ROLLBACK")
            raise self._locked(connection) from None
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        refuse_other_schema(None if row is None else bytes(row[0])[:-4], self._place)

    def note(self, connection: psycopg.Connection, number: int, more: Mapping[str, int]) -> None:
        """Note in a transaction that it is this client's of that number, and how many rows it adds
        to which table."""
        if number == 1:
            old = sql.SQL("DELETE FROM {} WHERE since < now() - %s::interval").format(self._writer)
            connection.execute(old, (_FORGET,))
        self._tallies.note(connection, self._client, number, more)

    def was_noted(self, connection: psycopg.Connection, number: int) -> bool:
        """Whether that transaction was committed."""
        told = sql.SQL("SELECT 1 FROM {} WHERE client = %s AND number = %s").format(self._writer)
        return connection.execute(told, (self._client, number)).fetchone() is not None

    def take(self, connection: psycopg.Connection) -> None:
        """Until `leave`, for what is no transaction. Raises: StoreLocked."""
        connection.execute(sql.SQL("SET lock_timeout = {}").format(self._milliseconds))
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", (self._key,))
        except errors.LockNotAvailable:
            connection.execute("RESET lock_timeout")
            raise self._locked(connection) from None

    def leave(self, connection: psycopg.Connection) -> None:
        connection.execute("RESET lock_timeout")
        connection.execute("SELECT pg_advisory_unlock(%s)", (self._key,))

    def _locked(self, connection: psycopg.Connection) -> StoreLocked:
        """Who has the lock: process and host as that client told them, or the server's words."""
        key = self._key & ((1 << 64) - 1)
        row = connection.execute(
            "SELECT a.application_name, a.pid, a.usename FROM pg_locks l"
            " JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            " AND l.classid::bigint = %s AND l.objid::bigint = %s"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (key >> 32, key & 0xFFFFFFFF),
        ).fetchone()
        who = "somebody"
        if row is not None:
            own = re.fullmatch(r"embeddb (\d+)@(.+)", row[0] or "")
            who = f"process {own[1]} on {own[2]}" if own else f"the server's process {row[1]}"
            who += f" (user {row[2]})" if row[2] else ""
        return StoreLocked(
            f"{self._place}: {who} is writing since {self._wait_s:g} s or more",
            hint="wait for it or end it, then try again",
        )
