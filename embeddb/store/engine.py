"""Storage engines below the store: named tables of sorted bytes, and transactions over them.

The meaning of the bytes is written once, in `embeddb.store.store`; an engine only stores them. The
in-memory engine is the reference against which the LMDB engine is tested.

Requirements an engine must meet:

- `write` is atomic: after it returns, everything in it is durable; if it raises, nothing is.
- `write` may call `body` more than once (after growing a map), each time on a clean transaction,
  so the input of `body` must be iterable again.
- `read` sees one snapshot for its whole life; it neither blocks nor is blocked by a writer.
- A thread does not call `write` inside its own `read` (StoreError); other threads may.
- Keys are 1 to 511 bytes and scanned in ascending byte order; others raise StoreError when put.
- A writing method of a read transaction raises StoreReadOnly.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from embeddb.core.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreVersion
from embeddb.store.locks import ReadGate

#: Version of the layout described in docs/reference/data-model.md.
SCHEMA = 1
#: All tables; see docs/reference/data-model.md for keys and values.
TABLES = (
    "meta", "pattern", "structure", "name", "alias", "platform", "partition", "member",
    "config", "run", "vector", "recommendation", "note", "journal", "model",
    "withdrawn", "nest", "tensor",
)  # fmt: skip
#: Tables whose row counts are the size of a database.
COUNTED = (
    "pattern", "structure", "nest", "tensor", "run", "config", "vector", "recommendation",
    "platform",
)  # fmt: skip
#: Tables of later versions: a missing one reads as empty, and the first write creates it.
ADDED = frozenset({"model", "withdrawn", "nest", "tensor"})

#: Key of `meta`: a copy into this database is unfinished; the value is its source.
COPYING = b"copying"

T = TypeVar("T")


def generation_of(txn: Txn) -> int:
    """Counter that rises with every write of evidence. Raises: StoreCorrupt."""
    generation = int.from_bytes(txn.get("meta", b"generation") or b"", "big")
    if generation >= 1 << 63:
        raise StoreCorrupt("the database has an impossible generation number")
    return generation


def text_of(table: str, key: bytes) -> str:
    """Decode a key that is text. Raises: StoreCorrupt if it is not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise StoreCorrupt(
            f"table {table!r}, key {key.hex()[:80]}: not text",
            hint="run `embeddb db check`; restore the folder from a copy",
        ) from None


def key_of(text: str) -> bytes:
    """Encode a text that is looked for; one that is not UTF-8, as a command line may have, is the
    key of no row."""
    return text.encode("utf-8", "surrogatepass")


def raise_generation(txn: Txn, members: Iterable[bytes] = ()) -> None:
    """Count one write, and record its number at the given keys of table `member`."""
    value = (generation_of(txn) + 1).to_bytes(8, "big")
    txn.put("meta", b"generation", value)
    for key in members:
        txn.put("member", key, value)


def refuse_other_schema(raw: bytes | None, place: str) -> None:
    """Check the value of `meta` `schema`; None where there is none yet. Raises: StoreVersion if the
    data was written with another schema than this program's, or none."""
    if raw is None:
        return
    if not (raw.isdigit() and len(raw) < 9):
        raise StoreVersion(
            f"{place}: its schema is no number: {raw[:40]!r}",
            hint="restore the database from a copy",
        )
    if (schema := int(raw)) != SCHEMA:
        newer = schema > SCHEMA
        raise StoreVersion(
            f"{place}: written with schema {schema}, this program reads {SCHEMA}",
            hint="use a newer embeddb" if newer else "read it with the embeddb that wrote it",
        )


def refuse_unfinished(txn: Txn, place: str) -> None:
    """Check that no copy into this database is unfinished. Raises: StoreError."""
    if txn.get("meta", COPYING) is not None:
        raise StoreError(
            f"{place}: not whole: a copy into it was interrupted",
            hint="run the same `embeddb db copy` again to continue it",
        )


