"""Matrix Market: coordinate and array, every field and symmetry.

Source: Boisvert, Pozo, Remington, "The Matrix Market Exchange Formats", NISTIR 5935 (1996).
Coordinate entries are parsed by scipy's compiled reader; the header is parsed here, so that its
sizes are checked before that reader allocates them.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, open_stream

__all__ = ["read"]

# Integers are read as floats: only their structure matters, and no value can then overflow.
_FIELDS = {
    "complex": "complex",
    "double": "real",
    "integer": "real",
    "pattern": "pattern",
    "real": "real",
    "unsigned-integer": "real",
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_LINE = re.compile(r"Line (\d+): (.*)", re.DOTALL)
_LONGEST_LINE = 2**20


@dataclass(frozen=True, slots=True)
class _Header:
    layout: str
    field: str
    symmetry: str
    shape: tuple[int, int]
    nnz: int
    lines: int

    def text(self) -> bytes:
        banner = f"%%MatrixMarket matrix coordinate {self.field} {self.symmetry}"
        return f"{banner}\n{self.shape[0]} {self.shape[1]} {self.nnz}\n".encode()


class _Rewritten(io.RawIOBase):
    """The file with a plain two-line header, no NUL bytes, and a line break at the end.

    scipy's reader looks for the end of a line with `strchr` and runs out of its buffer if a NUL
    byte or the end of the file comes first (seen with scipy 1.17).
    """

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        super().__init__()
        self._next, self._stream, self._ends = head, stream, True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        given, self._next = self._next, b""
        if given:
            return given
        data = self._stream.read(size)
        if data:
            self._ends = data.endswith(b"\n")
            return data.replace(b"\0", b"?") if b"\0" in data else data
        last, self._ends = (b"" if self._ends else b"\n"), True
        return last


def read(source: Source) -> Pattern:
    """Raises: MatrixError, with the line for entries that are malformed or out of range."""
    from scipy.io import mmread

    with open_stream(source) as stream:
        header = _header(source, stream)
        if header.layout == "array":
            rows, cols = _array(source, header, stream)
            return Pattern.from_coo(header.shape, rows, cols, name=source.name, group=source.group)
        try:
            matrix = mmread(_Rewritten(header.text(), stream), spmatrix=False)
        except (ValueError, OverflowError) as error:
            found = _LINE.fullmatch(str(error))
            if found is None:
                raise source.error(str(error)) from error
            line = int(found[1]) - 2 + header.lines
            raise source.error(found[2], line=line) from error
    return Pattern.from_coo(
        header.shape, matrix.row, matrix.col, name=source.name, group=source.group
    )


def _header(source: Source, stream: IO[bytes]) -> _Header:
    banner = stream.readline(_LONGEST_LINE).decode("latin-1").lower().split()
    if len(banner) != 5 or banner[0] not in ("%%matrixmarket", "%matrixmarket"):
        raise source.error("the first line is not a MatrixMarket banner of five words", line=1)
    _, kind, layout, field, symmetry = banner
    if kind != "matrix" or layout not in ("coordinate", "array"):
        raise source.error(f"cannot read a '{kind} {layout}', only matrices", line=1)
    if field not in _FIELDS or symmetry not in _SYMMETRIES:
        raise source.error(f"unknown kind of matrix: {field} {symmetry}", line=1)
    if layout == "array" and field == "pattern":
        raise source.error("an array cannot be of field 'pattern'", line=1)
    line, text = 2, stream.readline(_LONGEST_LINE)
    while text and (not text.strip() or text.lstrip().startswith(b"%")):
        line, text = line + 1, stream.readline(_LONGEST_LINE)
    sizes = _sizes(source, text, 3 if layout == "coordinate" else 2, line)
    m, n = sizes[0], sizes[1]
    if symmetry != "general" and m != n:
        raise source.error(f"a {symmetry} matrix cannot be {m} x {n}", line=line)
    if layout == "coordinate":
        nnz, least = sizes[2], 4  # "1 1\n"
        # The expansion is the same for all three, and scipy does not know every combination.
        symmetry = "general" if symmetry == "general" else "symmetric"
    else:
        nnz, least = _array_entries(m, n, symmetry), 2  # "1\n"
        source.check_memory(16 * max(m, 0) * max(n, 0), f"a dense {m} x {n} array", line=line)
    source.check_sizes((m, n), nnz, entry_bytes=least, line=line)
    return _Header(layout, _FIELDS[field], symmetry, (m, n), nnz, line)


def _array(
    source: Source, header: _Header, stream: IO[bytes]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the non-zeros of an array, which is written column by column.

    Not left to scipy: its reader of arrays can crash the process on a damaged or empty one.
    """
    width = 2 if header.field == "complex" else 1
    nonzero: list[bool] = []
    for line, text in enumerate(stream, header.lines + 1):
        words = text.split()
        if not words:
            continue
        if len(words) != width:
            raise source.error(f"{width} number(s) per line expected", line=line)
        if len(nonzero) == header.nnz:
            raise source.error(f"more than the {header.nnz} values of the header", line=line)
        try:
            values = [float(word.lower().replace(b"d", b"e")) for word in words]
        except ValueError:
            shown = text[:60].decode("latin-1").strip()
            raise source.error(f"{shown!r} is not a number", line=line) from None
        nonzero.append(any(values))
    if len(nonzero) < header.nnz:
        raise source.error(f"truncated: {header.nnz} values promised, {len(nonzero)} found")
    at = np.flatnonzero(nonzero)
    m, n = header.shape
    if header.symmetry == "general":
        return at % max(m, 1), at // max(m, 1)
    lower = np.triu_indices(n, 1 if header.symmetry == "skew-symmetric" else 0)
    cols, rows = lower[0][at], lower[1][at]
    off = rows != cols
    return np.concatenate([rows, cols[off]]), np.concatenate([cols, rows[off]])


def _sizes(source: Source, text: bytes, count: int, line: int) -> list[int]:
    words = text.split()
    if len(words) != count or not all(re.fullmatch(rb"[+-]?\d{1,30}", word) for word in words):
        shown = text[:60].decode("latin-1").strip()
        raise source.error(f"expected {count} sizes, found {shown!r}", line=line)
    return [int(word) for word in words]


def _array_entries(m: int, n: int, symmetry: str) -> int:
    if symmetry == "general":
        return m * n
    return n * (n - 1) // 2 if symmetry == "skew-symmetric" else n * (n + 1) // 2
