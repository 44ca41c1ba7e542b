"""The schema of a database on a server: creation, row counts, and the lock of its only writer."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import errors, sql

from embeddb.core.errors import StoreError, StoreLocked, StoreVersion
from embeddb.store.engine import TABLES, refuse_other_schema

#: Tables with compressed values: the server need not compress them again.
_PACKED = ("structure", "nest", "tensor", "vector")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """State of a schema: its `tables`, whether this user `may_write` and `owns` them, and the
    database's own `id`, which names the files beside it."""

    tables: frozenset[str]
    may_write: bool = False
    owns: bool = False
    id: str = ""

    @property
    def whole(self) -> bool:
        """Return true if it has all tables."""
        return self.tables >= {*TABLES, "about", "writer"}


def inspect(connection: psycopg.Connection, schema: str, place: str) -> SchemaState:
    """State of a schema. Raises: StoreError if this user may not look; StoreVersion."""
    rows = connection.execute(
        "SELECT c.relname, has_schema_privilege(n.oid, 'USAGE'),"
        " has_table_privilege(c.oid, 'INSERT') AND NOT pg_is_in_recovery(),"
        " pg_has_role(c.relowner, 'USAGE')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'r'",
        (schema,),
    ).fetchall()
    ours = [row for row in rows if row[0] in (*TABLES, "about", "writer")]
    tables = frozenset(name for name, *_ in ours)
    state = SchemaState(tables)
    if not ours:
        return state
    if not state.whole:
        raise StoreVersion(
            f"{place}: lacks tables", hint="use the version of embeddb that created it"
        )
    if not ours[0][1]:
        raise StoreError(
            f"{place}: this user may not read it",
            hint="its owner grants it, see docs/howto/team.md",
        )
    query = sql.SQL("SELECT value FROM {} WHERE name = 'id'").format(
        sql.Identifier(schema, "about")
    )
    row = connection.execute(query).fetchone()
    may_write, owns = all(row[2] for row in ours), all(row[3] for row in ours)
    return SchemaState(tables, may_write, owns, "" if row is None else str(row[0]))


def make(connection: psycopg.Connection, schema: str) -> None:
    """Create a schema's tables, all or none; two clients at once create them once."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(schema),))
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        if there.fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for table in TABLES:
            own = sql.Identifier(schema, table)
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (k bytea PRIMARY KEY"
                    " CHECK (octet_length(k) BETWEEN 1 AND 511), v bytea NOT NULL)"
                ).format(own)
            )
            if table in _PACKED:
                packed = sql.SQL("ALTER TABLE {} ALTER COLUMN v SET STORAGE EXTERNAL")
                connection.execute(packed.format(own))
        about, writer = sql.Identifier(schema, "about"), sql.Identifier(schema, "writer")
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, value text NOT NULL)"
            ).format(about)
        )
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (client uuid PRIMARY KEY, number bigint NOT NULL,"
                " since timestamptz NOT NULL DEFAULT now())"
            ).format(writer)
        )
        connection.execute(
            sql.SQL("INSERT INTO {} VALUES ('id', %s) ON CONFLICT DO NOTHING").format(about),
            (str(uuid.uuid4()),),
        )
        Tallies(schema).count(connection)


def lock_key(schema: str) -> int:
    """Number of the lock held by a writer in a schema: signed 64 bits."""
    digest = hashlib.blake2b(b"embeddb\0" + schema.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


_COMMITS = "commits"


def _name(table: str) -> str:
    return f"rows/{table}"


class Tallies:
    """Row counts of one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        about, writer = sql.Identifier(schema, "about"), sql.Identifier(schema, "writer")
        self._about = about
        stored = "SELECT name, value FROM {} WHERE name LIKE 'rows/%'"
        self._stored = sql.SQL(stored).format(about).as_bytes(None)
        commits = (
            "SELECT coalesce((SELECT value FROM {} WHERE name = 'commits'),"
            " (SELECT concat(sum(number), ' of ', count(*)) FROM {}))"
        )
        #: Selects a text that changes with every commit.
        self.version = sql.SQL(commits).format(about, writer).as_bytes(None)
        noted = (
            "WITH updated AS (UPDATE {about} AS a SET value = (a.value::bigint + d.n)::text"
            " FROM unnest(%b::text[], %b::bigint[]) AS d(name, n)"
            " WHERE a.name = d.name RETURNING a.name),"
            " noted AS (INSERT INTO {writer} (client, number) VALUES (%b, %b)"
            " ON CONFLICT (client) DO UPDATE SET number = EXCLUDED.number, since = now())"
            " SELECT name FROM updated"
        )
        self._noted = sql.SQL(noted).format(about=about, writer=writer).as_bytes(None)

    def stored(self, cursor: psycopg.Cursor) -> dict[str, int]:
        """Rows by table, for the tables with a stored count."""
        rows = cursor.execute(self._stored).fetchall()
        return {name[5:]: int(value) for name, value in rows if _is_count(value)}

    def note(
        self, connection: psycopg.Connection, client: object, number: int, more: Mapping[str, int]
    ) -> None:
        """Record a transaction, inside it: `more` rows (or fewer) by table, and its number for the
        client. All its writes have been sent."""
        changes = {_COMMITS: 1} | {_name(table): n for table, n in more.items() if n}
        arguments = (list(changes), list(changes.values()), client, number)
        updated = {row[0] for row in connection.execute(self._noted, arguments)}
        if updated != changes.keys():
            self.count(connection)

    def count(self, connection: psycopg.Connection) -> None:
        """Count by reading, where no other client writes meanwhile."""
        counted = sql.SQL(
            "INSERT INTO {} SELECT %s, count(*)::text FROM {}"
            " ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"
        )
        for table in TABLES:
            there = sql.Identifier(self._schema, table)
            connection.execute(counted.format(self._about, there), (_name(table),))
        begun = sql.SQL("INSERT INTO {} VALUES (%s, '1') ON CONFLICT DO NOTHING")
        connection.execute(begun.format(self._about), (_COMMITS,))


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 19


#: Age at which rows of clients are removed.
_FORGET = "7 days"


class WriterLock:
    """The writer lock of one schema, from the side of one client."""

    def __init__(self, schema: str, place: str, tallies: Tallies, *, wait_s: float) -> None:
        self._place, self._tallies, self._wait_s = place, tallies, wait_s
        self._key = lock_key(schema)
        self._client = uuid.uuid4()
        self._meta = sql.Identifier(schema, "meta")
        self._writer = sql.Identifier(schema, "writer")
        self._milliseconds = sql.Literal(max(1, int(1000 * wait_s)))

    def begin(self, connection: psycopg.Connection) -> None:
        """Begin a transaction that holds the lock, in one round trip. Raises: StoreLocked,
        StoreVersion."""
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
        """Record inside a transaction its number for this client, and the number of rows it adds to
        each table."""
        if number == 1:
            old = sql.SQL("DELETE FROM {} WHERE since < now() - %s::interval").format(self._writer)
            connection.execute(old, (_FORGET,))
        self._tallies.note(connection, self._client, number, more)

    def was_noted(self, connection: psycopg.Connection, number: int) -> bool:
        """Return true if that transaction was committed."""
        query = sql.SQL("SELECT 1 FROM {} WHERE client = %s AND number = %s").format(self._writer)
        return connection.execute(query, (self._client, number)).fetchone() is not None

    def take(self, connection: psycopg.Connection) -> None:
        """Take the lock until `leave`, for work outside a transaction. Raises: StoreLocked."""
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
        """Error that names the holder of the lock: its process and host, or the server's text."""
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
