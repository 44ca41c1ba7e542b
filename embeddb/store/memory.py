"""The reference engine: sorted dictionaries in memory."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from embeddb.core.errors import StoreError, StoreReadOnly
from embeddb.store.engine import TABLES, Engine, Txn
from embeddb.store.locks import ReadGate

T = TypeVar("T")
Tables = dict[str, dict[bytes, bytes]]


class _MemoryTxn(Txn):
    def __init__(self, tables: Tables, *, writable: bool) -> None:
        self.tables = dict(tables)
        self._writable = writable
        self._own: set[str] = set()

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables[table].get(key)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._own_table(table, key)[key] = value

    def delete(self, table: str, key: bytes) -> bool:
        return self._own_table(table, key).pop(key, None) is not None

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        rows = self.tables[table]
        keys = sorted(rows)
        for key in keys[bisect_left(keys, prefix) :]:
            if not key.startswith(prefix):
                return
            yield key, rows[key]

    def count(self, table: str) -> int:
        return len(self.tables[table])

    def _own_table(self, table: str, key: bytes) -> dict[bytes, bytes]:
        """The table to change: a copy, since readers may hold the old one."""
        if not self._writable:
            raise StoreReadOnly("a read transaction cannot write")
        if not 1 <= len(key) <= 511:
            raise StoreError(f"a key of {len(key)} bytes does not fit (1 to 511)")
        if table not in self._own:
            self._own.add(table)
            self.tables[table] = dict(self.tables[table])
        return self.tables[table]


class MemoryEngine:
    """A store in memory, gone with the process; used by tests and for single queries."""

    shared = False

    def __init__(self) -> None:
        self.path: Path | None = None
        self.place = "in memory"
        self.readonly = False
        self._tables: Tables = {name: {} for name in TABLES}
        self._gate = ReadGate()
        self._writing = threading.Lock()
        self._version = 0

    @contextmanager
    def read(self) -> Iterator[Txn]:
        thread = self._gate.enter()
        try:
            yield _MemoryTxn(self._tables, writable=False)
        finally:
            self._gate.leave(thread)

    def write(self, body: Callable[[Txn], T]) -> T:
        self._gate.refuse_own_read()
        with self._writing:
            txn = _MemoryTxn(self._tables, writable=True)
            result = body(txn)
            self._tables = txn.tables
            self._version += 1
            return result

    def version(self) -> int:
        return self._version

    def close(self) -> None:
        self._tables = {name: {} for name in TABLES}

    def shared_state(self, make: Callable[[Engine], T]) -> T:
        return make(self)

    def size_bytes(self) -> int:
        return sum(len(k) + len(v) for rows in self._tables.values() for k, v in rows.items())

    def compact(self) -> None:
        """No-op: memory has no free pages."""

    def refuse_damage(self) -> None:
        """No-op: no other process can write here."""

    def problems(self) -> list[str]:
        return []
