"""Transactions over tables of keys and values on a server: few round trips, bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from embeddb.core.errors import StoreCorrupt, StoreError, StoreReadOnly
from embeddb.store.engine import TABLES, Txn, sealed, unsealed
from embeddb.store.postgres.schema import Tallies

#: Tables whose values may be of megabytes are read a few at a time.
_LARGE = frozenset({"structure", "nest", "tensor", "recommendation", "note", "model"})
_FIRST_LARGE, _FIRST_SMALL, _MOST_ROWS = 16, 2048, 16384
#: Bytes of one piece of a scan, about, and of what is buffered before it is sent.
_PIECE_BYTES = 4 << 20
_BUFFER_BYTES = 16 << 20
#: Keys that are looked up at once.
_MOST_KEYS = 20_000


class ReadTxn(Txn):
    """On a connection that is in a transaction of one snapshot."""

    def __init__(
        self, connection: psycopg.Connection, statements: Mapping[str, Statements], tallies: Tallies
    ) -> None:
        self._cursor = connection.cursor(binary=True)
        self._sql, self._tallies = statements, tallies
        self._counts: dict[str, int] | None = None

    def get(self, table: str, key: bytes) -> bytes | None:
        row = self._cursor.execute(self._sql[table].get, (key,)).fetchone()
        return None if row is None else unsealed(table, key, row[0])

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        wanted = list(dict.fromkeys(keys))
        for start in range(0, len(wanted), _MOST_KEYS):
            piece = wanted[start : start + _MOST_KEYS]
            for key, raw in self._cursor.execute(self._sql[table].get_many, (piece,)):
                found[key] = unsealed(table, key, raw)
        return {key: found[key] for key in wanted if key in found}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        raise StoreReadOnly("a read transaction cannot write")

    def delete(self, table: str, key: bytes) -> bool:
        raise StoreReadOnly("a read transaction cannot write")

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, raw in self._raw(table, prefix):
            yield key, unsealed(table, key, raw)

    def _raw(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In pieces, each from behind the last key of the one before: a cursor on the server would
        have to be closed by a scan that is left unfinished."""
        start, end = prefix, _behind(prefix)
        most = _FIRST_LARGE if table in _LARGE else _FIRST_SMALL
        statements = self._sql[table]
        while True:
            asked = (start, most) if end is None else (start, end, most)
            text = statements.scan if end is None else statements.scan_to
            rows = self._cursor.execute(text, asked).fetchall()
            yield from rows
            if len(rows) < most:
                return
            start = rows[-1][0] + b"\0"  # the very next key there can be
            size = sum(len(raw) for _, raw in rows) + 1
            most = max(1, min(_MOST_ROWS, 4 * most, most * _PIECE_BYTES // size))

    def count(self, table: str) -> int:
        """As it was counted when it was written; by reading where it was not."""
        found = self._stored(table)
        return self.counted(table) if found is None else found

    def _stored(self, table: str) -> int | None:
        if self._counts is None:
            self._counts = self._tallies.stored(self._cursor)
        return self._counts.get(table)

    def counted(self, table: str) -> int:
        """By reading the table."""
        row = self._cursor.execute(self._sql[table].count).fetchone()
        return 0 if row is None else int(row[0])

    def count_under(self, table: str, prefix: bytes) -> int:
        end = _behind(prefix)
        if end is None:
            return super().count_under(table, prefix)
        row = self._cursor.execute(self._sql[table].count_to, (prefix, end)).fetchone()
        return 0 if row is None else int(row[0])

    def damaged(self, table: str) -> Iterator[str]:
        """A line for every value that is not as it was written, and for a wrong number of them."""
        rows = 0
        for key, raw in self._raw(table, b""):
            rows += 1
            try:
                unsealed(table, key, raw)
            except StoreCorrupt as e:
                yield str(e)
        if rows != (told := self.count(table)):
            yield f"table {table!r}: {rows:,} rows, {told:,} were counted (`db compact` mends it)"


class WriteTxn(ReadTxn):
    """Nobody else writes meanwhile: what was read once is known, and what is written is sent
    together: by COPY where it is known that the key is new."""

    def __init__(
        self, connection: psycopg.Connection, statements: Mapping[str, Statements], tallies: Tallies
    ) -> None:
        super().__init__(connection, statements, tallies)
        #: Values as they are on the server; None where there is none.
        self._known: dict[str, dict[bytes, bytes | None]] = {table: {} for table in TABLES}
        #: Values to be; None where the row is to go.
        self._new: dict[str, dict[bytes, bytes | None]] = {table: {} for table in TABLES}
        self._bytes = 0
        #: Rows that were added, of what was sent, by table.
        self.more = dict.fromkeys(TABLES, 0)

    def get(self, table: str, key: bytes) -> bytes | None:
        for values in (self._new[table], self._known[table]):
            if key in values:
                return values[key]
        found = self._known[table][key] = super().get(table, key)
        return found

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        new, known = self._new[table], self._known[table]
        wanted = list(dict.fromkeys(keys))
        unknown = [key for key in wanted if key not in new and key not in known]
        if unknown:
            known.update(dict.fromkeys(unknown))
            known.update(super().get_many(table, unknown))
        both = ((key, new[key] if key in new else known[key]) for key in wanted)
        return {key: value for key, value in both if value is not None}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        if not 1 <= len(key) <= 511:
            raise StoreError(f"a key of {len(key)} bytes does not fit (1 to 511)")
        self._change(table, key, value)
        self._bytes += len(key) + len(value)
        if self._bytes > _BUFFER_BYTES:
            self.flush()

    def delete(self, table: str, key: bytes) -> bool:
        if self.get(table, key) is None:
            return False
        self._change(table, key, None)
        return True

    def _change(self, table: str, key: bytes, value: bytes | None) -> None:
        self._new[table][key] = value

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._send(table)
        return super().scan(table, prefix)

    def count(self, table: str) -> int:
        self._send(table)
        found = self._stored(table)
        return self.counted(table) if found is None else found + self.more[table]

    def count_under(self, table: str, prefix: bytes) -> int:
        self._send(table)
        return super().count_under(table, prefix)

    def flush(self) -> None:
        """Send all that is buffered."""
        for table in TABLES:
            self._send(table)
        self._bytes = 0

    def _send(self, table: str) -> None:
        new, known, statements = self._new[table], self._known[table], self._sql[table]
        if not new:
            return
        gone = [key for key, value in new.items() if value is None]
        kept = sorted((k, sealed(k, v)) for k, v in new.items() if v is not None)
        fresh = [row for row in kept if row[0] in known and known[row[0]] is None]
        other = [row for row in kept if row[0] not in known or known[row[0]] is not None]
        if gone:
            self.more[table] -= self._cursor.execute(statements.delete, (gone,)).rowcount
        if fresh:
            self.more[table] += len(fresh)
            with self._cursor.copy(statements.copy) as copy:
                copy.set_types(("bytea", "bytea"))
                for row in fresh:
                    copy.write_row(row)
        if other:
            keys, values = [k for k, _ in other], [v for _, v in other]
            self.more[table] += self._lacking([k for k in keys if k not in known], statements)
            self._cursor.execute(statements.upsert, (keys, values))
        for key, value in new.items():
            if value is None:
                known[key] = None
            else:  # read again if it is asked for: what is sent need not be kept
                known.pop(key, None)
        self._new[table] = {}

    def _lacking(self, keys: list[bytes], statements: Statements) -> int:
        """How many of these keys there are none of."""
        if not keys:
            return 0
        row = self._cursor.execute(statements.there, (keys,)).fetchone()
        return len(keys) - (0 if row is None else int(row[0]))


def _behind(prefix: bytes) -> bytes | None:
    """The first key behind all that start with a prefix; None if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one table, made once."""

    get: bytes
    get_many: bytes
    scan: bytes
    scan_to: bytes
    count: bytes
    count_to: bytes
    there: bytes
    delete: bytes
    copy: bytes
    upsert: bytes

    @classmethod
    def by_table(cls, schema: str) -> dict[str, Statements]:
        """Those of every table in a schema."""
        return {table: cls._of(sql.Identifier(schema, table)) for table in TABLES}

    @classmethod
    def _of(cls, table: sql.Identifier) -> Statements:
        def made(text: str) -> bytes:
            return sql.SQL(text).format(table).as_bytes(None)

        return cls(
            get=made("SELECT v FROM {} WHERE k = %b"),
            get_many=made("SELECT k, v FROM {} WHERE k = ANY(%b)"),
            scan=made("SELECT k, v FROM {} WHERE k >= %b ORDER BY k LIMIT %b"),
            scan_to=made("SELECT k, v FROM {} WHERE k >= %b AND k < %b ORDER BY k LIMIT %b"),
            count=made("SELECT count(*) FROM {}"),
            count_to=made("SELECT count(*) FROM {} WHERE k >= %b AND k < %b"),
            there=made("SELECT count(*) FROM {} WHERE k = ANY(%b)"),
            delete=made("DELETE FROM {} WHERE k = ANY(%b)"),
            copy=made("COPY {} (k, v) FROM STDIN (FORMAT BINARY)"),
            upsert=made(
                "INSERT INTO {} (k, v) SELECT * FROM unnest(%b::bytea[], %b::bytea[])"
                " ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v"
            ),
        )
