"""Any CSV file with a header, one run per row, read through a column map (see `columns.ROLES`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from embeddb.core.errors import ReaderError
from indexer.readers.base.columns import Plan
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.base.table import Table

__all__ = ["CsvReader", "quoted"]

#: What a spreadsheet takes for a formula, with the quotes that were put before it.
_FORMULA = re.compile(r"'*\s*[=+\-@]")


class CsvReader:
    """Columns are found by name or by `options.columns`; columns named like a parameter of the
    platform, or `config.NAME`, make up the configuration. Several repeats in one cell are
    separated by `;`. A quote that keeps a spreadsheet from computing a cell is taken away."""

    name = "csv"
    platform = ""
    generic = True

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0]
        return b"," in first and not first.lstrip().startswith((b"{", b"[", b"#"))

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        try:
            plan = Plan.of(table.names, options)
        except ReaderError as error:
            hint = wrong_file(path, self.name, "").hint or error.hint
            raise ReaderError(error.reason, where=str(path), hint=hint) from None
        for line, row in table.rows():
            if isinstance(row, Reject):
                yield row
                continue
            try:
                cells = map(_bare, row) if "'" in "".join(row) else row
                yield plan.row(dict(zip(table.names, cells, strict=True)), line)
            except ReaderError as error:
                yield Reject(line, error.reason, ",".join(row)[:200])


def quoted(text: str) -> str:
    """A text as a spreadsheet takes it for one: formulas get a quote before them."""
    return f"'{text}" if _FORMULA.match(text) else text


def _bare(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


PLUGIN = CsvReader
