"""The narrow waist below the store: named tables of sorted bytes, and transactions over them.

Everything the store means is written once, in `embeddb.store.store`; an engine only keeps bytes.
The in-memory engine is the reference the LMDB engine is tested against.

Requirements an engine must meet:

- `write` is atomic: after it returns, everything in it is durable; if it raises, nothing is.
- `write` may call `body` more than once (after growing a map), each time on a clean transaction,
  so `body` must take its input from something it can walk again.
- `read` sees one snapshot for its whole life; it neither blocks nor is blocked by a writer.
- A thread does not call `write` inside its own `read` (StoreError); other threads may.
- Keys are 1 to 511 bytes and scanned in ascending byte order; others raise StoreError when put.
- A writing method of a read transaction raises StoreReadOnly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from embeddb.core.errors import StoreCorrupt

__all__ = [
    "ADDED",
    "SCHEMA",
    "TABLES",
    "Engine",
    "Txn",
    "generation_of",
    "raise_generation",
    "text_of",
]

#: Version of the layout described in docs/data-model.md.
SCHEMA = 1
#: Every table of it; see docs/data-model.md for keys and values.
TABLES = (
    "meta", "pattern", "structure", "name", "alias", "platform", "partition", "member",
    "config", "run", "vector", "recommendation", "note", "journal", "model",
    "withdrawn", "nest", "tensor",
)  # fmt: skip
#: Those whose rows tell how large a database is.
COUNTED = (
    "pattern", "structure", "nest", "tensor", "run", "config", "vector", "recommendation",
    "platform",
)  # fmt: skip
#: Those that came later: where one is lacking it reads as empty, and the first write makes it.
ADDED = frozenset({"model", "withdrawn", "nest", "tensor"})

T = TypeVar("T")


def generation_of(txn: Txn) -> int:
    """Rises with every write of runs or vectors. Raises: StoreCorrupt."""
    found = int.from_bytes(txn.get("meta", b"generation") or b"", "big")
    if found >= 1 << 63:
        raise StoreCorrupt("the database is of a generation that no writing leads to")
    return found


def text_of(table: str, key: bytes) -> str:
    """A key that is text. Raises: StoreCorrupt if it is none."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise StoreCorrupt(
            f"table {table!r}, key {key.hex()[:80]}: not text",
            hint="run `embeddb db check`; restore the folder from a copy",
        ) from None


def raise_generation(txn: Txn, members: Iterable[bytes] = ()) -> None:
    """Count one write, and note it at the given keys of table `member`."""
    value = (generation_of(txn) + 1).to_bytes(8, "big")
    txn.put("meta", b"generation", value)
    for key in members:
        txn.put("member", key, value)


class Txn(Protocol):
    """One transaction; used by one thread, and not after `read` or `write` has ended."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def put(self, table: str, key: bytes, value: bytes) -> None: ...

    def delete(self, table: str, key: bytes) -> bool: ...

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Pairs whose key starts with `prefix`, ascending. Do not write to `table` meanwhile."""
        ...

    def count(self, table: str) -> int: ...


class Engine(Protocol):
    """Keeps the tables. `path` is None for a store that is not on disk."""

    path: Path | None
    readonly: bool

    def read(self) -> AbstractContextManager[Txn]: ...

    def write(self, body: Callable[[Txn], T]) -> T: ...

    def close(self) -> None: ...

    def size_bytes(self) -> int: ...

    def compact(self) -> None:
        """Rewrite the data without free pages, atomically."""
        ...

    def refuse_damage(self) -> None:
        """A look that costs little, before all of the data is read for somebody else.

        Raises: StoreCorrupt.
        """
        ...

    def problems(self) -> list[str]:
        """Every damage found by reading all of the data; empty if sound."""
        ...
