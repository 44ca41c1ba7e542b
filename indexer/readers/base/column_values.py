"""Columns of a log before they have a role: their values, and the similarity of names and values to
a parameter's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.records import STATUSES
from embeddb.platforms.space.rules import Param
from indexer.readers.base.lines import json_records
from indexer.readers.base.row import Reject, value
from indexer.readers.base.statuses import status_of
from indexer.readers.base.table import Table
from indexer.readers.base.units import numbers_in

#: Rows examined.
_ROWS = 20_000
#: Share of a column's values that must fit its role: logs have broken rows.
MOSTLY = 0.8
#: Fewest steps from row to row for a column to count as rising.
_STEPS = 5


@dataclass(slots=True)
class Column:
    """Cells of a column in the first rows: the count of each value, as a text, the number of empty
    cells, and how often a number is above or below the previous one."""

    values: dict[str, int] = field(default_factory=dict)
    empty: int = 0
    rises: int = 0
    falls: int = 0
    _last: float | None = None

    @classmethod
    def all(cls, records: Iterable[Mapping[str, Any]]) -> dict[str, Column]:
        """The columns of records, by name."""
        columns: dict[str, Column] = {}
        for count, record in enumerate(records):
            for name, cell in record.items():
                if name not in columns:
                    columns[name] = cls(empty=count)
                columns[name].add(cell)
            for name in columns.keys() - record.keys():
                columns[name].empty += 1
        return columns

    def add(self, cell: Any) -> None:
        text = str(cell).strip() if isinstance(cell, str | float) else json.dumps(cell)
        if not text or cell is None:
            self.empty += 1
            return
        self.values[text] = self.values.get(text, 0) + 1
        try:
            number = float(text.replace(",", "."))
        except ValueError:
            return
        if self._last is not None:
            self.rises += number > self._last
            self.falls += number < self._last
        self._last = number

    def part(self, holds: Callable[[str], bool]) -> float:
        """Share of the non-empty cells for which a predicate is true."""
        rows = sum(self.values.values())
        return sum(n for text, n in self.values.items() if holds(text)) / rows if rows else 0.0

    @property
    def only_rises(self) -> bool:
        """True if its numbers rise from row to row, with a rare restart."""
        return self.rises >= _STEPS and self.rises > 20 * self.falls


def head_records(path: Path, reader: str) -> list[dict[str, Any]]:
    """Return the first records of a log, CSV or JSONL.

    Raises: ReaderError with the first reject if a JSONL log has no other lines.
    """
    if reader == "csv":
        return list(islice(Table(path, reader).records(), _ROWS))
    head = [record for _, record in islice(json_records(path), _ROWS)]
    records = [record for record in head if isinstance(record, dict)]
    rejects = [record for record in head if isinstance(record, Reject)]
    if rejects and not records:
        raise ReaderError(rejects[0].reason, where=str(path), line=rejects[0].line)
    return records


def fits(param: Param, column: Column) -> bool:
    """True if a column's values mostly are legal for the parameter; sizes of matrices match
    symbols."""
    allowed = {str(v) for v in param.values} | {text for text, _ in param.aliases}
    if param.kind == "bool":
        allowed |= {"true", "false", "True", "False"}
    sizes = any(isinstance(v, str) for v in param.values) and param.kind == "int"
    return column.part(lambda text: _one_of(text, allowed, sizes)) >= MOSTLY


def _one_of(text: str, allowed: set[str], sizes: bool) -> bool:
    try:
        typed = value(text)
    except ReaderError:
        return False
    return text in allowed or str(typed) in allowed or (sizes and isinstance(typed, int))


def is_duration(text: str) -> bool:
    """True if a cell holds positive numbers, one or several, with units or without."""
    try:
        return all(number > 0 for number, _ in numbers_in(text.replace(",", ".")))
    except ReaderError:
        return False


def likeness(name: str, column: str) -> float:
    """Similarity of two names. 3: equal but for signs and capitals; 2: one contains the other; else
    a ratio from 0 to 1."""
    a, b = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (name, column))
    short, long = sorted((a, b), key=len)
    if a == b:
        return 3.0
    if len(short) >= 3 and short in long:
        return 1.0 + len(short) / len(long)
    return SequenceMatcher(None, a, b).ratio()


def is_ok(word: str, own: Mapping[str, str]) -> bool:
    """True if a status word means that a run succeeded."""
    return is_status(word, own) and status_of(word, STATUSES, own) == "ok"


def is_status(word: str, own: Mapping[str, str]) -> bool:
    """True if a word is a known status, built in or in the log's `own` words."""
    try:
        return bool(status_of(word, STATUSES, own))
    except ReaderError:
        return False
