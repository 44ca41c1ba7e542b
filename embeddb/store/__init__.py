"""Where everything measured is kept: `open_store(folder)`, `memory_store()`."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.errors import StoreError
from embeddb.store.engine import Engine, Txn
from embeddb.store.failures import translating
from embeddb.store.lmdb_engine import DATA_FILE, LmdbEngine
from embeddb.store.memory import MemoryEngine
from embeddb.store.store import SCHEMA, AppendResult, Contradiction, Partition, Store, Taken

__all__ = [
    "SCHEMA",
    "AppendResult",
    "Contradiction",
    "Engine",
    "Partition",
    "Store",
    "Taken",
    "Txn",
    "memory_store",
    "open_store",
]


def open_store(path: str | Path, *, readonly: bool = False, create: bool = False) -> Store:
    """Open a database folder; a folder that cannot be written to opens read-only.

    Raises: StoreError if it is no database (or, with `create`, if it is one or is not empty);
    StoreCorrupt, StoreVersion as their names say.
    """
    folder = Path(path)
    with translating(folder, OSError):
        _check_folder(folder, create=create)
    engine = LmdbEngine(folder, readonly=readonly)
    try:
        return Store(engine)
    except BaseException:
        engine.close()
        raise


def _check_folder(folder: Path, *, create: bool) -> None:
    data = folder / DATA_FILE
    if create:
        if data.exists():
            raise StoreError(f"{folder}: a database is there already")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(f"{folder}: exists and is not an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    elif not data.is_file():
        raise StoreError(
            f"{folder}: no database there", hint=f"make one with `embeddb init {folder}`"
        )


def memory_store() -> Store:
    """A store that lives as long as the process; the reference in tests."""
    return Store(MemoryEngine())
