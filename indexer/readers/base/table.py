"""CSV files, read a row at a time by the columns of their header."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from embeddb.core.errors import ReaderError
from indexer.readers.base.lines import numbered, wrong_file
from indexer.readers.base.row import Reject
from indexer.readers.base.statuses import is_number

T = TypeVar("T")
#: Characters between cells; of several in a header the most frequent one, then the first.
SEPARATORS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
_STATED = re.compile(r"sep=(.)\s*", re.IGNORECASE)


class Table:
    """A CSV file, one row per line. Cells of a row are strings; `at` gives the columns' places.

    The header is the first line that is neither blank nor a `#` comment; it shows which of
    `SEPARATORS` is between cells, if no line `sep=;` says so. A quoted cell must end on its line,
    so that one stray quote costs one row and not the rest of the file.
    """

    def __init__(self, path: Path, reader: str, *, header: Sequence[str] | None = None) -> None:
        self.path = path
        self._bad: dict[int, Reject] = {}
        self._number = 0
        self._source = self._lines()
        self._order: list[int] | None = None
        first, self.separator = self._begin(reader)
        self._read_header(first, reader)
        self.first: list[str] | None = None
        if header is not None and not set(self.names) & set(header):
            self.first = self.names
            self._take(header)
        self._first_line = self._number
        self.at: dict[str, int] = {}
        for place, name in enumerate(self.names):
            self.at.setdefault(name, place)

    def _begin(self, reader: str) -> tuple[str, str]:
        """The header line, and the separator of its cells."""
        stated = ""
        for line in self._source:
            separator_line = _STATED.fullmatch(line)
            if separator_line and not stated:
                stated = separator_line[1]
            elif self._number in self._bad:
                raise wrong_file(
                    self.path, reader, self._bad[self._number].reason, line=self._number
                )
            elif header_line(line):
                return line, stated or max(SEPARATORS, key=_QUOTED.sub("", line).count)
        raise wrong_file(self.path, reader, "it has no header")

    def _read_header(self, first: str, reader: str) -> None:
        """Set the names of the columns; from there on `_cells` reads."""
        lines = chain((first,), self._source)
        self._cells = csv.reader(lines, delimiter=self.separator, skipinitialspace=True)
        try:
            self._take(next(self._cells, []))
        except csv.Error as error:
            raise wrong_file(self.path, reader, str(error)) from None
        if not any(self.names):
            raise wrong_file(self.path, reader, "it has no header")

    @property
    def comma(self) -> str:
        """Meaning of a comma in a number where commas do not separate cells (`units.comma_of`)."""
        return "" if self.separator == "," else "decimal"

    def need(self, names: Sequence[str], reader: str) -> list[int]:
        """Indices of the columns. Raises: ReaderError naming missing ones and the right reader, or
        duplicate ones."""
        missing = [name for name in names if name not in self.at]
        if missing:
            raise wrong_file(self.path, reader, f"no column {', '.join(map(repr, missing))}")
        twice = [name for name in names if self.names.count(name) > 1]
        if twice:
            raise ReaderError(
                f"{self.names.count(twice[0])} columns are named {twice[0]!r}",
                where=str(self.path),
                hint="rename or remove all but one",
            )
        return [self.at[name] for name in names]

    def rows(self, *, follow: bool = False) -> Iterator[tuple[int, list[str] | Reject]]:
        """Line number with cells (as many as `names`, in their order) or a reject. Blank lines and
        comments are left out, and so are further headers, which set the order of the rows below.
        With `follow` a header of other columns changes `names`.

        Raises: ReaderError at a header of other columns without `follow`.
        """
        if self.first is not None:
            yield self._first_line, self.first
        while True:
            try:
                for row in self._cells:
                    if len(row) == self._width and self._words.isdisjoint(row):
                        yield self._number, row if self._order is None else self._ordered(row)
                    elif self.turn(row, follow=follow):
                        continue
                    elif any(row) and (rest := self._odd(row)) is not None:
                        yield self._number, rest
                    elif self._number in self._bad:
                        yield self._number, self._bad.pop(self._number)
                return
            except csv.Error as error:
                yield self._number, Reject(self._number, str(error))

    def runs(self, convert: Callable[[list[str], int], T]) -> Iterator[T | Reject]:
        """Rows converted from their cells and line; one that raises ReaderError is a reject."""
        for line, row in self.rows():
            if isinstance(row, Reject):
                yield row
                continue
            try:
                run = convert(row, line)
            except ReaderError as error:
                yield Reject(line, error.reason, ",".join(row)[:200])
            else:
                yield run

    def sound(self, convert: Callable[[list[str], int], T]) -> Iterator[T]:
        """Rows as by `runs`. Raises: ReaderError at a reject, naming file and line."""
        for row in self.runs(convert):
            if isinstance(row, Reject):
                raise ReaderError(row.reason, where=str(self.path), line=row.line)
            yield row

    def records(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Lines and cells, by the names of their columns, of rows without rejects."""
        for line, row in self.rows(follow=True):
            if not isinstance(row, Reject):
                yield line, dict(zip(self.names, row, strict=True))

    def turn(self, row: Sequence[str], *, follow: bool) -> bool:
        """True if a row is another header (at least two cells, and half of them, are names of
        columns, and no other is a number); the rows below are then ordered by it. Raises:
        ReaderError as `rows`."""
        new, names = list(map(_folded, row)), list(map(_folded, self.names))
        cells = list(filter(None, new))
        others = [cell for cell in cells if cell not in names]
        if 2 * len(others) > min(len(cells), 2 * len(cells) - 4) or any(map(is_number, others)):
            return False
        if new == names:
            self._order = None
        elif sorted(new) == sorted(names) and len(set(new)) == len(new):
            self._order = [new.index(name) for name in names]
        elif follow:
            self._take(row)
        else:
            raise ReaderError(
                "another header, with other columns than the first",
                where=str(self.path),
                line=self._number,
                hint="move the rows below it to a file of their own",
            )
        return True

    def _take(self, row: Sequence[str]) -> None:
        """Set the columns from a header."""
        self.names = [_name(cell) for cell in row]
        self._words = frozenset((*filter(None, self.names), *filter(str.strip, row)))
        self._width, self._order = len(row), None

    def _ordered(self, row: list[str]) -> list[str]:
        return row if self._order is None else [row[at] for at in self._order]

    def _odd(self, row: list[str]) -> list[str] | Reject | None:
        """A row of another length, or with a name among its values; None for a comment."""
        width = self._width
        if len(row) > width and not any(row[width:]):  # a separator at the end
            row = row[:width]
        if len(row) == width:
            return self._ordered(row)
        if row[0].startswith("#"):
            return None
        text = self.separator.join(row)[:200]
        return Reject(self._number, f"{len(row)} cells where the header has {width}", text)

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(numbered(self.path, self._bad), 1):
            self._number = number
            if '"' in line and line.count('"') % 2:
                why = "a quoted cell runs over the line's end"
                self._bad[number] = Reject(number, why, line[:200])
                yield ""
            else:
                yield line


def header_line(line: str) -> bool:
    """True if a line can be a header: it is neither blank nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _name(cell: str) -> str:
    """Name in a header's cell, without UTF-8 marks within concatenated files."""
    return cell.removeprefix("\ufeff").strip().strip('"')


def _folded(cell: str) -> str:
    return _name(cell).casefold()
