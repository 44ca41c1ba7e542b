"""Matrix files of any usual format -> `Pattern`.

Whatever the format or value type, the same matrix gives the same id. Stored entries are structure
whatever their value (explicit zeros count, NaN counts); symmetric, skew-symmetric and Hermitian
storage is expanded; duplicates are merged. Only containers that must store zeros to fill space
(Matrix Market `array`, BSR blocks, DIA diagonals) are read by their values: a zero there is
padding, not an entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.files.gate import refusing
from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, head_bytes, open_source, plain_text

__all__ = ["FORMATS", "matrix_files", "plain_name", "read_pattern", "sniff"]

#: Format name -> the module of this package whose `read(source)` reads it.
FORMATS = {
    "csr": "waco_csr",
    "edges": "edge_list",
    "hb": "harwell_boeing",
    "mat": "matlab",
    "mtx": "matrix_market",
    "npz": "scipy_npz",
    "smtx": "smtx",
}

_BY_SUFFIX = {
    ".csr": "csr",
    ".edgelist": "edges",
    ".edges": "edges",
    ".el": "edges",
    ".hb": "hb",
    ".mat": "mat",
    ".mm": "mtx",
    ".mtx": "mtx",
    ".npz": "npz",
    ".rb": "hb",
    ".smtx": "smtx",
}
#: Suffixes that say nothing about what is inside.
_PLAIN_TEXT = {".csv", ".dat", ".tsv", ".txt"}
_HB_SUFFIX = re.compile(r"\.[rcpi][ushzr][ae]")  # .rua, .psa, .rse …: the type code as suffix

_HB_TYPE_LINE = re.compile(rb"[RCPIQ][USHZR][AE]\s+\d+\s+\d+\s+\d+", re.IGNORECASE)
_SMTX_SIZES = re.compile(rb"\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*")
_EDGE = re.compile(rb"\s*\d+(\s*,\s*|\s+)\d+(\s*,\s*\S+|\s+\S+)*\s*")


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
    name that are no text are escaped. `format` is one of `FORMATS` and overrides `sniff`. Sizes are
    checked against what the file can hold before anything of that size is allocated; a file takes
    about max(300 MB, 32 times its size) at most, and no more than `max_bytes` if that is given.

    Raises: MatrixError naming the file (and line) if it is missing, not a regular file, truncated,
    lies about its size, holds impossible coordinates, has more than `max_nnz` entries, is of no
    known format or cannot be made sense of in any other way.
    """
    where = plain_text(path)
    with refusing(MatrixError, where=where):
        chosen = format or _format_of(Path(path))
        if chosen not in FORMATS:
            raise MatrixError(f"unknown matrix format {chosen!r}", where=where, hint=_hint())
        stem = name or _stem(Path(where))
        source = open_source(
            Path(path), name=stem, group=group or stem, max_nnz=max_nnz, max_bytes=max_bytes
        )
        read: Callable[[Source], Pattern]
        read = import_module(f"embeddb.matrix_files.{FORMATS[chosen]}").read
        pattern = read(source)
        if pattern.nnz > max_nnz:
            raise source.error(f"{pattern.nnz} entries are more than the limit of {max_nnz}")
    return pattern


def sniff(path: str | Path) -> str:
    """The format of a file, one of `FORMATS`: by its suffix, else by its first bytes.

    Raises: MatrixError if neither says what it is.
    """
    with refusing(MatrixError, where=plain_text(path)):
        return _format_of(Path(path))


def _format_of(path: Path) -> str:
    suffix = _suffix(path)
    by_name = "hb" if _HB_SUFFIX.fullmatch(suffix) else _BY_SUFFIX.get(suffix, "")
    if by_name and by_name != "edges":
        return by_name
    found = _by_content(*head_bytes(path)) or by_name
    if not found:
        raise MatrixError("not a matrix file of a known format", hint=_hint())
    return found


def matrix_files(folder: str | Path) -> list[Path]:
    """All matrix files below a folder, sorted; hidden ones and other files are left out.

    A `.txt` counts only if its content is a matrix. Folders that are links are not entered, and
    a link to a file counts as that file. Raises: MatrixError if it is not a folder or cannot be
    read.
    """
    root = Path(folder)
    with refusing(MatrixError, where=plain_text(folder)):
        if not root.is_dir():
            raise MatrixError("not a folder")
        return sorted(_found(root))


def _found(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            suffix = _suffix(path)
            known = suffix in _BY_SUFFIX or _HB_SUFFIX.fullmatch(suffix) is not None
            if name.startswith(".") or not (known or suffix == ".txt"):
                continue
            # Not `exists`: a pipe would be waited for, a device never ends.
            if path.is_file() and (known or _is_matrix(path)):
                yield path


def plain_name(text: str) -> str:
    """A matrix's name as people write it (`HB/bcspwr10.mtx.gz`, with a slash or a backslash)
    without folders and the endings of matrix files."""
    return _stem(Path(text.replace("\\", "/"))) or text


def _is_matrix(path: Path) -> bool:
    try:
        return bool(sniff(path))
    except MatrixError:
        return False


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _stem(path: Path) -> str:
    name = path.name
    if name.lower().endswith(".gz"):
        name = name[:-3]
    suffix = Path(name).suffix
    low = suffix.lower()
    if low in _BY_SUFFIX or low in _PLAIN_TEXT or _HB_SUFFIX.fullmatch(low):
        name = name[: -len(suffix)]
    return name


def _hint() -> str:
    return "known formats: " + ", ".join(sorted(FORMATS)) + " (give one as format=)"


def _by_content(head: bytes, size: int) -> str:
    """`head`: the first bytes, unpacked; `size`: of the file on disk."""
    if head.lstrip(b"%")[:12].lower() == b"matrixmarket":
        return "mtx"
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith((b"MATLAB 5.0", b"MATLAB 7.3", b"\x89HDF")):
        return "mat"
    if len(head) >= 12:
        m, _, nnz = (int.from_bytes(head[i : i + 4], "little", signed=True) for i in (0, 4, 8))
        if m >= 0 and nnz >= 0 and size == 4 * (4 + m + nnz):
            return "csr"
    return _by_lines(head.splitlines())


def _by_lines(lines: list[bytes]) -> str:
    if any(_HB_TYPE_LINE.match(line) for line in lines[2:3]):
        return "hb"
    sizes = _SMTX_SIZES.fullmatch(lines[0]) if lines else None
    if sizes and len(lines) > 1 and b"," not in lines[1] and lines[1].split()[:1] == [b"0"]:
        return "smtx"
    data = [line for line in lines if line.strip() and line.lstrip()[:1] not in b"#%"]
    return "edges" if data and _EDGE.fullmatch(data[0]) else ""
