"""Any CSV file with a header, JSONL file or JSON list, one run per row or object, read through a
column map (see `columns.ROLES`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from indexer.readers.base.columns import SAMPLE, Plan
from indexer.readers.base.lines import json_list, json_records, wrong_file
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
        names, (lines, sample) = table.names, _sample(Table(path, self.name).records())
        try:
            plan = Plan.of(names, options, sample, table.comma)
        except ReaderError as error:
            hint = wrong_file(path, self.name, "").hint or error.hint
            line = None if error.line is None else lines[error.line]
            raise ReaderError(error.reason, where=str(path), line=line, hint=hint) from None
        for line, row in table.rows(follow=True):
            if isinstance(row, Reject):
                yield row
                continue
            try:
                if table.names is not names:
                    names = table.names
                    plan = _further_plan(table, line, options, sample)
                cells = map(_bare, row) if "'" in "".join(row) else row
                yield plan.row(dict(zip(names, cells, strict=True)), line)
            except ReaderError as error:
                if error.where:
                    raise
                if not table.turn(row, follow=True):
                    yield Reject(line, error.reason, ",".join(row)[:200])


def _sample(records: Iterator[tuple[int, Any]]) -> tuple[list[int], list[dict[str, Any]]]:
    """The first objects and their lines; fewer where the file is damaged."""
    lines: list[int] = []
    objects: list[dict[str, Any]] = []
    with suppress(ReaderError):  # it is met again when the rows before it have been read
        for line, record in islice(records, SAMPLE):
            if isinstance(record, dict):
                lines.append(line)
                objects.append(record)
    return lines, objects


def _further_plan(
    table: Table, line: int, options: ReadOptions, sample: list[dict[str, Any]]
) -> Plan:
    """Reading plan of the rows below a further header."""
    try:
        return Plan.of(table.names, options, sample, table.comma)
    except ReaderError as error:
        why = f"another header above it, by which it cannot be read: {error.reason}"
        raise ReaderError(why, where=str(table.path), line=line, hint=error.hint) from None


def quoted(text: str) -> str:
    """The text, with a leading quote if a spreadsheet would take it for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def _bare(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


class JsonlReader:
    """An object's keys are its columns; a nested object `config` holds the configuration. Lines
    may have different keys; a list of numbers as time keeps every repeat."""

    name = "jsonl"
    platform = ""
    generic = True

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0].strip()
        return (first.startswith(b"{") and first.endswith(b"}")) or json_list(head)

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        lines, sample = _sample(json_records(path))
        plan = lru_cache(1000)(lambda keys: Plan.of(keys, options, sample))
        good = False
        for line, record in json_records(path):
            if isinstance(record, Reject):
                yield record
                continue
            try:
                if not isinstance(record, dict):
                    raise ReaderError("not a JSON object")
                yield plan(tuple(record)).row(record, line)
                good = True
            except ReaderError as error:
                if not good and isinstance(record, dict) and not plan.cache_info().currsize:
                    # The first object fits no plan: it is the map or the file that is wrong.
                    hint = wrong_file(path, self.name, error.reason).hint or error.hint
                    line = line if error.line is None else lines[error.line]
                    raise ReaderError(error.reason, where=str(path), line=line, hint=hint) from None
                yield Reject(line, error.reason, json.dumps(record)[:200])
