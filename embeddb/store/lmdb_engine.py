"""The durable engine: one LMDB environment per database folder.

Tasks that LMDB leaves to its user are handled here: the map grows by itself, another process's
growth is followed, a fork is refused, a writer that never ends is reported instead of waited for, a
file that is shorter than its own page count is refused before a page beyond the end is touched, and
every value carries a CRC so that a flipped bit is detected when it is read.

Files of a folder: `data.mdb` and `lock.mdb` are LMDB's, `writer.lock` is held by the writer. Every
open database also holds a shared `flock` on the folder itself: `compact` needs it alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from embeddb.core.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked
from embeddb.core.files.safe_write import sync
from embeddb.store.engine import ADDED, TABLES, Engine, SealedTxn, Txn, sealed, unsealed
from embeddb.store.failures import opened_readonly, refuse_fork, translating
from embeddb.store.lmdb_files import (
    DATA_FILE,
    WRITER_FILE,
    broken_pages,
    may_write,
    opened,
    refuse_broken,
    refuse_truncated,
    writable,
)
from embeddb.store.locks import ReadGate, locked_file, take_lock

T = TypeVar("T")

#: A data file up to this size is checked whole when it is opened, which takes some milliseconds;
#: a larger one before all of it is read.
_SMALL_BYTES = 1 << 20
#: Most looks at pages that another process writes to.
_LOOKS = 5


class _LmdbTxn(SealedTxn):
    """A transaction; `dbs` holds the tables' handles by name, None for a missing table."""

    def __init__(self, txn: Any, dbs: dict[str, Any]) -> None:
        self._txn = txn
        self._dbs = dbs

    def get(self, table: str, key: bytes) -> bytes | None:
        db = self._dbs[table]
        raw = self._txn.get(key, db=db) if db is not None and key else None
        return None if raw is None else unsealed(table, key, raw)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        db, raw = self._dbs[table], sealed(key, value)
        if not self._txn.put(key, raw, db=db, overwrite=False):
            # In place, a large value that is overwritten in its own transaction would keep its
            # longer extent, which `lmdb.verify` takes for damage.
            self._txn.delete(key, db=db)
            self._txn.put(key, raw, db=db)

    def put_sorted(self, table: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        raw = ((key, sealed(key, value)) for key, value in rows)
        with self._txn.cursor(db=self._dbs[table]) as cursor:
            total, added = cursor.putmulti(raw, append=True)
        if total != added:
            raise StoreError(f"{total - added} rows of table {table!r} are not in ascending order")

    def delete(self, table: str, key: bytes) -> bool:
        return bool(self._txn.delete(key, db=self._dbs[table]))

    def raw(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        db = self._dbs[table]
        if db is None:
            return
        with self._txn.cursor(db=db) as cursor:
            if not (cursor.set_range(prefix) if prefix else cursor.first()):
                return
            for key, raw in cursor.iternext(keys=True, values=True):
                if not key.startswith(prefix):
                    return
                yield key, raw

    def count(self, table: str) -> int:
        db = self._dbs[table]
        return 0 if db is None else int(self._txn.stat(db)["entries"])

    def version(self) -> int:
        """Number of the last commit that this transaction sees."""
        return int(self._txn.id())


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode; None where nothing exists."""
    try:
        stat = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _clear(part: Path) -> None:
    """Remove a folder of our own, or anything in its place; never the target of a link."""
    if part.is_symlink() or part.is_file():
        part.unlink()
    shutil.rmtree(part, ignore_errors=True)


class LmdbEngine(Engine):
    """The LMDB environment of a database folder, of which a process may have only one: openings
    share it through `embeddb.store.folder_engine.FolderEngine`.

    With `create`, an interrupted creation is completed. `max_map_bytes` bounds the growth of the
    data file, `wait_s` the time a write waits for another process's write to end. A folder that is
    read-only for this user while another process writes cannot be read safely: LMDB then has no
    place to announce the reader.

    Raises: StoreError if `folder` is no database; StoreCorrupt if its file is shorter than its
    header states; StoreLocked, StoreFull, StoreReadOnly from `write` and `compact`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        readonly: bool = False,
        create: bool = False,
        max_map_bytes: int = 1 << 40,
        wait_s: float = 60.0,
    ) -> None:
        self.path = folder
        self.place = str(folder)
        self._folder = folder
        self._max_map = max_map_bytes
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._gate = ReadGate()
        self._writing, self._written = threading.Lock(), 0
        with translating(folder, lmdb.Error, OSError):
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self.readonly = readonly or not writable(folder)
                self._share_folder()
                with self._writer_lock(self.readonly):
                    self._open_environment(create=create)
            except BaseException:
                os.close(self._fd)
                raise

    def _share_folder(self) -> None:
        if not take_lock(self._fd, fcntl.LOCK_SH, self._wait_s):
            raise StoreLocked(f"{self._folder}: being compacted since {self._wait_s:g} s or more")

    def _open_environment(self, *, create: bool = False) -> None:
        self._env = opened(self._folder, readonly=self.readonly, create=create)
        try:
            refuse_truncated(self._env, self._folder / DATA_FILE)
            while True:
                try:
                    if (self._folder / DATA_FILE).stat().st_size <= _SMALL_BYTES:
                        with self._env.begin():  # while it is open no page is reused
                            refuse_broken(self._folder)
                    self._open_tables()
                    break
                except lmdb.MapResizedError:  # another process writes
                    self._env.set_mapsize(0)
            self._data_file = _identity(self._folder / DATA_FILE)
        except BaseException:
            self._env.close()
            raise

    def allow_writing(self) -> None:
        """Open the environment for writing too, between two reads of this process; without effect
        where this user may not write. Raises: StoreLocked, StoreFull as a write does."""
        refuse_fork(self._pid, self.place)
        if not may_write(self._folder):
            return
        with (
            translating(self._folder, lmdb.Error, OSError),
            self._writer_lock(False),
            self._gate.alone(self._wait_s),
        ):
            # Before `writable` opens the lock file: closing any descriptor of it releases the
            # locks that LMDB holds for this process.
            self._env.close()
            try:
                self.readonly = not writable(self._folder)
                self._open_environment()
            except BaseException:
                self.readonly = True
                self._open_environment()
                raise

    def was_replaced(self) -> bool:
        """Return true if another database, or none, is in the folder's place by now."""
        thread = self._gate.enter()  # compaction replaces the file too
        try:
            now = _identity(self._folder), _identity(self._folder / DATA_FILE)
            return self._fd >= 0 and now != (_identity(self._fd), self._data_file)
        finally:
            self._gate.leave(thread)

    @contextmanager
    def still(self, wait_s: float) -> Iterator[None]:
        """Context without reads and writes in this process. Raises: StoreLocked, StoreError."""
        if not self._writing.acquire(timeout=wait_s):
            raise StoreLocked(f"{self._folder}: a write has not ended for {wait_s:g} s")
        try:
            with self._gate.alone(wait_s):
                yield
        finally:
            self._writing.release()

    def _open_tables(self) -> None:
        """Open the handles of the tables; creates all if the environment is empty and writable.
        LMDB uses a write transaction of its own for that unless the environment is read-only: done
        under the writer lock, so that opening cannot wait for ever."""
        handles: dict[str, Any] = {}
        for name in TABLES:
            try:
                handles[name] = self._env.open_db(name.encode(), create=False)
            except lmdb.NotFoundError:
                if name not in ADDED and (self.readonly or self._env.stat()["entries"]):
                    raise
                handles[name] = None
        # A new dictionary: an open read cannot use a handle that is younger than itself.
        self._dbs = handles
        if handles["meta"] is None:
            self._add_tables()

    def _add_tables(self) -> None:
        """Create tables that a new database, or one of an older program, lacks, in a transaction of
        its own."""
        lacking = [name for name, handle in self._dbs.items() if handle is None]
        if lacking:
            with self._env.begin(write=True) as txn:
                for name in lacking:
                    self._env.open_db(name.encode(), txn=txn)
            self._open_tables()

    @contextmanager
    def read(self) -> Iterator[_LmdbTxn]:
        refuse_fork(self._pid, self.place)
        with translating(self._folder, lmdb.Error):
            txn, dbs, thread = self._begin()
            try:
                yield _LmdbTxn(txn, dbs)
            finally:
                txn.abort()
                self._gate.leave(thread)

    def _begin(self) -> tuple[Any, dict[str, Any], int]:
        while True:
            thread = self._gate.enter()
            try:
                dbs = self._dbs
                return self._env.begin(), dbs, thread
            except lmdb.MapResizedError:
                self._gate.leave(thread)
            except BaseException:
                self._gate.leave(thread)
                raise
            self._remap(0)

    def version(self) -> int:
        with self.read() as txn:
            return txn.version()

    def write(self, body: Callable[[Txn], T]) -> T:
        self._refuse_write()
        with self._writer_lock(self.readonly), translating(self._folder, lmdb.Error):
            while True:
                try:
                    self._add_tables()
                    with self._env.begin(write=True) as txn:
                        return body(_LmdbTxn(txn, self._dbs))
                except lmdb.MapResizedError:
                    size = 0
                except lmdb.MapFullError:
                    size = self._larger_map()
                self._remap(size)

    def _refuse_write(self) -> None:
        refuse_fork(self._pid, self.place)
        if self.readonly:
            raise opened_readonly(self._folder)
        self._gate.refuse_own_read()
        if self.was_replaced():
            raise StoreError(
                f"{self._folder}: removed or replaced since it was opened; a write would be lost",
                hint="close it and open it again",
            )

    def _larger_map(self) -> int:
        now = int(self._env.info()["map_size"])
        if now >= self._max_map:
            raise StoreFull(
                f"{self._folder}: the database has reached its limit of {self._max_map} bytes",
                hint="run `embeddb db compact`, or move old platforms to a database of their own",
            )
        return min(2 * now, self._max_map)

    def _remap(self, size: int) -> None:
        """Map `size` bytes, or as many as another process's growth needs (0)."""
        with self._gate.alone(self._wait_s):
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as e:  # the old map is gone already: reopen it
                self._env.close()
                self._open_environment()
                raise StoreFull(
                    f"{self._folder}: a map of {size} bytes is not to be had: {e}",
                    hint="raise the limit of virtual memory (ulimit -v)",
                ) from e

    @contextmanager
    def _writer_lock(self, readonly: bool) -> Iterator[None]:
        """Lock of the only writer, over processes and threads; no lock where nobody can write.
        Threads wait for each other without polling, as long as writes come to an end. Raises:
        StoreLocked."""
        if readonly:
            yield
            return
        before = self._written
        while not self._writing.acquire(timeout=self._wait_s):
            if self._written == before:
                raise StoreLocked(
                    f"{self._folder}: another thread is writing since {self._wait_s:g} s or more",
                    hint="wait for it, then try again",
                )
            before = self._written
        try:
            with locked_file(self._folder / WRITER_FILE, self._wait_s):
                yield
        finally:
            self._written += 1
            self._writing.release()

    def close(self) -> None:
        """Close the environment; a forked child may then open the folder for itself."""
        self._env.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def size_bytes(self) -> int:
        return (self._folder / DATA_FILE).stat().st_size

    def compact(self) -> None:
        """Rewrite the file without free pages, with no other process using it: its writes to the
        old file would be lost. Raises: StoreLocked while another process has the database open."""
        self._refuse_write()
        with (
            self._writer_lock(False),
            self._alone(),
            translating(self._folder, lmdb.Error, OSError),
        ):
            refuse_broken(self._folder)
            part = self._folder / "compact.part"
            _clear(part)  # left by an interrupted compaction
            part.mkdir()
            try:
                self._env.copy(str(part), compact=True)
                sync(part / DATA_FILE)
                self._env.close()
                (part / DATA_FILE).replace(self._folder / DATA_FILE)
                sync(self._folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
                self._env.close()
                self._open_environment()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._gate.alone(self._wait_s):
            try:
                if not take_lock(self._fd, fcntl.LOCK_EX, 0):
                    raise StoreLocked(
                        f"{self._folder}: open in another process", hint="close it there first"
                    )
                yield
            finally:
                self._share_folder()

    def refuse_damage(self) -> None:
        refuse_fork(self._pid, self.place)
        for left in reversed(range(_LOOKS)):
            seen = self._env.info()["last_txnid"]
            try:
                # Pages that this reader can reach are not written to until it ends.
                with self.read(), translating(self._folder, OSError):
                    return refuse_broken(self._folder)
            except StoreCorrupt:
                # In a folder of others, where it cannot be registered, they may be.
                if not left or self._env.info()["last_txnid"] == seen:
                    raise

    def problems(self) -> list[str]:
        refuse_fork(self._pid, self.place)
        with self.read() as txn:  # as in `refuse_damage`
            if faults := broken_pages(self._folder):
                # Reading through damaged pages could end the process.
                return [f"{DATA_FILE}: {fault}" for fault in faults]
            return [text for table in TABLES for text in txn.damaged(table)]
