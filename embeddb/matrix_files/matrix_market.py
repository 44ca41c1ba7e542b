"""Matrix Market: coordinate and array, every field and symmetry.

Source: Boisvert, Pozo, Remington, "The Matrix Market Exchange Formats", NISTIR 5935 (1996).
Coordinate entries are parsed by scipy's compiled reader; the header is parsed here, so that its
sizes are checked before that reader allocates them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import refusing
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import MAX_DIM
from embeddb.matrix_files.source import (
    LONGEST_LINE,
    Source,
    mirrored,
    open_source,
    open_stream,
    without_mark,
)

# Integers are read as floats: only their structure matters, and values cannot overflow.
_FIELDS = {
    "complex": "complex",
    "double": "real",
    "float": "real",
    "integer": "real",
    "pattern": "pattern",
    "real": "real",
    "unsigned-integer": "real",
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
#: Replaces NUL bytes, and Fortran's exponents by C's.
_READABLE = bytes.maketrans(b"\0dD", b"?eE")
#: A plus between a blank and a number.
_PLUS = re.compile(rb"(?<=[ \t\n])\+(?=[\d.iInN]|$)")
#: Form of a line by field, where it is not that of a real number.
_ENTRIES = {"pattern": "row column", "complex": "row column real imaginary"}
_LINE = re.compile(r"Line (\d+): (.*)", re.DOTALL)
#: Limit on the comments before the sizes, in bytes.
_MOST_COMMENTS = 2**20
_BLOCK = 2**20
#: Peak memory per entry in bytes: position and value from scipy, then the pattern's own.
_ENTRY_BYTES = 32


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
    """The file with a plain two-line header, no NUL bytes, no plus before a number, and a line
    break at the end.

    scipy's reader searches for the end of a line with `strchr` and reads beyond its buffer if a NUL
    byte or the end of the file comes first (seen with scipy 1.17). It also buffers whole lines, so
    their length is limited here. It does not read `+1.5`, nor `1D0` of a complex number.
    """

    def __init__(self, source: Source, head: bytes, stream: IO[bytes]) -> None:
        super().__init__()
        self._source, self._stream = source, stream
        self._block, self._at = head, 0
        self._ends, self._line_bytes, self._blank = True, 0, True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._at >= len(self._block):
            self._block, self._at = self._next(), 0
        end = self._at + size if size >= 0 else len(self._block)
        part = self._block[self._at : end]
        self._at = end
        return part

    def _next(self) -> bytes:
        """Many lines at once: scipy requests a kilobyte at a time."""
        data = self._stream.read(_BLOCK)
        if not data:
            last, self._ends = (b"" if self._ends else b"\n"), True
            return last
        self._ends = data.endswith(b"\n")
        end = data.rfind(b"\n")
        self._line_bytes = len(data) - end - 1 + (self._line_bytes if end < 0 else 0)
        if self._line_bytes > LONGEST_LINE:
            raise self._source.error(f"a line of more than {LONGEST_LINE} bytes")
        data = data.translate(_READABLE)
        if self._blank and data.startswith(b"+"):
            data = b" " + data[1:]
        self._blank = data[-1:].isspace()
        return _PLUS.sub(b" ", data) if b"+" in data else data


def is_right_hand_side(path: Path) -> bool:
    """Return true if a file is Matrix Market and holds one or some dense columns."""
    try:
        with refusing(MatrixError):
            source = open_source(path, max_nnz=MAX_DIM)
            with open_stream(source) as stream:
                header = _header(source, stream)
    except MatrixError:
        return False
    m, n = header.shape
    return n == 1 or (header.layout == "array" and n < m)


def read(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError, with the line for a wrong entry."""
    from scipy.io import mmread

    with open_stream(source) as stream:
        header = _header(source, stream)
        if header.layout == "array":
            rows, cols = _array(source, header, stream)
            return Pattern.from_coo(header.shape, rows, cols)
        try:
            matrix = mmread(_Rewritten(source, header.text(), stream), spmatrix=False)
        except (ValueError, OverflowError) as error:
            match = _LINE.fullmatch(str(error))
            entry = _ENTRIES.get(header.field, "row column value")
            hint = f"the header declares {header.nnz:,} lines of `{entry}`"
            if match is None:
                raise source.error(str(error), hint=hint) from error
            line = int(match[1]) - 2 + header.lines
            raise source.error(match[2], line=line, hint=hint) from error
    return Pattern.from_coo(header.shape, matrix.row, matrix.col)


