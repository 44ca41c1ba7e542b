"""Reading files of others safely: matrices, logs, platforms, models, whole databases.

Only regular files are opened (`open_regular`, `read_bounded`): reading a named pipe would block for
ever and a device never ends. Any exception of a parser becomes one error of the caller's kind
(`refusing`), since a parser may raise anything on hostile input.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from embeddb.core.errors import EmbeddbError, InputError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, without blocking on a pipe. Raises: OSError, also for
    anything but a regular file."""
    # Without O_NONBLOCK, opening a pipe without a writer would block.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            what = _KINDS.get(stat.S_IFMT(mode), "something")
            raise OSError(errno.EINVAL, f"{what}, not a file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_bounded(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises: OSError, also for a
    larger file."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return data


@contextmanager
def refusing(kind: type[EmbeddbError], *, where: str = "", hint: str = "") -> Iterator[None]:
    """Turn any exception raised inside into an error of this kind that names `where`; an
    `InputError` that names a line keeps it. Errors that are not about the input (`UsageError`, a
    missing dependency, `StoreError` …) pass. Raises: `kind`."""
    try:
        yield
    except InputError as error:
        if isinstance(error, kind) and error.where == where:
            raise
        raise _error(kind, error.reason, where, hint or error.hint, error.line) from error
    except EmbeddbError:
        raise
    except Exception as error:
        raise _error(kind, reason_of(error), where, hint) from error


def reason_of(error: BaseException) -> str:
    """Describe an exception in a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return "does not fit into memory"
    text = " ".join(str(error).split())[:300]
    return f"{text} ({type(error).__name__})" if text else type(error).__name__


def _error(
    kind: type[EmbeddbError], reason: str, where: str, hint: str, line: int | None = None
) -> EmbeddbError:
    if issubclass(kind, InputError):
        return kind(reason, where=where, line=line, hint=hint)
    return kind(f"{where}: {reason}" if where else reason, hint=hint)
