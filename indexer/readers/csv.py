"""Any CSV file with a header, one run per row, read through a column map (see `columns.ROLES`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from embeddb.core.errors import ReaderError
from indexer.readers.base.columns import SAMPLE, Plan
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.base.table import SEPARATORS, Table, header_line

#: A formula of a spreadsheet, with protecting quotes.
_FORMULA = re.compile(r"'*\s*[=+\-@]")


class CsvReader:
    """Reader of CSV files. Roles are assigned to columns by name or by `options.columns`; columns
    named like a parameter of the platform, or `config.NAME`, make up the configuration. Several
    repeats in one cell are separated by `;`, `|` or spaces. A leading quote that protects a cell
    from a spreadsheet is removed."""

    name = "csv"
    platform = ""
    generic = True

    def sniff(self, path: Path, head: bytes) -> bool:
        lines = head.decode(errors="replace").split("\n")
        first = next(filter(header_line, lines), "")
        return any(c in first for c in SEPARATORS) and not first.lstrip().startswith(("{", "["))

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        names, sample = table.names, self._sample(path)
        try:
            plan = Plan.of(names, options, sample, table.comma)
        except ReaderError as error:
            hint = wrong_file(path, self.name, "").hint or error.hint
            raise ReaderError(error.reason, where=str(path), hint=hint) from None
        for line, row in table.rows(follow=True):
            if isinstance(row, Reject):
                yield row
                continue
            try:
                if table.names is not names:
                    names = table.names
                    plan = self._plan(table, line, options, sample)
                cells = map(_bare, row) if "'" in "".join(row) else row
                yield plan.row(dict(zip(names, cells, strict=True)), line)
            except ReaderError as error:
                if error.where:
                    raise
                if not table.turn(row, follow=True):
                    yield Reject(line, error.reason, ",".join(row)[:200])

    def _sample(self, path: Path) -> list[dict[str, str]]:
        """The first records; fewer where the file is damaged."""
        records: list[dict[str, str]] = []
        with suppress(ReaderError):  # it is met again when the rows before it have been read
            records += islice(Table(path, self.name).records(), SAMPLE)
        return records

    def _plan(
        self, table: Table, line: int, options: ReadOptions, sample: list[dict[str, str]]
    ) -> Plan:
        """Reading plan of the rows below a further header."""
        try:
            return Plan.of(table.names, options, sample, table.comma)
        except ReaderError as error:
            why = f"another header above it, by which it cannot be read: {error.reason}"
            where = str(table.path)
            raise ReaderError(why, where=where, line=line, hint=error.hint) from None


def quoted(text: str) -> str:
    """The text, with a leading quote if a spreadsheet would take it for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def _bare(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


PLUGIN = CsvReader
