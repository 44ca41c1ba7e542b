"""Tables of derived data: feature vectors, and small documents by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from embeddb.store.codec import pattern_key
from embeddb.store.engine import Engine, Txn, raise_generation, text_of

__all__ = ["BlobTable", "VectorTable"]


class VectorTable:
    """Raw feature vectors float32[d] by (featurizer, version, pattern id)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(
        self, featurizer: str, version: str, vectors: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Keep vectors; their patterns count as changed in every partition they have runs in."""
        prefix = _prefix(featurizer, version)
        rows = {pattern_key(i): v.astype("<f4").tobytes() for i, v in vectors.items()}

        def body(txn: Txn) -> None:
            numbers = [number for _, number in txn.scan("partition")]
            heads = [number + key for number in numbers for key in rows]
            for key, raw in rows.items():
                txn.put("vector", prefix + key, raw)
            raise_generation(txn, [h for h in heads if txn.get("member", h) is not None])

        self._engine.write(body)

    def get(
        self, featurizer: str, version: str, pattern_ids: Iterable[str]
    ) -> dict[str, NDArray[np.float32]]:
        """Those of the asked vectors that are there."""
        prefix = _prefix(featurizer, version)
        found: dict[str, NDArray[np.float32]] = {}
        with self._engine.read() as txn:
            for pattern_id in pattern_ids:
                raw = txn.get("vector", prefix + pattern_key(pattern_id))
                if raw is not None:
                    found[pattern_id] = np.frombuffer(raw, dtype="<f4").astype(np.float32)
        return found

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

        def body(txn: Txn) -> None:
            for key in [key for key, _ in txn.scan("vector")]:
                txn.delete("vector", key)
            raise_generation(txn)

        self._engine.write(body)


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
        with self._engine.read() as txn:
            scanned = txn.scan(self._table, prefix.encode())
            return {text_of(self._table, key): raw for key, raw in scanned}

    def delete(self, keys: Iterable[str]) -> None:
        names = [key.encode() for key in keys]

        def body(txn: Txn) -> None:
            for name in names:
                txn.delete(self._table, name)

        self._engine.write(body)


def _prefix(featurizer: str, version: str) -> bytes:
    return f"{featurizer}\0{version}\0".encode()
