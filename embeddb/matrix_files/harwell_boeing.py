"""Harwell-Boeing and Rutherford-Boeing files, assembled, of every value and symmetry type.

Sources: Duff, Grimes, Lewis, "Users' Guide for the Harwell-Boeing Sparse Matrix Collection" (1992),
section 2; "The Rutherford-Boeing Sparse Matrix Collection", RAL-TR-97-031 (1997), sect. 2. Numbers
are in columns of fixed width, with or without spaces between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, mirrored, read_text

#: Descriptors of a Fortran format: a group with its repeat count, integers, blanks, a scale factor.
_FORMAT = re.compile(
    r"(?P<times>\d{0,4})(?:(?P<open>\()|I(?P<width>\d{1,3})(?:\.\d+)?|(?P<blanks>X))"
    r"|(?P<close>\))|[+-]?\d+P|,"
)
_BLANK = b" \t\r\x1a"  # x1a: the end-of-file mark that old systems appended
_EXPANDED = "SHZ"
#: Largest number of descriptors of a format, and of digits of a number.
_MOST_ITEMS, _MOST_WIDTH = 10_000, 30
#: Number of values read together, and peak memory per line, column and entry in bytes.
_TOGETHER = 1 << 20
_LINE_BYTES, _COLUMN_BYTES, _ENTRY_BYTES = 64, 32, 32


@dataclass(frozen=True, slots=True)
class _Format:
    """Positions of the numbers of a line: (first column, width) of each, in its `first` line and,
    where the format repeats its last group, in `later` ones."""

    first: tuple[tuple[int, int], ...]
    later: tuple[tuple[int, int], ...]

    def lines(self, count: int) -> int:
        """Number of lines for so many numbers."""
        return -(-max(count - len(self.first), 0) // len(self.later)) + (count > 0)

    def line_of(self, number: int) -> int:
        """Line (from 0) of a number (from 0)."""
        return self.lines(number + 1) - 1


@dataclass(frozen=True, slots=True)
class _Header:
    lines: int
    pointer_lines: int
    index_lines: int
    other_lines: int
    symmetry: str
    shape: tuple[int, int]
    nnz: int
    pointer_format: _Format
    index_format: _Format


def read(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError, with the line for numbers that cannot be read."""
    data = read_text(source).removesuffix(b"\n")
    header = _header(source, [line.rstrip(_BLANK) for line in data.split(b"\n", 4)[:4]], len(data))
    m, n = header.shape
    at = header.lines + header.pointer_lines
    used = at + header.index_lines
    source.check_memory(_LINE_BYTES * used, f"{used} lines")
    parts = data.split(b"\n", used)
    lines = [line.rstrip(_BLANK) for line in parts[:used]]
    rest = parts[used].rstrip(_BLANK + b"\n") if len(parts) > used else b""
    line_count = used + (rest.count(b"\n") + 1 if rest else 0)
    del data, parts, rest
    section = lines[header.lines : at]
    ptr = _integers(source, section, header.lines, n + 1, header.pointer_format)
    idx = _integers(source, lines[at:], at, header.nnz, header.index_format)
    end = used + header.other_lines
    if line_count > end:
        raise source.error(f"{line_count - end} more lines than the header states", line=end + 1)
    # Trailing blank lines are ignored, so only whole lines of numbers can be missing.
    if line_count < end:
        raise source.error(f"truncated: the header states {end} lines, the file has {line_count}")
    if ptr[0] != 1 or ptr[-1] != header.nnz + 1 or bool((ptr[1:] < ptr[:-1]).any()):
        raise source.error(f"column pointers do not ascend from 1 to {header.nnz + 1}")
    if idx.size and (idx.min() < 1 or idx.max() > m):
        wrong = int(np.argmax((idx < 1) | (idx > m)))
        line = at + header.index_format.line_of(wrong) + 1
        raise source.error(f"row index {idx[wrong]} lies outside 1..{m}", line=line)
    if header.symmetry not in _EXPANDED:
        return Pattern.from_csc((m, n), ptr - 1, idx - 1)
    entries = mirrored(idx - 1, np.repeat(np.arange(n), np.diff(ptr)))
    return Pattern.from_coo((m, n), *entries)


def _header(source: Source, lines: list[bytes], unpacked: int) -> _Header:
    if len(lines) < 4:
        raise source.error("too short for the four header lines")
    cards = _numbers(source, lines[1], 2, range(4, 6))
    if min(cards) < 0:
        raise source.error("negative number of lines", line=2)
    kind = lines[2][:3].decode("latin-1").upper()
    if not re.fullmatch("[RCPIQ][USHZR][AE]", kind):
        raise source.error(f"{kind!r} is not a matrix type such as RUA or PSA", line=3)
    if kind[2] == "E":
        raise source.error(
            f"type {kind} is elemental (unassembled)", line=3, hint="assemble the matrix first"
        )
    m, n, nnz, *_ = _numbers(source, lines[2][3:], 3, range(3, 5))
    source.check_sizes((m, n), nnz, entry_bytes=1, taken=_ENTRY_BYTES, line=3, unpacked=unpacked)
    source.check_memory(_COLUMN_BYTES * n, f"{n} columns", line=3)
    if n >= unpacked:
        raise source.error(f"{unpacked} bytes cannot hold pointers for {n} columns", line=3)
    if kind[1] in "SHZ" and m != n:
        raise source.error(f"type {kind} cannot be {m} x {n}", line=3)
    _, pointer_lines, index_lines, value_lines, *rhs = cards
    rhs_lines = rhs[0] if rhs else 0
    pointers = _format(source, lines[3][:16])
    indices = _format(source, lines[3][16:32])
    for available, count, form, what in (
        (pointer_lines, n + 1, pointers, "pointers"),
        (index_lines, nnz, indices, "indices"),
    ):
        if available < form.lines(count):
            needed = form.lines(count)
            raise source.error(f"{count} {what} take {needed} lines, not {available}", line=2)
    return _Header(
        lines=5 if rhs_lines else 4,
        pointer_lines=pointer_lines,
        index_lines=index_lines if nnz else 0,
        other_lines=value_lines + rhs_lines,
        symmetry=kind[1],
        shape=(m, n),
        nnz=nnz,
        pointer_format=pointers,
        index_format=indices,
    )


