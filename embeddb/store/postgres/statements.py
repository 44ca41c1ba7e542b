"""The SQL of the tables of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from embeddb.store.engine import TABLES

__all__ = ["Statements"]


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
