"""Exceptions that nobody expected: a line for the terminal, the details in a file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

from embeddb.core import __version__

__all__ = ["kept"]


def kept(error: BaseException) -> str:
    """Write the traceback of an exception, with the command and the versions, to a new file that
    only this user can read; where it lies, in words."""
    lines = [
        f"embeddb {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {sys.argv!r}",
        "",
        *traceback.format_exception(error),
    ]
    try:
        at, name = tempfile.mkstemp(prefix="embeddb-", suffix=".txt")
        with os.fdopen(at, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write("\n".join(lines))
    except OSError:
        return "a mistake in embeddb; EMBEDDB_DEBUG=1 shows the details"
    return f"a mistake in embeddb; the details lie in {name}"
