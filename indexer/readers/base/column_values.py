"""The columns of a log before anybody says what they mean: their names taken apart, their values,
and how far either is like a parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.records import STATUSES
from embeddb.platforms.space.rules import Param
from indexer.readers.base.lines import json_lines
from indexer.readers.base.row import Reject, number, status_of, value
from indexer.readers.base.table import Table

__all__ = [
    "MOSTLY",
    "UNIT_WORDS",
    "columns_of",
    "fits",
    "is_duration",
    "is_status",
    "likeness",
    "part_of",
    "status_meant",
    "unit_in",
    "words_of",
]

#: Rows looked at, and different values of a column kept.
_ROWS, _VALUES = 20_000, 2_000
#: Part of a column's values that must fit what it is taken for: logs have broken rows.
MOSTLY = 0.8
#: Units by the words for them.
UNIT_WORDS = {
    **dict.fromkeys(("cycles", "cycle", "clk", "clks", "clocks", "cyc"), "cycles"),
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), "ns"),
    **dict.fromkeys(("us", "usec", "microseconds"), "us"),
    **dict.fromkeys(("ms", "msec", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), "s"),
}

#: What a log's word for a status holds, and ours for it; the first that fits.
_MEANS = (
    ("timeout", r"time.?out|timed.?out|time.?limit|killed|hang"),
    ("oom", r"oom|overflow|memory|capacity|too.?large|exceed"),
    ("build", r"compil|build|synth|link"),
    ("wrong", r"wrong|mismatch|incorrect|inaccura|nan"),
    ("invalid", r"invalid|illegal|unsupported|infeasible|skip|n/?a"),
    ("crash", r"crash|fail|err|abort|segv|fault|exception|deadlock"),
    ("ok", r"ok|pass|done|success|finish|complete|valid|good"),
)


def columns_of(path: Path, reader: str) -> dict[str, dict[str, int]]:
    """How often each column has which values, as texts, in the first rows."""
    found: dict[str, dict[str, int]] = {}
    for record in islice(_records(path, reader), _ROWS):
        for name, cell in record:
            values = found.setdefault(name, {})
            text = cell if isinstance(cell, str) else json.dumps(cell)
            if text and cell is not None and (text in values or len(values) < _VALUES):
                values[text] = values.get(text, 0) + 1
    return found


def _records(path: Path, reader: str) -> Iterable[Sequence[tuple[str, Any]]]:
    if reader == "csv":
        table = Table(path, reader)
        yield [(name, "") for name in table.names]
        for _, row in table.rows():
            if not isinstance(row, Reject):
                yield list(zip(table.names, row, strict=True))
        return
    for _, record in json_lines(path):
        if isinstance(record, dict):
            yield list(record.items())


def fits(param: Param, cells: Mapping[str, int]) -> bool:
    """Whether a column's values are mostly the parameter's; sizes of matrices stand for symbols."""
    allowed = {str(v) for v in param.values} | {text for text, _ in param.aliases}
    if param.kind == "bool":
        allowed |= {"true", "false", "True", "False"}
    sizes = any(isinstance(v, str) for v in param.values) and param.kind == "int"
    return bool(cells) and part_of(cells, lambda t: _one_of(t, allowed, sizes)) >= MOSTLY


def _one_of(text: str, allowed: set[str], sizes: bool) -> bool:
    try:
        found = value(text)
    except ReaderError:
        return False
    return text.strip() in allowed or str(found) in allowed or (sizes and isinstance(found, int))


def part_of(cells: Mapping[str, int], holds: Callable[[str], bool]) -> float:
    """The part of a column's values of which something holds."""
    rows = sum(cells.values())
    return sum(n for text, n in cells.items() if holds(text)) / rows if rows else 0.0


def is_duration(text: str) -> bool:
    """Whether a cell holds positive numbers, one or several."""
    try:
        return all(number(one) > 0 for one in text.strip("[]").replace(",", ";").split(";"))
    except ReaderError:
        return False


def likeness(name: str, column: str) -> float:
    """3: the same but for signs and capitals; 2: one holds the other; else how alike, 0 to 1."""
    a, b = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (name, column))
    short, long = sorted((a, b), key=len)
    if a == b:
        return 3.0
    if len(short) >= 3 and short in long:
        return 1.0 + len(short) / len(long)
    return SequenceMatcher(None, a, b).ratio()


def words_of(column: str) -> list[str]:
    """The words that a name is made of, in lower case."""
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", column)]


def unit_in(column: str) -> str:
    """The unit that the last word of a name tells."""
    words = words_of(column)
    return UNIT_WORDS.get(words[-1], "") if words else ""


def is_status(word: str, own: Mapping[str, str]) -> bool:
    """Whether a word is known for a status, to us or by the log's `own` words."""
    try:
        return bool(status_of(word, STATUSES, own))
    except ReaderError:
        return False


def status_meant(word: str) -> str:
    """Our status that a word may mean; empty if it could be any."""
    return next((ours for ours, text in _MEANS if re.search(text, word.strip().lower())), "")
