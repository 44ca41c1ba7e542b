"""The schema of a database on a server: made, recognised, and what this user may do in it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import psycopg
from psycopg import sql

from embeddb.core.errors import StoreError, StoreVersion
from embeddb.store.engine import TABLES
from embeddb.store.postgres.tallies import Tallies

__all__ = ["Found", "inspect", "lock_key", "make"]

#: Values that are small already: the server need not try to compress them.
_PACKED = ("structure", "nest", "tensor", "vector")


@dataclass(frozen=True, slots=True)
class Found:
    """A schema as it is: `tables` that are ours, whether this user `may_write` and `owns` them, and
    the database's own `id`, which names what lies beside it."""

    tables: frozenset[str]
    may_write: bool = False
    owns: bool = False
    id: str = ""

    @property
    def whole(self) -> bool:
        """Whether a database is there."""
        return self.tables >= {*TABLES, "about", "writer"}


def inspect(connection: psycopg.Connection, schema: str, place: str) -> Found:
    """What is at a place. Raises: StoreError where this user may not look; StoreVersion for one
    that lacks tables."""
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
    found = Found(tables)
    if not ours:
        return found
    if not found.whole:
        raise StoreVersion(f"{place}: lacks tables", hint="use the embeddb that it was made with")
    if not ours[0][1]:
        raise StoreError(
            f"{place}: this user may not read there", hint="its owner grants it, see docs/team.md"
        )
    asked = sql.SQL("SELECT value FROM {} WHERE name = 'id'").format(
        sql.Identifier(schema, "about")
    )
    row = connection.execute(asked).fetchone()
    may_write, owns = all(row[2] for row in ours), all(row[3] for row in ours)
    return Found(tables, may_write, owns, "" if row is None else str(row[0]))


def make(connection: psycopg.Connection, schema: str) -> None:
    """Make a schema's tables, all or none; two who do so at once make them once."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(schema),))
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        if there.fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for table in TABLES:
            _make_table(connection, sql.Identifier(schema, table), packed=table in _PACKED)
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


def _make_table(connection: psycopg.Connection, table: sql.Identifier, *, packed: bool) -> None:
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (k bytea PRIMARY KEY"
            " CHECK (octet_length(k) BETWEEN 1 AND 511), v bytea NOT NULL)"
        ).format(table)
    )
    if packed:
        connection.execute(
            sql.SQL("ALTER TABLE {} ALTER COLUMN v SET STORAGE EXTERNAL").format(table)
        )


def lock_key(schema: str) -> int:
    """The number of the lock that who writes in a schema holds: signed 64 bits."""
    import hashlib

    digest = hashlib.blake2b(b"embeddb\0" + schema.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
