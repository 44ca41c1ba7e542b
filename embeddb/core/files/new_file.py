"""A file that several would write, of whom one may: whole, under a name that nobody has."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

from embeddb.core.files.own_files import OwnFolder

__all__ = ["write_new"]

_PART = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_new(folder: OwnFolder, name: str, data: bytes) -> bool:
    """Have a file in the folder, which is made; False where somebody has that name, and then theirs
    stays as it is. It appears whole or not at all, and of any number of writers, on one machine or
    on many that share the disk, the first wins.

    Raises: OSError that names the file, also on a file system without hard links.
    """
    part = f".{name[:180]}.{uuid.uuid4().hex}.part"
    try:
        with folder.opened(make=True) as where:
            return _written(part, name, data, where)
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(folder.path / name), None
        raise


def _written(part: str, name: str, data: bytes, where: int) -> bool:
    fd = os.open(part, _PART, 0o666, dir_fd=where)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        won = _linked(part, name, where)
    finally:
        with suppress(OSError):
            os.unlink(part, dir_fd=where)
    os.fsync(where)
    return won


def _linked(part: str, name: str, where: int) -> bool:
    try:
        os.link(part, name, src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)
    except FileExistsError:
        # Over a network the answer to a link that was made may be lost and the link asked for
        # again; how many names the file has tells whose it is.
        return os.stat(part, dir_fd=where, follow_symlinks=False).st_nlink > 1
    return True
