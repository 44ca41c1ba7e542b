"""How many rows each table has, and how often something was committed: counted by whoever writes,
in the same transaction, so that nobody has to read a table for it.

The numbers are rows of `about`. Where one is lacking, in a database of an older program, it is
counted by reading, and the next write puts it there.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from embeddb.store.engine import TABLES

__all__ = ["Tallies"]

_COMMITS = "commits"


def _name(table: str) -> str:
    return f"rows/{table}"


class Tallies:
    """The numbers of one schema."""

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
        #: Selects what is another text after every commit.
        self.version = sql.SQL(commits).format(about, writer).as_bytes(None)
        noted = (
            "WITH told AS (UPDATE {about} AS a SET value = (a.value::bigint + d.n)::text"
            " FROM unnest(%b::text[], %b::bigint[]) AS d(name, n)"
            " WHERE a.name = d.name RETURNING a.name),"
            " noted AS (INSERT INTO {writer} (client, number) VALUES (%b, %b)"
            " ON CONFLICT (client) DO UPDATE SET number = EXCLUDED.number, since = now())"
            " SELECT name FROM told"
        )
        self._noted = sql.SQL(noted).format(about=about, writer=writer).as_bytes(None)

    def stored(self, cursor: psycopg.Cursor) -> dict[str, int]:
        """Rows by table, of the tables that were counted."""
        rows = cursor.execute(self._stored).fetchall()
        return {name[5:]: int(value) for name, value in rows if _is_count(value)}

    def note(
        self, connection: psycopg.Connection, client: object, number: int, more: Mapping[str, int]
    ) -> None:
        """Count a transaction, in it: `more` rows (or fewer) by table, and that it is a client's
        of that number. All that it writes has been sent."""
        changes = {_COMMITS: 1} | {_name(table): n for table, n in more.items() if n}
        asked = (list(changes), list(changes.values()), client, number)
        told = {row[0] for row in connection.execute(self._noted, asked)}
        if told != changes.keys():
            self.count(connection)

    def count(self, connection: psycopg.Connection) -> None:
        """Count by reading, where nobody else writes meanwhile."""
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
