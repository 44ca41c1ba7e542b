"""Errors of LMDB and the operating system, translated to `embeddb.core.errors`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from embeddb.core.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly

#: LMDB reports a partial write, as happens when space runs out, as EIO.
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def translating(folder: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Translate errors of these kinds. Raises: StoreError in their place."""
    try:
        yield
    except kinds as e:
        raise _translated(e, folder) from e


def no_database(place: Path | str) -> StoreError:
    """Error for a place without a database; the hint names the commands that create one."""
    filled = f"`embeddb index {place} LOG` or `embeddb kernel import {place} FILE` makes one"
    hint = f"{filled} and fills it, `embeddb init {place}` an empty one"
    return StoreError(f"{place}: no database there", hint=hint)


def opened_readonly(place: Path | str) -> StoreReadOnly:
    """Error for a write to a database that was opened for reading alone."""
    return StoreReadOnly(f"{place}: opened read-only", hint="copy the database to change it")


def refuse_fork(pid: int, place: str) -> None:
    """Refuse use outside of the process that opened the database. Raises: StoreError."""
    if os.getpid() != pid:
        raise StoreError(
            f"{place}: opened before a fork",
            hint="in the child process, close it and open the database again",
        )


def is_full(e: BaseException) -> bool:
    """Return true for the error of a disk without space (or one that fails)."""
    return isinstance(e, lmdb.DiskError) or any(os.strerror(code) in str(e) for code in _FULL)


def _translated(e: Exception, folder: Path) -> StoreError:
    text = str(e.strerror if isinstance(e, OSError) and e.strerror else e)
    if is_full(e):
        return StoreFull(
            f"{folder}: no space left on the disk (or it fails); the batch was not written",
            hint="free space and run the same command again",
        )
    if isinstance(e, OSError) and e.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
        thing = "something else" if e.errno == errno.ENXIO else "a link"  # a pipe without a reader
        return StoreError(
            f"{e.filename or folder}: {thing} where a file of ours would be",
            hint="check where it leads, then remove it: embeddb follows no links in a database",
        )
    if isinstance(e, OSError) and e.errno == errno.EINVAL and e.filename:
        return StoreError(f"{e.filename}: {e.strerror}", hint="remove it, or restore the folder")
    if isinstance(e, NotADirectoryError):
        return StoreError(f"{folder}: a part of the path is a file; a database is a folder")
    if isinstance(e, FileNotFoundError):
        return StoreError(f"{folder}: no such folder")
    if "already open" in text:
        return StoreError(
            f"{folder}: already open in this process, or in the parent that forked it while a "
            "thread was reading or writing",
            hint="start child processes by `spawn`, or while no thread uses the database",
        )
    if isinstance(e, (lmdb.NotFoundError, lmdb.IncompatibleError)):
        return StoreError(f"{folder}: not an embeddb database")
    if isinstance(e, lmdb.BadValsizeError):
        return StoreError(f"{folder}: a key does not fit (1 to 511 bytes)")
    if isinstance(e, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError)):
        return StoreCorrupt(f"{folder}: {text}", hint="restore the folder from a copy")
    if isinstance(e, lmdb.ReadonlyError) or any(os.strerror(code) in text for code in _DENIED):
        return StoreReadOnly(f"{folder}: {text}")
    return StoreError(f"{folder}: {text}")