def _header(source: Source, stream: IO[bytes]) -> _Header:
    banner = without_mark(_line(source, stream, 1)).decode("latin-1").lower().split()
    if len(banner) != 5 or banner[0] not in ("%%matrixmarket", "%matrixmarket"):
        raise source.error("the first line is not a MatrixMarket banner of five words", line=1)
    _, kind, layout, field, symmetry = banner
    if kind != "matrix" or layout not in ("coordinate", "array"):
        raise source.error(f"cannot read a '{kind} {layout}', only matrices", line=1)
    if field not in _FIELDS or symmetry not in _SYMMETRIES:
        raise source.error(f"unknown kind of matrix: {field} {symmetry}", line=1)
    if layout == "array" and field == "pattern":
        raise source.error("an array cannot be of field 'pattern'", line=1)
    line, text, passed = 2, _line(source, stream, 2), 0
    while text and (not text.strip() or text.lstrip().startswith(b"%")):
        passed += len(text)
        if passed > _MOST_COMMENTS:
            raise source.error(f"no sizes within {_MOST_COMMENTS >> 20} MiB of comments", line=line)
        line, text = line + 1, _line(source, stream, line + 1)
    sizes = _sizes(source, text, 3 if layout == "coordinate" else 2, line)
    m, n = sizes[0], sizes[1]
    if symmetry != "general" and m != n:
        raise source.error(f"a {symmetry} matrix cannot be {m} x {n}", line=line)
    if layout == "coordinate":
        nnz, least = sizes[2], 4  # "1 1\n"
        # The expansion is the same for all three, and scipy does not accept every combination.
        symmetry = "general" if symmetry == "general" else "symmetric"
    else:
        nnz, least = _array_entries(m, n, symmetry), 2  # "1\n"
        source.check_memory(16 * max(m, 0) * max(n, 0), f"a dense {m} x {n} array", line=line)
    taken = _ENTRY_BYTES * (1 if symmetry == "general" else 2) if layout == "coordinate" else 0
    source.check_sizes((m, n), nnz, entry_bytes=least, taken=taken, line=line)
    return _Header(layout, _FIELDS[field], symmetry, (m, n), nnz, line)


def _line(source: Source, stream: IO[bytes], line: int) -> bytes:
    text = stream.readline(LONGEST_LINE + 1)
    if len(text) > LONGEST_LINE:
        raise source.error(f"a line of more than {LONGEST_LINE} bytes", line=line)
    return text


def _array(
    source: Source, header: _Header, stream: IO[bytes]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the non-zeros of an array, which is written column by column.

    scipy's reader is not used: it can crash the process on a damaged or empty array.
    """
    chunks = [np.empty(0, dtype=bool)]
    count = 0
    for first, lines in _blocks(source, header.lines + 1, stream):
        values = _values(source, header, first, lines)
        count += values.size
        if count > header.nnz:
            full = [line for line, text in enumerate(lines, first) if text.strip()]
            line = full[values.size - (count - header.nnz)]
            raise source.error(f"more than the {header.nnz} values of the header", line=line)
        chunks.append(values)
    if count < header.nnz:
        raise source.error(f"truncated: the header states {header.nnz} values, there are {count}")
    nonzero = np.concatenate(chunks)
    at = np.flatnonzero(nonzero)
    m, n = header.shape
    if header.symmetry == "general":
        return at % max(m, 1), at // max(m, 1)
    lower = np.triu_indices(n, 1 if header.symmetry == "skew-symmetric" else 0)
    return mirrored(lower[1][at], lower[0][at])


def _blocks(source: Source, first: int, stream: IO[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Chunks of lines, each with the number of its first line."""
    rest = b""
    while data := stream.read(_BLOCK):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise source.error(f"a line of more than {LONGEST_LINE} bytes", line=first + len(lines))
        yield first, lines
        first += len(lines)
    yield first, [rest]


def _values(source: Source, header: _Header, first: int, lines: list[bytes]) -> NDArray[np.bool_]:
    """bool[v]: true for each value of these lines that is not zero; blank lines are skipped.
    Raises: MatrixError for the first line that is not one value."""
    width, nonzero = 2 if header.field == "complex" else 1, []
    readable = b"\n".join(lines).lower().replace(b"d", b"e").split(b"\n")
    for line, text in enumerate(readable, first):
        words = text.split()
        if words and len(words) != width:
            raise source.error(f"{width} number(s) per line expected", line=line)
        try:
            parts = [float(word) for word in words]
        except ValueError:
            shown = lines[line - first][:60].decode("latin-1").strip()
            raise source.error(f"{shown!r} is not a number", line=line) from None
        if parts:
            nonzero.append(any(parts))
    return np.array(nonzero, dtype=np.bool_)


def _sizes(source: Source, text: bytes, count: int, line: int) -> list[int]:
    words = text.split()
    if len(words) != count or not all(re.fullmatch(rb"[+-]?\d{1,30}", word) for word in words):
        shown = text[:60].decode("latin-1").strip()
        raise source.error(f"expected {count} sizes, not {shown!r}", line=line)
    return [int(word) for word in words]


def _array_entries(m: int, n: int, symmetry: str) -> int:
    if symmetry == "general":
        return m * n
    return n * (n - 1) // 2 if symmetry == "skew-symmetric" else n * (n + 1) // 2
