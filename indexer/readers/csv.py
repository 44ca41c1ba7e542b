"""Any CSV file with a header, one run per row, read through a column map (see `columns.ROLES`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embeddb.core.errors import ReaderError
from indexer.readers.base.columns import Plan
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.base.table import Table

__all__ = ["CsvReader"]


class CsvReader:
    """Columns are found by name or by `options.columns`; columns named like a parameter of the
    platform, or `config.NAME`, make up the configuration. Several repeats in one cell are
    separated by `;`."""

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
                yield plan.row(dict(zip(table.names, row, strict=True)), line)
            except ReaderError as error:
                yield Reject(line, error.reason, ",".join(row)[:200])


PLUGIN = CsvReader
