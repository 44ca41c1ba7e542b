"""Where everything measured is kept: `open_store(folder)`, `memory_store()`."""

from __future__ import annotations

import os
from pathlib import Path

from embeddb.core.errors import StoreError
from embeddb.core.files.own_files import own_size
from embeddb.store.engine import SCHEMA, Engine, Txn
from embeddb.store.failures import translating
from embeddb.store.lmdb_engine import DATA_FILE, LmdbEngine
from embeddb.store.lmdb_files import is_begun
from embeddb.store.memory import MemoryEngine
from embeddb.store.store import AppendResult, Contradiction, Partition, Store, Taken

__all__ = [
    "SCHEMA",
    "AppendResult",
    "Contradiction",
    "Engine",
    "Partition",
    "Store",
    "Taken",
    "Txn",
    "is_database",
    "memory_store",
    "open_store",
]


def open_store(path: str | Path, *, readonly: bool = False, create: bool = False) -> Store:
    """Open a database folder; a folder that cannot be written to opens read-only.

    With `create` one is made; a folder where that was killed before is taken up.
    Raises: StoreError if it is no database (or, with `create`, if it is one or is not empty);
    StoreCorrupt, StoreVersion as their names say.
    """
    folder = Path(path)
    with translating(folder, OSError):
        _check_folder(folder, create=create)
    engine = LmdbEngine(folder, readonly=readonly, create=create)
    try:
        return Store(engine)
    except BaseException:
        engine.close()
        raise


def is_database(path: str | Path) -> bool:
    """Whether there is one at a path; a folder where the making of one was killed is none, and
    `open_store` takes it up with `create`. Raises: StoreError for a link in the place of a file."""
    folder = Path(path)
    with translating(folder, OSError):
        return os.path.lexists(folder / DATA_FILE) and not is_begun(folder)


def _check_folder(folder: Path, *, create: bool) -> None:
    if create:
        if is_database(folder):
            raise StoreError(f"{folder}: a database is there already")
        if folder.exists() and not (folder.is_dir() and is_begun(folder)):
            raise StoreError(f"{folder}: exists and is not an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    elif own_size(folder / DATA_FILE, hard=True) is None:
        raise StoreError(
            f"{folder}: no database there", hint=f"make one with `embeddb init {folder}`"
        )


def memory_store() -> Store:
    """A store that lives as long as the process; the reference in tests."""
    return Store(MemoryEngine())
