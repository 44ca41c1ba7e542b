"""The files of a database folder: opened with the right options, refused where they are unsafe."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.store.engine import TABLES

__all__ = ["DATA_FILE", "broken_pages", "opened", "refuse_truncated", "sync", "writable"]

DATA_FILE = "data.mdb"
_FIRST_MAP = 1 << 26
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "lustre"}


def opened(folder: Path, readonly: bool) -> Any:
    """The LMDB environment of a folder. Raises: StoreError, lmdb.Error."""
    data = folder / DATA_FILE
    _refuse_network(folder)
    size = data.stat().st_size if data.exists() else 0
    if readonly and not data.exists():
        raise StoreError(f"{folder}: no database there")
    if data.exists() and not size:
        raise StoreCorrupt(
            f"{data}: empty", hint="restore the folder from a copy, or remove it to start anew"
        )
    env = lmdb.open(
        os.fsencode(folder),  # a name need not be text
        map_size=max(_FIRST_MAP, size),
        max_dbs=len(TABLES) + 2,
        max_readers=512,
        readonly=readonly,
        lock=os.access(folder, os.W_OK),
        create=not readonly,
        readahead=False,
    )
    env.reader_check()
    return env


def writable(folder: Path) -> bool:
    """Whether this user may write there, on the mount as it is."""
    data = folder / DATA_FILE
    return os.access(folder, os.W_OK) and (not data.exists() or os.access(data, os.W_OK))


def refuse_truncated(env: Any, data: Path) -> None:
    """A sound file may end before its last page if that one is free, so only then look closer."""
    needed = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    size = data.stat().st_size
    if size < needed and broken_pages(data.parent):
        raise StoreCorrupt(
            f"{data}: {size} bytes where {needed} are recorded: truncated",
            hint="restore the folder from a copy or import it again from an export",
        )


def broken_pages(folder: Path) -> list[str]:
    """What is wrong with the pages of the data file, read as plain bytes."""
    from lmdb.verify import VerifyError, verify

    walk: Callable[[str], list[str]] = verify
    try:
        return [f"{DATA_FILE}: {p}" for p in walk(str(folder))]
    except VerifyError as e:
        return [f"{DATA_FILE}: {e}"]


def _refuse_network(folder: Path) -> None:
    """LMDB's memory map is not coherent over a network file system."""
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
