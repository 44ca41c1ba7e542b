"""Tables of derived data: feature vectors, and small documents by name."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.safe_read import refusing
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.files.user_folders import user_folder
from embeddb.store.codec import pattern_key
from embeddb.store.engine import Engine, Txn, key_of, raise_generation, text_of
from embeddb.store.failures import translating

T = TypeVar("T")

#: Tables of the inputs of featurizers.
_CONTENT = ("structure", "nest", "tensor")
#: Raw vectors float32[d] by (featurizer, version) and pattern id.
Vectors = Mapping[tuple[str, str], Mapping[str, NDArray[np.float32]]]


@contextmanager
def reading(what: str, *, hint: str = "") -> Iterator[None]:
    """Turn any exception on stored data into one `StoreCorrupt` that names it: the database may
    come from others. Raises: StoreCorrupt."""
    with refusing(StoreCorrupt, where=what, hint=hint):
        try:
            yield
        except UsageError as e:  # about a name or value in it, not the caller's
            raise StoreCorrupt(f"{what}: {e}", hint=hint) from e


def decoded(raw: bytes, kind: type[T], what: str) -> T:
    """Decode a stored JSON document. Raises: StoreCorrupt, naming `what`."""
    with reading(what):
        return msgspec.json.decode(raw, type=kind)


class VectorTable:
    """Raw feature vectors float32[d] by (featurizer, version, pattern id)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(
        self, featurizer: str, version: str, vectors: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Store vectors; their workloads count as changed in every table with their runs."""
        rows = _rows({(featurizer, version): vectors})

        def body(txn: Txn) -> None:
            numbers = [number for _, number in txn.scan("partition")]
            heads = [number + key[-16:] for number in numbers for key in rows]
            txn.get_many("vector", rows)
            for key, raw in rows.items():
                txn.put("vector", key, raw)
            raise_generation(txn, txn.get_many("member", heads))

        self._engine.write(body)

    def exchange(self, vectors: Vectors, patterns: Collection[str]) -> None:
        """Replace the vectors of these workloads, in one transaction: readers see the old ones or
        the new, and an interruption leaves one of them.

        Vectors of other workloads, added since, are kept where they are of the same versions; those
        of other versions are removed.
        """
        rows = _rows(vectors)
        prefixes = {_prefix(*kind) for kind in vectors}
        replaced = {pattern_key(i) for i in patterns}

        def body(txn: Txn) -> None:
            stored = dict(txn.scan("vector"))
            gone = {
                key
                for key in stored.keys() - rows.keys()
                if key[:-16] not in prefixes or key[-16:] in replaced
            }
            txn.get_many("vector", [*gone, *rows])
            for key in gone:
                txn.delete("vector", key)
            new = {key: raw for key, raw in rows.items() if stored.get(key) != raw}
            for key, raw in new.items():
                txn.put("vector", key, raw)
            changed = {key[-16:] for key in gone | new.keys()}
            raise_generation(txn, [k for k, _ in txn.scan("member") if k[4:] in changed])

        self._engine.write(body)

    def get(
        self, featurizer: str, version: str, pattern_ids: Iterable[str], *, dim: int | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """The requested vectors that are stored; with `dim`, anything but a finite float32[dim]
        counts as absent, so that it is computed again. Raises: StoreCorrupt, without `dim`, for a
        damaged one."""
        prefix = _prefix(featurizer, version)
        vectors: dict[str, NDArray[np.float32]] = {}
        keys = {prefix + pattern_key(pattern_id): pattern_id for pattern_id in pattern_ids}
        with self._engine.read() as txn:
            for key, raw in txn.get_many("vector", keys).items():
                pattern_id = keys[key]
                if dim is not None and len(raw) != 4 * dim:
                    continue
                vector = _vector(raw, featurizer, pattern_id)
                if dim is None or np.isfinite(vector).all():
                    vectors[pattern_id] = vector
        return vectors

    def lacking(
        self, kinds: Iterable[tuple[str, str]], *, among: Iterable[str] | None = None
    ) -> list[str]:
        """Workloads, of all or `among` some, whose content is stored but no vector of any of these
        (featurizer, version)."""
        prefixes = [_prefix(*kind) for kind in kinds]
        with self._engine.read() as txn:
            if among is None:
                keys = [key for table in _CONTENT for key, _ in txn.scan(table)]
                have = {key[-16:] for p in prefixes for key, _ in txn.scan("vector", p)}
            else:
                wanted = list(map(pattern_key, among))
                there = set[bytes]().union(*(txn.get_many(t, wanted) for t in _CONTENT))
                keys = [k for k in wanted if k in there]
                stored = txn.get_many("vector", [p + k for k in keys for p in prefixes])
                have = {key[-16:] for key in stored}
        return [key.hex() for key in keys if key not in have]

    def every(self, featurizer: str, version: str) -> dict[str, NDArray[np.float32]]:
        """All vectors of a featurizer, by a scan of the whole table: it reports a damaged key,
        which a lookup by key would report as missing. Raises: StoreCorrupt."""
        prefix = _prefix(featurizer, version)
        with self._engine.read() as txn:
            ids = ((key[len(prefix) :].hex(), raw) for key, raw in txn.scan("vector")
                   if key.startswith(prefix))  # fmt: skip
            return {i: _vector(raw, featurizer, i) for i, raw in ids}


def _rows(vectors: Vectors) -> dict[bytes, bytes]:
    return {
        _prefix(*kind) + pattern_key(i): v.astype("<f4").tobytes()
        for kind, by_id in vectors.items()
        for i, v in by_id.items()
    }


def _vector(raw: bytes, featurizer: str, pattern_id: str) -> NDArray[np.float32]:
    with reading(f"the {featurizer} vector of pattern {pattern_id}", hint="`embeddb db rebuild`"):
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)


class BlobTable:
    """Small documents by name."""

    def __init__(self, engine: Engine, table: str) -> None:
        self._engine = engine
        self._table = table

    def put(self, key: str, data: bytes) -> None:
        self._engine.write(lambda txn: txn.put(self._table, key.encode(), data))

    def get(self, key: str) -> bytes | None:
        with self._engine.read() as txn:
            return txn.get(self._table, key_of(key))

    def items(self, prefix: str = "") -> dict[str, bytes]:
        """Documents by name. Raises: StoreCorrupt for an invalid name."""
        with self._engine.read() as txn:
            scanned = txn.scan(self._table, prefix.encode())
            return {text_of(self._table, key): raw for key, raw in scanned}

    def delete(self, keys: Iterable[str]) -> None:
        names = [key.encode() for key in keys]

        def body(txn: Txn) -> None:
            for name in names:
                txn.delete(self._table, name)

        self._engine.write(body)


class AnswerTable(BlobTable):
    """Answers by id, with the order in which they were stored: a clock may be set back."""

    def put(self, key: str, data: bytes) -> None:
        def body(txn: Txn) -> None:
            number = _number(txn.get("meta", b"answers")) + 1
            txn.put("meta", b"answers", number.to_bytes(8, "big"))
            txn.put("note", f"answer/{key}".encode(), number.to_bytes(8, "big"))
            txn.put(self._table, key.encode(), data)

        self._engine.write(body)

    def numbers(self) -> dict[str, int]:
        """Position of each answer by id, counted from 1; answers of older programs have none."""
        with self._engine.read() as txn, reading("the order of the answers"):
            rows = txn.scan("note", b"answer/")
            return {key[7:].decode(): _number(raw) for key, raw in rows}


def _number(raw: bytes | None) -> int:
    """A stored count; 0 for an impossible one."""
    number = int.from_bytes(raw or b"", "big")
    return number if number < 1 << 63 else 0


def _prefix(featurizer: str, version: str) -> bytes:
    return f"{featurizer}\0{version}\0".encode()


# -- The user's folder beside a database on a server: index files, models and notes about them ----


def folder_beside(database: str) -> Path | None:
    """The folder for data derived from a database of that id, created if needed; None where that is
    impossible: indexes then live as long as the process."""
    try:
        name = str(uuid.UUID(database))  # it comes from the server and becomes a path
        folder = _home() / "servers" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (ValueError, OSError, RuntimeError):
        return None
    return folder


def _home() -> Path:
    own = os.environ.get("EMBEDDB_HOME")
    if own:
        return Path(own)
    return user_folder("XDG_CACHE_HOME", ".cache")


#: Largest size of one note in bytes: an atlas of 100,000 workloads is a tenth of it.
_MOST_NOTE_BYTES = 64 << 20


class LocalNotes:
    """Small documents by name, each in a file; of no use outside this folder. Reads and writes as
    `BlobTable` does. Raises: StoreError where the folder cannot be written to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = OwnFolder(root, "notes")

    def put(self, key: str, data: bytes) -> None:
        with translating(self._root, OSError):
            self._folder.write(_file(key), key.encode() + b"\n" + data)

    def get(self, key: str) -> bytes | None:
        return self._read(_file(key)).get(key)

    def items(self, prefix: str = "") -> dict[str, bytes]:
        notes: dict[str, bytes] = {}
        for name in self._folder.files():
            notes |= self._read(name)
        return {key: notes[key] for key in sorted(notes) if key.startswith(prefix)}

    def delete(self, keys: Iterable[str]) -> None:
        with translating(self._root, OSError):
            for key in keys:
                if self.get(key) is not None:
                    self._folder.remove(_file(key))

    def _read(self, name: str) -> dict[str, bytes]:
        """The note of a file; {} for a foreign file."""
        try:
            key, _, data = self._folder.read(name, _MOST_NOTE_BYTES).partition(b"\n")
            return {key.decode(): data} if _file(key.decode()) == name else {}
        except (OSError, UnicodeDecodeError):
            return {}


def _file(key: str) -> str:
    return f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.note"
