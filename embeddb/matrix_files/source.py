"""A matrix file being read: its limits, and bounded access to its bytes."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import open_regular
from embeddb.core.sizes import MAX_DIM

#: No deflate stream expands further than this (zlib manual, "maximum compression factor").
DEFLATE_RATIO = 1032
#: Longest line of text in bytes; lines are held whole.
LONGEST_LINE = 2**20
#: Limits for any file on memory, on bytes held unpacked at once, and on bytes unpacked in pieces,
#: each with a multiple of the size for larger files. Index arrays deflate to a third, text to a
#: tenth.
_MEMORY = 256 * 2**20, 32
HELD = 32 * 2**20, 32
STREAMED = 256 * 2**20, 200
#: Memory per row of a pattern in bytes: its pointer in 8 and in 4, marks, and the pointers of a
#: copy without some of the entries.
_ROW_BYTES = 20
_CHUNK = 2**20
#: Bytes that show the format of a file.
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """A file on disk of `size` bytes, and the limits for its pattern."""

    path: Path
    max_nnz: int
    size: int
    gzipped: bool
    max_bytes: int = 0

    def most(self, bound: tuple[int, int]) -> int:
        """Limit for this file, such as `HELD`; at most `max_bytes` if that is set."""
        own = max(bound[0], bound[1] * self.size)
        return min(own, self.max_bytes) if self.max_bytes else own

    def error(self, message: str, *, line: int | None = None, hint: str = "") -> MatrixError:
        return MatrixError(message, where=plain_text(self.path), line=line, hint=hint)

    def check_sizes(
        self,
        shape: tuple[int, int],
        nnz: int,
        *,
        entry_bytes: int,
        taken: int = 16,
        line: int | None = None,
        unpacked: int | None = None,
    ) -> None:
        """Check sizes in a header: refuse impossible ones and those that the file is too short for.

        `entry_bytes`: the fewest bytes one of the `nnz` entries takes in the unpacked file, `taken`
        the memory for reading it; `unpacked`: the unpacked file's length where it is known. Raises:
        MatrixError.
        """
        m, n = shape
        if min(m, n, nnz) < 0:
            raise self.error(f"negative size in the header: {m} x {n}, {nnz} entries", line=line)
        if max(m, n) > MAX_DIM:
            raise self.error(f"{m} x {n} is larger than 2^31-1", line=line)
        if nnz > self.max_nnz:
            raise self.error(f"{nnz} entries are more than the limit of {self.max_nnz}", line=line)
        if unpacked is None:
            unpacked = self.size * (DEFLATE_RATIO if self.gzipped else 1)
        if nnz * entry_bytes > unpacked + entry_bytes:  # the last separator may be missing
            raise self.error(
                f"the header states {nnz} entries, but {unpacked} bytes cannot hold them",
                line=line,
                hint="the file is truncated or its header is wrong",
            )
        needed = _ROW_BYTES * m + taken * nnz
        self.check_memory(needed, f"{m} rows with {nnz} entries", line=line)

    def check_memory(self, needed: int, what: str, *, line: int | None = None) -> None:
        """Check that `needed` bytes are in proportion to the file. Raises: MatrixError."""
        self._check(needed, _MEMORY, f"the memory for {what}", line)

    def check_unpacked(self, size: int, bound: tuple[int, int]) -> None:
        """Check that so many bytes may be unpacked (`HELD`, `STREAMED`). Raises: MatrixError."""
        self._check(size, bound, "the unpacked file")

    def _check(
        self, needed: int, bound: tuple[int, int], what: str, line: int | None = None
    ) -> None:
        if needed > self.most(bound):
            raise self.error(
                f"{what} would be {needed / 2**30:.1f} GiB, {needed // max(self.size, 1)} times "
                "the size of the file",
                line=line,
                hint="if the matrix is real, save it uncompressed and without its empty rows",
            )


def plain_text(path: str | Path) -> str:
    """A path as text that can be printed and stored: bytes that are not UTF-8 are escaped."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # undecodable bytes
        return str(path).encode("utf-8", "backslashreplace").decode()


def open_source(path: Path, *, max_nnz: int, max_bytes: int = 0) -> Source:
    """Open a file. Raises: OSError, also for anything but a regular file."""
    with open_regular(path) as file:
        gzipped = file.read(2) == b"\x1f\x8b"
        size = file.seek(0, io.SEEK_END)
    return Source(path, max_nnz, size, gzipped, max_bytes)


def open_stream(source: Source) -> IO[bytes]:
    """The unpacked bytes, buffered; reading raises MatrixError beyond the limit."""
    file = open_regular(source.path)
    if not source.gzipped:
        return file
    check = partial(source.check_unpacked, bound=STREAMED)
    return io.BufferedReader(_Unzipped(file, check), _CHUNK)


def read_all(source: Source) -> bytes:
    """The whole unpacked file. Raises: MatrixError, OSError, EOFError, zlib.error."""
    with open_stream(source) as stream:
        if not source.gzipped:
            return stream.read()
        unpacked = io.BytesIO()
        while part := stream.read(_CHUNK):
            source.check_unpacked(unpacked.tell() + len(part), HELD)
            unpacked.write(part)
    return unpacked.getvalue()


