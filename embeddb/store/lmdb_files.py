"""Files of a database folder: opened with the right options, refused where that is unsafe."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import lmdb

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.files.safe_write import open_own, own_size
from embeddb.store.engine import TABLES
from embeddb.store.failures import is_full
from embeddb.store.pages import has_no_table, page_faults

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
WRITER_FILE = "writer.lock"
_READERS = 512
#: Smallest lock file, by LMDB's layout: a header and the table of readers without its last line.
_LOCK_BYTES = 192 + 64 * (_READERS - 1)
#: Size of a file with two meta pages and no table.
_BEGUN_BYTES = 2 * mmap.PAGESIZE
_FIRST_MAP = 1 << 26
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "lustre"}


def opened(folder: Path, *, readonly: bool, create: bool = False) -> Any:
    """The LMDB environment of a folder; with `create`, an interrupted creation is completed.

    Raises: StoreError, OSError, lmdb.Error.
    """
    data = folder / DATA_FILE
    _refuse_network(folder)
    size = own_size(data, hard=readonly)
    if readonly and size is None:
        raise StoreError(f"{folder}: no database there")
    if create and size is not None and size < _BEGUN_BYTES:
        open_own(data, "wb").close()  # left by a creation that was killed or ran out of space
    elif size == 0:
        raise StoreCorrupt(
            f"{data}: empty", hint="restore the folder from a copy, or remove it to start anew"
        )
    locking = os.access(folder, os.W_OK) and has_lock(folder)
    if not (locking or readonly):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    env = lmdb.open(
        os.fsencode(folder),  # a name need not be text
        map_size=max(_FIRST_MAP, size or 0),
        max_dbs=len(TABLES) + 2,
        max_readers=_READERS,
        readonly=readonly,
        lock=locking,
        create=not readonly,
        readahead=False,
    )
    env.reader_check()
    return env


def has_lock(folder: Path) -> bool:
    """Return true if there is a table of readers, or space for one. LMDB writes to a map of it: on
    a full disk, where a sparse file may have fewer blocks than its size, that would end the
    process.

    Raises: OSError where a link or another file type is in its place.
    """
    size = own_size(folder / LOCK_FILE)
    with open_own(folder / LOCK_FILE, "ab") as lock:
        if _room(lock, _LOCK_BYTES):
            return True
        return bool(size) and _room(lock, mmap.PAGESIZE)  # for the first sixty readers


def _room(file: BinaryIO, size: int) -> bool:
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as e:
        return not is_full(e)  # or not supported on this file system
    return True


def is_begun(folder: Path) -> bool:
    """Return true if a folder is empty, or has only the files of a creation that was killed before
    there was a table. Raises: OSError."""
    names = {one.name for one in folder.iterdir()}
    if not names <= {DATA_FILE, LOCK_FILE, WRITER_FILE}:
        return False
    sizes = {name: own_size(folder / name) for name in names}
    if (sizes.get(DATA_FILE) or 0) <= _BEGUN_BYTES:
        return True
    # The pages of an uncommitted first transaction may be there. LMDB is not used here: another
    # thread may be opening the folder.
    with open_own(folder / DATA_FILE, "rb") as data:
        return has_no_table(data)


def writable(folder: Path) -> bool:
    """Return true if this user may write in the folder, on the mount as it is, and may lock it.

    Raises: OSError where a link or another file type is in the place of a file of ours.
    """
    data = folder / DATA_FILE
    if not os.access(folder, os.W_OK):
        return False
    return own_size(data) is None or (os.access(data, os.W_OK) and has_lock(folder))


def refuse_truncated(env: Any, data: Path) -> None:
    """Check the length of the data file. A sound file may end before its last page if that one is
    free, so only then are pages checked."""
    needed = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    size = data.stat().st_size
    if size < needed and broken_pages(data.parent):
        raise StoreCorrupt(
            f"{data}: {size} bytes where {needed} are recorded: truncated",
            hint="restore the folder from a copy or import it again from an export",
        )


def refuse_broken(folder: Path) -> None:
    """Check the pages quickly, before an operation that reads or writes all of them. No page may be
    reused meanwhile. Raises: StoreCorrupt, OSError."""
    with open_own(folder / DATA_FILE, "rb") as data:
        fault = page_faults(data)
    if fault:
        raise StoreCorrupt(
            f"{folder / DATA_FILE}: damaged: {fault}",
            hint="`embeddb db check` lists the damage; restore the folder from a copy",
        )


def broken_pages(folder: Path) -> list[str]:
    """Faults of the pages of the data file, read as plain bytes."""
    from lmdb.verify import VerifyError, verify

    walk: Callable[[str], list[str]] = verify
    try:
        return [f"{DATA_FILE}: {p}" for p in walk(str(folder))]
    except VerifyError as e:
        return [f"{DATA_FILE}: {e}"]


def _refuse_network(folder: Path) -> None:
    """Refuse a network file system, on which LMDB's memory map is not coherent."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and len(fields[1]) >= len(best):
            root = fields[1].rstrip("/") + "/"
            if f"{folder.resolve()}/".startswith(root):
                best, kind = fields[1], fields[2]
    if kind in _NETWORK:
        raise StoreError(
            f"{folder}: on a network file system ({kind}), where LMDB loses data",
            hint="put the database on a local disk",
        )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
