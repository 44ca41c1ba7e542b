"""Access to the rows of a log: from regular files alone; every error names the log and the
reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from embeddb.core.errors import EmbeddbError, ReaderError
from embeddb.core.files.safe_read import reason_of
from indexer.readers.base.row import Reader, ReadOptions, Reject, RunRow

#: Most files examined below a folder that is given as a log.
MOST_FILES = 100_000


def read_rows(reader: Reader, path: Path, options: ReadOptions) -> Iterator[RunRow | Reject]:
    """Rows and rejects of a log by a reader, built-in or plug-in.

    Raises: ReaderError naming the log if it cannot be read; other EmbeddbErrors pass.
    """
    try:
        yield from reader.rows(path, options=options)
    except ReaderError as error:
        if error.where:
            raise
        raise ReaderError(error.reason, where=str(path), line=error.line, hint=error.hint) from None
    except EmbeddbError:
        raise
    except Exception as error:
        raise ReaderError(
            f"the reader {reader.name} failed: {reason_of(error)}",
            where=str(path),
            hint="the file is damaged or of another format, or the reader has a bug",
        ) from error


def files_below(folder: Path, ending: str) -> list[Path]:
    """Regular files with an ending in a folder that is given as a log, sorted. Links are not
    followed, since they may lead to any file of the reading user.

    Raises: ReaderError for too many files.
    """
    files: list[Path] = []
    seen = 0
    for place, _, names in os.walk(folder):
        seen += len(names)
        if seen > MOST_FILES:
            raise ReaderError(f"more than {MOST_FILES} files", where=str(folder))
        paths = (Path(place, name) for name in names if name.endswith(ending))
        files += (path for path in paths if path.is_file() and not path.is_symlink())
    return sorted(files)