def _numbers(source: Source, text: bytes, line: int, counts: range) -> list[int]:
    words = text.split()
    if len(words) not in counts or any(not re.fullmatch(rb"-?\d{1,14}", word) for word in words):
        shown = text[:70].decode("latin-1").strip()
        raise source.error(f"{shown!r} is not the expected list of whole numbers", line=line)
    return [int(word) for word in words]


def _format(source: Source, text: bytes) -> _Format:
    """Positions of the integers of a Fortran format such as (16I5), (1X,8I9), (1P,4(I8,2X))."""
    form = "".join(text.decode("latin-1").upper().split())
    try:
        first, later = _columns_of(form), _columns_of("(" + form[_restart(form) :])
    except ValueError:
        shown = text.decode("latin-1").strip()
        raise source.error(f"cannot read the Fortran format {shown!r}", line=4) from None
    return _Format(first, later)


def _restart(form: str) -> int:
    """Position at which an exhausted format starts again: the group that ends last, with its repeat
    count, else its first descriptor."""
    at, depth = form.rfind(")", 0, -1), 0
    while at > 0:
        depth += {")": 1, "(": -1}.get(form[at], 0)
        if not depth:
            return len(form[:at].rstrip("0123456789"))
        at -= 1
    return 1


def _columns_of(form: str) -> tuple[tuple[int, int], ...]:
    """(first column, width) of each integer of one line. Raises: ValueError for other formats."""
    if not (form.startswith("(") and form.endswith(")")):
        raise ValueError(form)
    at, groups = 1, [(1, list[tuple[str, int]]())]
    while at < len(form) - 1:
        part = _FORMAT.match(form, at)
        if part is None or (part["close"] and len(groups) == 1):
            raise ValueError(form)
        at, times = part.end(), int(part["times"] or 1)
        if part["open"]:
            groups.append((times, []))
        elif part["close"]:
            repeat, inner = groups.pop()
            if len(inner) * repeat > _MOST_ITEMS:
                raise ValueError(form)
            groups[-1][1].extend(inner * repeat)
        elif part["width"] or part["blanks"]:
            item = ("I", int(part["width"])) if part["width"] else ("X", 1)
            groups[-1][1].extend([item] * times)
        if sum(len(items) for _, items in groups) > _MOST_ITEMS:
            raise ValueError(form)
    if len(groups) != 1:
        raise ValueError(form)
    columns, column = [], 0
    for kind, width in groups[0][1]:
        if not 1 <= width <= _MOST_WIDTH:
            raise ValueError(form)
        if kind == "I":
            columns.append((column, width))
        column += width
    if not columns:
        raise ValueError(form)
    return tuple(columns)


def _integers(
    source: Source, section: list[bytes], start: int, size: int, form: _Format
) -> NDArray[np.int64]:
    """`size` numbers in the lines of a section, which starts after `start` lines, by column
    positions. Blank lines at the end of a file may be missing."""
    needed = start + form.lines(size)
    if start + len(section) < needed:
        raise source.error(
            f"truncated: {needed} lines are needed so far, the file has {start + len(section)}"
        )
    integers = np.zeros(size, np.int64)
    done = read = 0
    while read < len(section):
        columns = form.later if read else form.first
        together = max(_TOGETHER // len(columns), 1) if read else 1
        part = section[read : read + together]
        numbers = _columns(source, part, start + read, size - done, columns)
        integers[done : done + numbers.size] = numbers
        done, read = done + numbers.size, read + len(part)
    return integers


def _columns(
    source: Source,
    section: list[bytes],
    start: int,
    size: int,
    columns: tuple[tuple[int, int], ...],
) -> NDArray[np.int64]:
    """Numbers of some lines, at most `size`."""
    length = columns[-1][0] + columns[-1][1]
    text = b"".join(line[:length].ljust(length) for line in section)
    table = np.frombuffer(text, np.uint8).reshape(-1, length)
    widest = max(width for _, width in columns)
    fields = np.full((len(section), len(columns), widest), ord(" "), np.uint8)
    for at, (first, width) in enumerate(columns):
        fields[:, at, widest - width :] = table[:, first : first + width]
    digits = fields.reshape(-1, widest)
    if digits[size:].size and bool((digits[size:] != ord(" ")).any()):
        raise source.error(f"more than {size} numbers", line=start + len(section))
    digits = digits[:size]
    values = np.zeros(len(digits), np.int64)
    good = np.ones(len(digits), bool)
    began, ended = np.zeros(len(digits), bool), np.zeros(len(digits), bool)
    for column in digits.T:
        digit = (column >= ord("0")) & (column <= ord("9"))
        blank = column == ord(" ")
        ended |= blank & began
        began |= digit
        good &= (digit & ~ended) | blank
        # The minimum prevents overflow for 30 digits; such a number is out of range anyway.
        longer = np.minimum(values, 2**40) * 10 + (column - ord("0"))
        values = np.where(digit, longer, values)
    good &= began
    if not good.all():
        wrong = int(np.argmin(good))
        shown = digits[wrong].tobytes().decode("latin-1").strip()
        line = start + wrong // len(columns) + 1
        raise source.error(f"{shown!r} is not a positive whole number", line=line)
    return values
