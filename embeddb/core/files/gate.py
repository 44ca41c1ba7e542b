"""The one way in for what somebody else wrote: matrices, logs, platforms, models, whole databases.

Bytes come from regular files alone (`open_regular`, `read_bounded`): a named pipe would wait for
ever and a device never ends. Whatever then goes wrong in making sense of them is one error of the
caller's kind (`refusing`): a parser that was fed nonsense may raise anything, and a list of what it
was seen to raise is never whole.
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
    """A regular file, opened for reading without waiting for a writer.

    Raises: OSError, also for what is not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe that nobody writes to would not return.
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
    """A whole regular file of at most `most` bytes.

    Raises: OSError, also for one that is larger.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return data


@contextmanager
def refusing(kind: type[EmbeddbError], *, where: str = "", hint: str = "") -> Iterator[None]:
    """Whatever is raised inside is an error of this kind that names `where`; an `InputError` that
    names a line keeps it. Errors that are not about the input (`UsageError`, a missing dependency,
    `StoreError` …) pass.

    Raises: `kind`.
    """
    try:
        yield
    except InputError as error:
        if isinstance(error, kind) and error.where == where:
            raise
        raise _made(kind, error.reason, where, hint or error.hint, error.line) from error
    except EmbeddbError:
        raise
    except Exception as error:
        raise _made(kind, reason_of(error), where, hint) from error


def reason_of(error: BaseException) -> str:
    """What went wrong, in a few words and one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return "does not fit into memory"
    said = " ".join(str(error).split())[:300]
    return f"{said} ({type(error).__name__})" if said else type(error).__name__


def _made(
    kind: type[EmbeddbError], reason: str, where: str, hint: str, line: int | None = None
) -> EmbeddbError:
    if issubclass(kind, InputError):
        return kind(reason, where=where, line=line, hint=hint)
    return kind(f"{where}: {reason}" if where else reason, hint=hint)
