"""The user's folder beside a database on a server: index files, models and notes about them."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from embeddb.core.files.safe_write import OwnFolder
from embeddb.store.failures import translating


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
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "embeddb"


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
