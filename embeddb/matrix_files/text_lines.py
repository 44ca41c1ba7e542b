"""Text files as a whole, and lines of whole numbers of any length (graphs, hypergraphs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.matrix_files.source import Source, read_all, without_mark

__all__ = ["NumberLines", "line_starts", "number_lines", "read_text", "words_by_line"]

#: Bytes that a byte of text, a line and a number take while they are parsed.
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
    """The lines of a file without its comments.

    Shapes: `numbers` int64[k], those of all lines one after the other; `counts` int64[l], how many
    of them each line has (a blank line has 0); `places` int64[l], the number of each line (from 1).
    """

    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return self.counts.size

    def place(self, line: int) -> int:
        """The number in the file (from 1) of a line (from 0)."""
        return int(self.places[line])

    def after(self, line: int) -> NumberLines:
        """The lines from `line` (from 0) on."""
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
    """int64[l]: the number of words of each line, of which `starts` int64[l] has the first byte."""
    begins = data > _SPACE
    begins[1:] &= data[:-1] <= _SPACE
    words = np.flatnonzero(begins)
    return np.diff(np.append(np.searchsorted(words, starts), words.size))


def line_starts(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64[l]: the place of the first byte of each line."""
    starts = np.flatnonzero(data == _NEWLINE) + 1
    return np.concatenate([np.zeros(min(data.size, 1), np.int64), starts[starts < data.size]])


def number_lines(source: Source, text: bytes) -> NumberLines:
    """Lines of whole numbers that are not negative; those that begin with % are comments.

    Raises: MatrixError, with the line of anything else.
    """
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
    # A number that overflows saturates, and is then out of range.
    numbers = np.fromstring(data.tobytes(), np.int64, sep=" ") if count else np.zeros(0, np.int64)
    return NumberLines(numbers, counts, np.flatnonzero(~comments) + 1)
