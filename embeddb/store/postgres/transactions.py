"""Transactions over tables of keys and values on a server: few round trips, bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import psycopg
from psycopg import sql

from embeddb.core.errors import StoreError, StoreReadOnly
from embeddb.store.engine import TABLES, SealedTxn, sealed, unsealed
from embeddb.store.postgres.schema import Tallies

#: Tables with values of up to megabytes, read a few at a time.
_LARGE = frozenset({"structure", "nest", "tensor", "recommendation", "note", "model"})
_FIRST_LARGE, _FIRST_SMALL, _MOST_ROWS = 16, 2048, 16384
#: Approximate size of one piece of a scan, and of the write buffer, in bytes.
_PIECE_BYTES = 4 << 20
_BUFFER_BYTES = 16 << 20
#: Number of keys in one lookup.
_MOST_KEYS = 20_000
#: Statements on one table, by name.
_SQL = {
    "get": "SELECT v FROM {} WHERE k = %b",
    "get_many": "SELECT k, v FROM {} WHERE k = ANY(%b)",
    "scan": "SELECT k, v FROM {} WHERE k >= %b ORDER BY k LIMIT %b",
    "scan_to": "SELECT k, v FROM {} WHERE k >= %b AND k < %b ORDER BY k LIMIT %b",
    "count": "SELECT count(*) FROM {}",
    "count_to": "SELECT count(*) FROM {} WHERE k >= %b AND k < %b",
    "there": "SELECT count(*) FROM {} WHERE k = ANY(%b)",
    "delete": "DELETE FROM {} WHERE k = ANY(%b)",
    "copy": "COPY {} (k, v) FROM STDIN (FORMAT BINARY)",
    "upsert": "INSERT INTO {} (k, v) SELECT * FROM unnest(%b::bytea[], %b::bytea[])"
    " ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v",
}
#: Those of every table, built once for a schema.
Statements = Mapping[str, Mapping[str, bytes]]


def statements_in(schema: str) -> Statements:
    """The statements on every table of a schema."""
    names = {table: sql.Identifier(schema, table) for table in TABLES}
    return {
        table: {what: sql.SQL(text).format(name).as_bytes(None) for what, text in _SQL.items()}
        for table, name in names.items()
    }


class ReadTxn(SealedTxn):
    """Transaction on a connection with one snapshot."""

    def __init__(
        self, connection: psycopg.Connection, statements: Statements, tallies: Tallies
    ) -> None:
        self._cursor = connection.cursor(binary=True)
        self._sql, self._tallies = statements, tallies
        self._counts: dict[str, int] | None = None

    def get(self, table: str, key: bytes) -> bytes | None:
        row = self._cursor.execute(self._sql[table]["get"], (key,)).fetchone()
        return None if row is None else unsealed(table, key, row[0])

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        wanted = list(dict.fromkeys(keys))
        for start in range(0, len(wanted), _MOST_KEYS):
            piece = wanted[start : start + _MOST_KEYS]
            for key, raw in self._cursor.execute(self._sql[table]["get_many"], (piece,)):
                values[key] = unsealed(table, key, raw)
        return {key: values[key] for key in wanted if key in values}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        raise StoreReadOnly("a read transaction cannot write")

    def delete(self, table: str, key: bytes) -> bool:
        raise StoreReadOnly("a read transaction cannot write")

    def raw(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows in pieces, each from behind the last key of the previous one: a cursor on the server
        would have to be closed by a scan that is left unfinished."""
        start, end = prefix, _behind(prefix)
        most = _FIRST_LARGE if table in _LARGE else _FIRST_SMALL
        statements = self._sql[table]
        while True:
            arguments = (start, most) if end is None else (start, end, most)
            text = statements["scan"] if end is None else statements["scan_to"]
            rows = self._cursor.execute(text, arguments).fetchall()
            yield from rows
            if len(rows) < most:
                return
            start = rows[-1][0] + b"\0"  # the next possible key
            size = sum(len(raw) for _, raw in rows) + 1
            most = max(1, min(_MOST_ROWS, 4 * most, most * _PIECE_BYTES // size))

    def count(self, table: str) -> int:
        """Stored count of rows; counted by reading where there is none."""
        stored = self._stored(table)
        return self.counted(table) if stored is None else stored

    def _stored(self, table: str) -> int | None:
        if self._counts is None:
            self._counts = self._tallies.stored(self._cursor)
        return self._counts.get(table)

    def counted(self, table: str) -> int:
        """Count by reading the table."""
        row = self._cursor.execute(self._sql[table]["count"]).fetchone()
        return 0 if row is None else int(row[0])

    def count_under(self, table: str, prefix: bytes) -> int:
        end = _behind(prefix)
        if end is None:
            return super().count_under(table, prefix)
        row = self._cursor.execute(self._sql[table]["count_to"], (prefix, end)).fetchone()
        return 0 if row is None else int(row[0])

    def damaged(self, table: str) -> Iterator[str]:
        """A line for every damaged value, and for a wrong number of rows."""
        yield from super().damaged(table)
        if (rows := self.counted(table)) != (stored := self.count(table)):
            yield f"table {table!r}: {rows:,} rows, expected {stored:,} (`db compact` repairs it)"


class WriteTxn(ReadTxn):
    """A transaction of the only writer: rows read are cached, and writes are sent together, by COPY
    where the key is known to be new."""

    def __init__(
        self, connection: psycopg.Connection, statements: Statements, tallies: Tallies
    ) -> None:
        super().__init__(connection, statements, tallies)
        #: Values on the server; None for a missing row.
        self._known: dict[str, dict[bytes, bytes | None]] = {table: {} for table in TABLES}
        #: Values to write; None for a row to delete.
        self._new: dict[str, dict[bytes, bytes | None]] = {table: {} for table in TABLES}
        self._bytes = 0
        #: Number of rows added by the statements sent, by table.
        self.more = dict.fromkeys(TABLES, 0)

    def get(self, table: str, key: bytes) -> bytes | None:
        for values in (self._new[table], self._known[table]):
            if key in values:
                return values[key]
        value = self._known[table][key] = super().get(table, key)
        return value

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        new, cached = self._new[table], self._known[table]
        wanted = list(dict.fromkeys(keys))
        unknown = [key for key in wanted if key not in new and key not in cached]
        if unknown:
            cached.update(dict.fromkeys(unknown))
            cached.update(super().get_many(table, unknown))
        both = ((key, new[key] if key in new else cached[key]) for key in wanted)
        return {key: value for key, value in both if value is not None}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        if not 1 <= len(key) <= 511:
            raise StoreError(f"a key of {len(key)} bytes does not fit (1 to 511)")
        self._new[table][key] = value
        self._bytes += len(key) + len(value)
        if self._bytes > _BUFFER_BYTES:
            self.flush()

    def delete(self, table: str, key: bytes) -> bool:
        if self.get(table, key) is None:
            return False
        self._new[table][key] = None
        return True

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._send(table)
        return super().scan(table, prefix)

    def scan_sound(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._send(table)
        return super().scan_sound(table, prefix)

    def count(self, table: str) -> int:
        self._send(table)
        stored = self._stored(table)
        return self.counted(table) if stored is None else stored + self.more[table]

    def count_under(self, table: str, prefix: bytes) -> int:
        self._send(table)
        return super().count_under(table, prefix)

    def flush(self) -> None:
        """Send all buffered writes."""
        for table in TABLES:
            self._send(table)
        self._bytes = 0

    def _send(self, table: str) -> None:
        new, cached, statements = self._new[table], self._known[table], self._sql[table]
        if not new:
            return
        gone = [key for key, value in new.items() if value is None]
        upserts = sorted((k, sealed(k, v)) for k, v in new.items() if v is not None)
        fresh = [row for row in upserts if row[0] in cached and cached[row[0]] is None]
        other = [row for row in upserts if row[0] not in cached or cached[row[0]] is not None]
        if gone:
            self.more[table] -= self._cursor.execute(statements["delete"], (gone,)).rowcount
        if fresh:
            self.more[table] += len(fresh)
            with self._cursor.copy(statements["copy"]) as copy:
                copy.set_types(("bytea", "bytea"))
                for row in fresh:
                    copy.write_row(row)
        if other:
            keys, values = [k for k, _ in other], [v for _, v in other]
            self.more[table] += self._lacking([k for k in keys if k not in cached], statements)
            self._cursor.execute(statements["upsert"], (keys, values))
        for key, value in new.items():
            if value is None:
                cached[key] = None
            else:  # read again on demand, which bounds memory
                cached.pop(key, None)
        self._new[table] = {}

    def _lacking(self, keys: list[bytes], statements: Mapping[str, bytes]) -> int:
        """Number of these keys without a row."""
        if not keys:
            return 0
        row = self._cursor.execute(statements["there"], (keys,)).fetchone()
        return len(keys) - (0 if row is None else int(row[0]))


def _behind(prefix: bytes) -> bytes | None:
    """The first key behind all that start with a prefix; None if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
