"""Readers of matrix files in all common formats, as a `Pattern`.

The id of a matrix does not depend on format or value type. Stored entries are structure whatever
their value (explicit zeros and NaN count); symmetric, skew-symmetric and Hermitian storage is
expanded; duplicates are merged. Only containers that must store zeros to fill space (Matrix Market
`array`, BSR blocks, DIA diagonals) are read by their values: a zero there is padding, not an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import refusing
from embeddb.core.pattern import Pattern
from embeddb.matrix_files.recognise import (
    FORMATS,
    format_hint,
    format_of,
    matrix_files,
    matrix_name,
    matrix_names,
    name_beside,
    plain_name,
    stem,
)
from embeddb.matrix_files.source import Source, open_source, plain_text

__all__ = [
    "FORMATS",
    "matrix_files",
    "matrix_name",
    "matrix_names",
    "name_beside",
    "plain_name",
    "read_pattern",
    "sniff",
]


def read_pattern(
    path: str | Path,
    *,
    name: str = "",
    group: str = "",
    max_nnz: int = 2**31 - 1,
    max_bytes: int = 0,
    format: str = "",
) -> Pattern:
    """Read the structure of one matrix file, plain or gzipped.

    `name` defaults to the file's stem (`a/b.mtx.gz` -> `b`), `group` to the name; bytes of a file
    name that are not UTF-8 are escaped. `format` is one of `FORMATS` and overrides `sniff`. Sizes
    are checked against the length of the file before memory of that size is allocated; a file takes
    about max(300 MB, 32 times its size) at most, and no more than `max_bytes` if that is given.

    Raises: MatrixError naming the file (and line) if it is missing, not a regular file, truncated,
    contradicts its stated size, has impossible coordinates or more than `max_nnz` entries, is of an
    unknown format or cannot be parsed for any other reason.
    """
    where = plain_text(path)
    with refusing(MatrixError, where=where):
        chosen = format or format_of(Path(path))
        if chosen not in FORMATS:
            raise MatrixError(f"unknown matrix format {chosen!r}", where=where, hint=format_hint())
        source = open_source(Path(path), max_nnz=max_nnz, max_bytes=max_bytes)
        read: Callable[[Source], Pattern]
        module, _, function = FORMATS[chosen].partition(":")
        read = getattr(import_module(f"embeddb.matrix_files.{module}"), function or "read")
        pattern = read(source)
        if pattern.nnz > max_nnz:
            raise source.error(f"{pattern.nnz} entries are more than the limit of {max_nnz}")
    own = name or stem(Path(where))
    return replace(pattern, name=own, group=group or own)


def sniff(path: str | Path) -> str:
    """The format of a file, one of `FORMATS`: by its suffix, else by its first bytes. Raises:
    MatrixError if neither identifies the format."""
    with refusing(MatrixError, where=plain_text(path)):
        return format_of(Path(path))
