"""Storage of all measurements: `open_store(folder or URL)`, `memory_store()`."""

from __future__ import annotations

import os
from pathlib import Path

from embeddb.core.arguments import require
from embeddb.core.errors import StoreError
from embeddb.core.extras import needing
from embeddb.core.files.safe_write import own_size
from embeddb.core.server_url import is_server_url
from embeddb.store.engine import SCHEMA, Engine, MemoryEngine, Txn
from embeddb.store.failures import no_database, translating
from embeddb.store.folder_engine import FolderEngine
from embeddb.store.lmdb_files import DATA_FILE, is_begun
from embeddb.store.merge_facts import Contradiction
from embeddb.store.merge_runs import AppendResult
from embeddb.store.run_tables import RunTable
from embeddb.store.store import Store

__all__ = [
    "SCHEMA",
    "AppendResult",
    "Contradiction",
    "Engine",
    "RunTable",
    "Store",
    "Txn",
    "is_database",
    "memory_store",
    "open_engine",
    "open_store",
]


def open_store(path: str | Path, *, readonly: bool = False, create: bool = False) -> Store:
    """Open a database folder, or a database on a server (`postgresql://...`); one that this user
    cannot write to opens read-only. All openings of one folder in a process share its engine.

    With `create` a new one is made; a folder in which an earlier creation was interrupted is
    completed. Raises: StoreError if it is no database (or, with `create`, if it is one or is not
    empty); StoreCorrupt, StoreVersion as their names say; MissingDependency for a server without
    psycopg.
    """
    engine = open_engine(path, readonly=readonly, create=create)
    try:
        return Store(engine)
    except BaseException:
        engine.close()
        raise


def open_engine(path: str | Path, *, readonly: bool = False, create: bool = False) -> Engine:
    """The engine below a store, for byte-wise copies. Raises: as `open_store`."""
    if is_server_url(path):
        with needing("a database on a server"):
            from embeddb.store.postgres.postgres_engine import PostgresEngine
        return PostgresEngine(str(path), readonly=readonly, create=create)
    require("the database", path, str | os.PathLike, "a folder, or `starter`,")
    folder = Path(path)
    with translating(folder, OSError):
        _check_folder(folder, create=create)
    return FolderEngine(folder, readonly=readonly, create=create)


def is_database(path: str | Path) -> bool:
    """Return true if a database exists at a path; a folder with an interrupted creation is none,
    and `open_store` completes it with `create`. Raises: StoreError for a link in the place of a
    file, or a server that cannot be reached; MissingDependency as `open_store`."""
    if is_server_url(path):
        with needing("a database on a server"):
            from embeddb.store.postgres.postgres_engine import has_database
        return has_database(str(path))
    folder = Path(path)
    with translating(folder, OSError):
        return os.path.lexists(folder / DATA_FILE) and not is_begun(folder)


def _check_folder(folder: Path, *, create: bool) -> None:
    if folder.exists() and not folder.is_dir():
        hint = "a database is a folder, and comes before files: `embeddb VERB DB FILE`"
        raise StoreError(f"{folder}: a file, not a database", hint=hint)
    if create:
        if is_database(folder):
            raise StoreError(f"{folder}: a database is there already")
        if folder.exists() and not is_begun(folder):
            raise StoreError(f"{folder}: exists and is not an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    elif own_size(folder / DATA_FILE, hard=True) is None:
        raise no_database(folder)


def memory_store() -> Store:
    """A store in memory, gone with the process; the reference in tests."""
    return Store(MemoryEngine())
