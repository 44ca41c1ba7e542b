"""Reading CSV files a row at a time, each told by the columns that its header names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from indexer.readers.base.lines import numbered
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import Reject

__all__ = ["Table"]


class Table:
    """A CSV file, one row per line. Cells of a row are strings; `at` gives the columns' places.

    A quoted cell must end on its line, so that one stray quote costs one row and not the rest of
    the file.
    """

    def __init__(self, path: Path, reader: str, *, header: Sequence[str] | None = None) -> None:
        self.path = path
        self._bad: dict[int, Reject] = {}
        self._cells = csv.reader(self._lines())
        self.first: list[str] | None = None
        names = self._read_header(reader)
        if header is not None and not set(names) & set(header):
            self.first, names = names, list(header)
        self.names = names
        self.at: dict[str, int] = {}
        for place, name in enumerate(names):
            self.at.setdefault(name, place)

    def _read_header(self, reader: str) -> list[str]:
        try:
            names = [name.strip() for name in next(self._cells, [])]
        except csv.Error as error:
            raise wrong_file(self.path, reader, str(error)) from None
        if not any(names):
            why = self._bad[1].reason if 1 in self._bad else "the first line is empty"
            raise wrong_file(self.path, reader, why)
        return names

    def need(self, names: Sequence[str], reader: str) -> list[int]:
        """Places of the columns. Raises: ReaderError naming those missing and the right reader."""
        missing = [name for name in names if name not in self.at]
        if missing:
            raise wrong_file(self.path, reader, f"no column {', '.join(map(repr, missing))}")
        return [self.at[name] for name in names]

    def rows(self) -> Iterator[tuple[int, list[str] | Reject]]:
        """Line number with cells (as many as the header has) or a reject; blank lines are left
        out."""
        width = len(self.names)
        if self.first is not None:
            yield 1, self.first
        while True:
            try:
                for row in self._cells:
                    if len(row) == width:
                        yield self._cells.line_num, row
                    elif row:
                        reason = f"{len(row)} cells where the header has {width}"
                        line = self._cells.line_num
                        yield line, Reject(line, reason, ",".join(row)[:200])
                    elif self._cells.line_num in self._bad:
                        yield self._cells.line_num, self._bad.pop(self._cells.line_num)
                return
            except csv.Error as error:
                yield self._cells.line_num, Reject(self._cells.line_num, str(error))

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(numbered(self.path, self._bad), 1):
            if '"' in line and line.count('"') % 2:
                why = "a quoted cell runs over the line's end"
                self._bad[number] = Reject(number, why, line[:200])
                yield ""
            else:
                yield line
