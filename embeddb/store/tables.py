"""Tables of derived data: feature vectors, and small documents by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.safe_read import refusing
from embeddb.store.codec import pattern_key
from embeddb.store.engine import Engine, Txn, raise_generation, text_of

T = TypeVar("T")

#: Tables of what vectors are made from.
_CONTENT = ("structure", "nest", "tensor")
#: Raw vectors float32[d] by (featurizer, version) and pattern id.
Vectors = Mapping[tuple[str, str], Mapping[str, NDArray[np.float32]]]


@contextmanager
def reading(what: str, *, hint: str = "") -> Iterator[None]:
    """Whatever is wrong with something that a database holds is one `StoreCorrupt` that names it:
    who wrote the database may be anybody.

    Raises: StoreCorrupt.
    """
    with refusing(StoreCorrupt, where=what, hint=hint):
        try:
            yield
        except UsageError as e:  # of a name or value in it, not of the caller's
            raise StoreCorrupt(f"{what}: {e}", hint=hint) from e


def decoded(raw: bytes, kind: type[T], what: str) -> T:
    """A stored JSON document. Raises: StoreCorrupt, naming `what`."""
    with reading(what):
        return msgspec.json.decode(raw, type=kind)


class VectorTable:
    """Raw feature vectors float32[d] by (featurizer, version, pattern id)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(
        self, featurizer: str, version: str, vectors: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Keep vectors; their patterns count as changed in every partition they have runs in."""
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
        """Have just these vectors of these patterns, in one transaction: readers see the old ones
        or the new, and so does who comes after a kill.

        Vectors of other patterns, which came since, are kept where they are of the same versions;
        those of other versions go.
        """
        rows = _rows(vectors)
        prefixes = {_prefix(*kind) for kind in vectors}
        asked = {pattern_key(i) for i in patterns}

        def body(txn: Txn) -> None:
            known = dict(txn.scan("vector"))
            gone = {
                key
                for key in known.keys() - rows.keys()
                if key[:-16] not in prefixes or key[-16:] in asked
            }
            txn.get_many("vector", [*gone, *rows])
            for key in gone:
                txn.delete("vector", key)
            new = {key: raw for key, raw in rows.items() if known.get(key) != raw}
            for key, raw in new.items():
                txn.put("vector", key, raw)
            changed = {key[-16:] for key in gone | new.keys()}
            raise_generation(txn, [k for k, _ in txn.scan("member") if k[4:] in changed])

        self._engine.write(body)

    def get(
        self, featurizer: str, version: str, pattern_ids: Iterable[str], *, dim: int | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Those of the asked vectors that are there; with `dim`, what is no finite float32[dim]
        counts as absent, so that it is made anew.

        Raises: StoreCorrupt, without `dim`, for one that is none.
        """
        prefix = _prefix(featurizer, version)
        found: dict[str, NDArray[np.float32]] = {}
        keys = {prefix + pattern_key(pattern_id): pattern_id for pattern_id in pattern_ids}
        with self._engine.read() as txn:
            for key, raw in txn.get_many("vector", keys).items():
                pattern_id = keys[key]
                if dim is not None and len(raw) != 4 * dim:
                    continue
                vector = _vector(raw, featurizer, pattern_id)
                if dim is None or np.isfinite(vector).all():
                    found[pattern_id] = vector
        return found

    def lacking(
        self, kinds: Iterable[tuple[str, str]], *, among: Iterable[str] | None = None
    ) -> list[str]:
        """Patterns, of all or `among` some, whose structure is kept and that have no vector of any
        of these (featurizer, version)."""
        prefixes = [_prefix(*kind) for kind in kinds]
        with self._engine.read() as txn:
            if among is None:
                keys = [key for table in _CONTENT for key, _ in txn.scan(table)]
                have = {key[-16:] for p in prefixes for key, _ in txn.scan("vector", p)}
            else:
                asked = list(map(pattern_key, among))
                there = set[bytes]().union(*(txn.get_many(t, asked) for t in _CONTENT))
                keys = [k for k in asked if k in there]
                found = txn.get_many("vector", [p + k for k in keys for p in prefixes])
                have = {key[-16:] for key in found}
        return [key.hex() for key in keys if key not in have]

    def every(self, featurizer: str, version: str) -> dict[str, NDArray[np.float32]]:
        """All vectors of a featurizer, found by reading the whole table: a vector whose key is
        damaged is met, where one that is asked for by its key would only be missing.

        Raises: StoreCorrupt.
        """
        prefix = _prefix(featurizer, version)
        with self._engine.read() as txn:
            return {
                key[len(prefix) :].hex(): np.frombuffer(raw, dtype="<f4").astype(np.float32)
                for key, raw in txn.scan("vector")
                if key.startswith(prefix)
            }

    def drop(self) -> None:
        """Forget all of them; `embed` makes them anew."""
        self.exchange({}, ())


def _rows(vectors: Vectors) -> dict[bytes, bytes]:
    return {
        _prefix(*kind) + pattern_key(i): v.astype("<f4").tobytes()
        for kind, held in vectors.items()
        for i, v in held.items()
    }


def _vector(raw: bytes, featurizer: str, pattern_id: str) -> NDArray[np.float32]:
    with reading(f"the {featurizer} vector of pattern {pattern_id}", hint="`embeddb db rebuild`"):
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)


class Notes(Protocol):
    """Small documents by name, wherever they are kept. Raises: StoreError where they cannot be."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def items(self, prefix: str = "") -> dict[str, bytes]: ...

    def delete(self, keys: Iterable[str]) -> None: ...


class BlobTable:
    """Small documents by name."""

    def __init__(self, engine: Engine, table: str) -> None:
        self._engine = engine
        self._table = table

    def put(self, key: str, data: bytes) -> None:
        self._engine.write(lambda txn: txn.put(self._table, key.encode(), data))

    def get(self, key: str) -> bytes | None:
        with self._engine.read() as txn:
            return txn.get(self._table, key.encode())

    def items(self, prefix: str = "") -> dict[str, bytes]:
        """Raises: StoreCorrupt for a name that is none."""
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
    """Answers by id, and in which order they were kept: a clock may be set back."""

    def put(self, key: str, data: bytes) -> None:
        def body(txn: Txn) -> None:
            number = _number(txn.get("meta", b"answers")) + 1
            txn.put("meta", b"answers", number.to_bytes(8, "big"))
            txn.put("note", f"answer/{key}".encode(), number.to_bytes(8, "big"))
            txn.put(self._table, key.encode(), data)

        self._engine.write(body)

    def numbers(self) -> dict[str, int]:
        """Counted from 1 by id; those of older programs have none."""
        with self._engine.read() as txn, reading("the order of the answers"):
            rows = txn.scan("note", b"answer/")
            return {key[7:].decode(): _number(raw) for key, raw in rows}


def _number(raw: bytes | None) -> int:
    """A stored count; one that nobody can have counted to is 0."""
    found = int.from_bytes(raw or b"", "big")
    return found if found < 1 << 63 else 0


def _prefix(featurizer: str, version: str) -> bytes:
    return f"{featurizer}\0{version}\0".encode()