def mirrored(
    rows: NDArray[np.int64], cols: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries of one triangle, followed by their mirror images across the diagonal."""
    off = rows != cols
    return np.concatenate([rows, cols[off]]), np.concatenate([cols, rows[off]])


def without_mark(text: bytes) -> bytes:
    """Text without the byte-order mark that some editors write."""
    return text.removeprefix(b"\xef\xbb\xbf")


def head_bytes(path: Path) -> tuple[bytes, int]:
    """The first bytes of a file, unpacked if it is gzipped, and its size on disk. Raises: OSError,
    EOFError, zlib.error."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
        if head[:2] != b"\x1f\x8b":
            return head, size
        file.seek(0)
        with io.BufferedReader(_Unzipped(file, lambda _: None)) as stream:
            return stream.read(_HEAD_BYTES), size


class _Unzipped(io.RawIOBase):
    """Unpacked bytes of an open gzip file, which is closed with this; `check` is called with the
    number of bytes so far. Raises: EOFError for a truncated file, zlib.error and gzip.BadGzipFile
    for a damaged one."""

    def __init__(self, file: BinaryIO, check: Callable[[int], None]) -> None:
        super().__init__()
        self._file, self._unpacked, self._check = file, gzip.GzipFile(fileobj=file), check

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            size = self._unpacked.readinto1(buffer)
        except EOFError:
            raise EOFError("the packed file is truncated") from None
        self._check(self._unpacked.tell())
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


#: Peak memory per byte of text, per line and per number while parsing, in bytes.
_TEXT_BYTES, _LINE_BYTES, _NUMBER_BYTES = 8, 32, 64
#: Bytes up to a blank separate words.
_NEWLINE, _SPACE, _COMMENT = ord("\n"), ord(" "), ord("%")


def _table(members: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[list(members)] = True
    return table


_DIGIT, _BLANK = _table(b"0123456789"), _table(b" \t\r\n\v\f")


@dataclass(frozen=True, slots=True)
class NumberLines:
    """Lines of a file without its comments.

    Shapes: `numbers` int64[k], those of all lines in order; `counts` int64[l], the number of them
    on each line (0 for a blank line); `places` int64[l], the number of each line (from 1).
    """

    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return self.counts.size

    def place(self, line: int) -> int:
        """Line number in the file (from 1) of a line (from 0)."""
        return int(self.places[line])

    def after(self, line: int) -> NumberLines:
        """Lines from `line` (from 0) on."""
        start = int(self.counts[:line].sum())
        return NumberLines(self.numbers[start:], self.counts[line:], self.places[line:])

    def first(self, lines: int) -> NumberLines:
        """The first lines."""
        counts = self.counts[:lines]
        return NumberLines(self.numbers[: int(counts.sum())], counts, self.places[:lines])


def read_text(source: Source) -> bytes:
    """The whole unpacked file without a byte-order mark. Raises: as `read_all`."""
    return without_mark(read_all(source))


def words_by_line(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[l]: words of each line; `starts` int64[l] are the positions of first bytes."""
    begins = data > _SPACE
    begins[1:] &= data[:-1] <= _SPACE
    words = np.flatnonzero(begins)
    return np.diff(np.append(np.searchsorted(words, starts), words.size))


def line_starts(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64[l]: position of the first byte of each line."""
    starts = np.flatnonzero(data == _NEWLINE) + 1
    return np.concatenate([np.zeros(min(data.size, 1), np.int64), starts[starts < data.size]])


def number_lines(source: Source, text: bytes) -> NumberLines:
    """Lines of non-negative integers; those that begin with % are comments. Raises: MatrixError,
    with the line of anything else."""
    source.check_memory(_TEXT_BYTES * len(text), f"{len(text)} bytes of text")
    data = np.frombuffer(text, np.uint8)
    lines = text.count(b"\n") + 1
    source.check_memory(_LINE_BYTES * lines, f"{lines} lines")
    starts = line_starts(data)
    comments = data[starts] == _COMMENT
    if comments.any():
        hidden = np.repeat(comments, np.diff(np.append(starts, data.size)))
        data = np.where(hidden & (data != _NEWLINE), np.uint8(_SPACE), data)
    wrong = ~(_DIGIT[data] | _BLANK[data])
    if wrong.any():
        line = int(np.searchsorted(starts, int(np.argmax(wrong)), side="right"))
        shown = text.split(b"\n", line)[line - 1][:60].decode("latin-1").strip()
        raise source.error(f"{shown!r} is not a line of whole numbers", line=line)
    counts = words_by_line(data, starts)[~comments]
    count = int(counts.sum())
    source.check_memory(_NUMBER_BYTES * count, f"{count} numbers")
    # An overflowing number saturates and is then out of range.
    numbers = np.fromstring(data.tobytes(), np.int64, sep=" ") if count else np.zeros(0, np.int64)
    return NumberLines(numbers, counts, np.flatnonzero(~comments) + 1)
