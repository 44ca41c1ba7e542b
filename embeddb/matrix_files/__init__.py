"""Matrix files of any usual format -> `Pattern`.

Whatever the format or value type, the same matrix gives the same id. Stored entries are structure
whatever their value (explicit zeros count, NaN counts); symmetric, skew-symmetric and Hermitian
storage is expanded; duplicates are merged. Only containers that must store zeros to fill space
(Matrix Market `array`, BSR blocks, DIA diagonals) are read by their values: a zero there is
padding, not an entry.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, head_bytes, open_source

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

    `name` defaults to the file's stem (`a/b.mtx.gz` -> `b`), `group` to the name. `format` is one
    of `FORMATS` and overrides `sniff`. Sizes are checked against what the file can hold before
    anything of that size is allocated; a file needs at most max(256 MiB, 200 times its size),
    and no more than `max_bytes` if that is given.

    Raises: MatrixError naming the file (and line) if it is missing, truncated, lies about its
    size, holds impossible coordinates, has more than `max_nnz` entries or is of no known format.
    """
    where = str(path)
    try:
        chosen = format or sniff(path)
        if chosen not in FORMATS:
            raise MatrixError(f"unknown matrix format {chosen!r}", where=where, hint=_hint())
        stem = name or _stem(Path(path))
        source = open_source(
            Path(path), name=stem, group=group or stem, max_nnz=max_nnz, max_bytes=max_bytes
        )
        read: Callable[[Source], Pattern]
        read = import_module(f"embeddb.matrix_files.{FORMATS[chosen]}").read
        pattern = read(source)
        if pattern.nnz > max_nnz:
            raise source.error(f"{pattern.nnz} entries are more than the limit of {max_nnz}")
    except MatrixError as error:
        if error.where == where:
            raise
        raise MatrixError(error.reason, where=where, line=error.line, hint=error.hint) from error
    except MemoryError as error:
        raise MatrixError("this matrix does not fit into memory", where=where) from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MatrixError(f"cannot be read: {reason}", where=where) from error
    return pattern


def sniff(path: str | Path) -> str:
    """The format of a file, one of `FORMATS`: by its suffix, else by its first bytes.

    Raises: MatrixError if neither says what it is.
    """
    suffix = _suffix(Path(path))
    by_name = "hb" if _HB_SUFFIX.fullmatch(suffix) else _BY_SUFFIX.get(suffix, "")
    if by_name and by_name != "edges":
        return by_name
    try:
        head = head_bytes(Path(path))
        size = Path(path).stat().st_size
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MatrixError(f"cannot be read: {reason}", where=str(path)) from error
    found = _by_content(head, size) or by_name
    if not found:
        raise MatrixError("not a matrix file of a known format", where=str(path), hint=_hint())
    return found


def matrix_files(folder: str | Path) -> list[Path]:
    """All matrix files below a folder, sorted; hidden ones and other files are left out.

    A `.txt` counts only if its content is a matrix. Raises: MatrixError if it is not a folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise MatrixError("not a folder", where=str(folder))
    found = []
    for path in sorted(root.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        suffix = _suffix(path)
        known = suffix in _BY_SUFFIX or _HB_SUFFIX.fullmatch(suffix) is not None
        if (known and path.is_file()) or (suffix == ".txt" and path.is_file() and _is_matrix(path)):
            found.append(path)
    return found


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