def sealed(key: bytes, value: bytes) -> bytes:
    """Append a CRC of key and value to a value, as it is stored."""
    return value + _seal(key, value)


def unsealed(table: str, key: bytes, raw: bytes) -> bytes:
    """Check and remove the CRC of a stored value. Raises: StoreCorrupt."""
    value = raw[:-4]
    if _seal(key, value) != raw[-4:]:
        raise StoreCorrupt(
            f"table {table!r}, key {key.hex()[:80]}: the stored value is damaged",
            hint="run `embeddb db check`; restore the database from a copy",
        )
    return value


def _seal(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(4, "big")


class Txn(Protocol):
    """One transaction; used by one thread, and not after `read` or `write` has ended."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Values of those keys that exist. A remote engine uses one round trip for all keys, and
        caches them while writing: a `get` of one of these keys is then free."""
        rows = ((key, self.get(table, key)) for key in keys)
        return {key: value for key, value in rows if value is not None}

    def put(self, table: str, key: bytes, value: bytes) -> None: ...

    def put_sorted(self, table: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Put rows in ascending order of their keys, above every key of the table: an engine may
        append them without a search. Raises: StoreError, or not, if they are unsorted."""
        for key, value in rows:
            self.put(table, key, value)

    def delete(self, table: str, key: bytes) -> bool: ...

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Pairs whose key starts with `prefix`, ascending. Do not write to `table` meanwhile."""
        ...

    def scan_sound(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Pairs of `scan`, except those whose value is damaged."""
        return self.scan(table, prefix)

    def count(self, table: str) -> int: ...

    def count_under(self, table: str, prefix: bytes) -> int:
        """Number of keys that start with `prefix`; their values need not be read."""
        return sum(1 for _ in self.scan(table, prefix))


class SealedTxn(Txn, Protocol):
    """A transaction of an engine that stores sealed values."""

    def raw(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and sealed values of a table, in the order of `scan`."""

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, raw in self.raw(table, prefix):
            yield key, unsealed(table, key, raw)

    def scan_sound(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, raw in self.raw(table, prefix):
            if _seal(key, raw[:-4]) == raw[-4:]:
                yield key, raw[:-4]

    def count_under(self, table: str, prefix: bytes) -> int:
        return sum(1 for _ in self.raw(table, prefix))

    def damaged(self, table: str) -> Iterator[str]:
        """A line for every damaged value."""
        for key, raw in self.raw(table):
            try:
                unsealed(table, key, raw)
            except StoreCorrupt as e:
                yield str(e)


class Engine(Protocol):
    """Storage of the tables. `path` is the folder for files beside them, None where there is none;
    `place` describes their location, without a password; `shared` is true for a server, whose
    `path` is a cache of this user alone."""

    path: Path | None
    place: str
    shared: bool = False
    readonly: bool

    def read(self) -> AbstractContextManager[Txn]: ...

    def write(self, body: Callable[[Txn], T]) -> T: ...

    def version(self) -> Hashable:
        """A value that changes with every commit, of this process or another."""
        ...

    def close(self) -> None: ...

    def shared_state(self, make: Callable[[Engine], T]) -> T:
        """State that all openings of the same data in this process share beside the engine (they
        pass the same `make`): created from an engine that lives as long as any of them is open."""
        return make(self)

    def size_bytes(self) -> int: ...

    def compact(self) -> None:
        """Rewrite the data without free pages, atomically."""
        return

    def refuse_damage(self) -> None:
        """Check the data quickly, before all of it is read for another database. Raises:
        StoreCorrupt."""
        return

    def problems(self) -> list[str]:
        """All damage found by reading all data; empty if there is none."""
        return []


# -- The reference engine: sorted dictionaries in memory ------------------------------------------

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


class MemoryEngine(Engine):
    """A store in memory, gone with the process; used by tests and for single queries."""

    def __init__(self) -> None:
        self.path = None
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

    def size_bytes(self) -> int:
        return sum(len(k) + len(v) for rows in self._tables.values() for k, v in rows.items())
