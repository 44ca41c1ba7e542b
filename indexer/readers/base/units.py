"""Units of time as people write them, and cells of times: several, with units, with commas."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from embeddb.core.errors import ReaderError

#: Units per second. Times are divided, which rounds once.
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
#: Units by the words for them.
UNIT_WORDS = {
    **dict.fromkeys(("cycles", "cycle", "clk", "clks", "clocks", "cyc"), "cycles"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanosec", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("us", "usec", "usecs", "microsec", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ms", "msec", "msecs", "millisec", "millisecond", "milliseconds"), "ms"),
    "miliseconds": "ms",  # so spelled in the T4 files of a public collection
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][+-]?\d+)?"
#: A number, a word, or both, as `12.3us`.
_PIECE = re.compile(rf"({_NUMBER})?([^\W\d_]+)?")
_BETWEEN = re.compile(r"[;|\s]+")
_DECIMAL = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_REPEATS = re.compile(r"(?:[1-9]\d*(?:\.\d+)?|0?\.\d+)(?:,(?:[1-9]\d*(?:\.\d+)?|0?\.\d+))+,?")
_BRACKETS = "[](){} \t"


def unit_of(word: str) -> str:
    """The unit that a word means; empty if it is none. µ has two code points."""
    return UNIT_WORDS.get(
        unicodedata.normalize("NFKC", word).strip().casefold().replace("μ", "u"), ""
    )


def divisor(unit: str, *, where: str = "", clock_ghz: float = 0.0) -> float:
    """Number of `unit` per second, of cycles by a clock. Raises: ReaderError for an unknown or
    missing unit, and for cycles without a clock."""
    if unit == "cycles":
        if clock_ghz > 0:
            return clock_ghz * 1e9
        why = "cycles need a clock"
        how = 'give `clock_ghz` under [traits] of the platform, or `unit = "cycles"` under [log]'
        raise ReaderError(why, where=where, hint=how)
    if unit not in UNITS:
        what = f"no time unit {unit!r}" if unit else "the file does not state the unit of its times"
        raise ReaderError(what, where=where, hint=f"give --unit: one of {', '.join(UNITS)}, cycles")
    return UNITS[unit]


@dataclass(frozen=True, slots=True)
class Cells:
    """Format of a column of durations.

    `per_second` is the number of its unit per second, None where each row has a unit; `comma` is
    the meaning of a comma (`comma_of`). With `cycles` the platform has no clock, and no other unit
    can be compared with its times.
    """

    per_second: float | None
    comma: str = ""
    clock_ghz: float = 0.0
    cycles: bool = False

    def seconds(self, raw: Any, stated: str = "") -> tuple[float, ...]:
        """Positive durations of a cell, in seconds; `stated` is the unit of its row.

        Raises: ReaderError (reason only) for a cell without durations, an unknown unit, or two
        units.
        """
        if self.per_second is not None and not stated:
            try:
                time = float(raw)
            except (TypeError, ValueError, OverflowError):
                pass
            else:
                if 0 < time < math.inf and raw.__class__ is not bool and "_" not in str(raw):
                    return (positive(time / self.per_second, raw),)
        return tuple(self._one(time, unit or stated, raw) for time, unit in self._all(raw))

    def usable(self, raw: Any, stated: str = "") -> tuple[float, ...]:
        """Positive durations of a cell of a failed run; empty if it has anything else."""
        try:
            return self.seconds(raw, stated)
        except ReaderError:
            return ()

    def _all(self, raw: Any) -> list[tuple[float, str]]:
        if isinstance(raw, list):
            return [pair for one in raw for pair in self._all(one)]
        return numbers_in(_without_comma(raw, self.comma) if isinstance(raw, str) else raw)

    def _one(self, time: float, unit: str, raw: Any) -> float:
        per_second = self.per_second
        if unit:
            if self.cycles and unit != "cycles":
                raise ReaderError(f"{str(raw)[:40]!r} is in {unit}, the platform counts cycles")
            own = divisor(unit, clock_ghz=self.clock_ghz)
            if per_second is not None and own != per_second:
                raise ReaderError(f"{str(raw)[:40]!r} has two units, {unit} and another")
            per_second = own
        if per_second is None:
            raise ReaderError(f"the unit of {str(raw)[:40]!r} is not stated", hint="give --unit")
        return positive(time / per_second, raw)


def number(raw: Any) -> float:
    """A finite number from a cell. Raises: ReaderError (reason only)."""
    if isinstance(raw, bool):
        raise ReaderError(f"{raw} is not a number")
    if isinstance(raw, str) and "_" in raw:
        raise ReaderError(f"{raw[:40]!r} is not a number")
    try:
        parsed = float(raw)
    except (ValueError, TypeError, OverflowError):
        raise ReaderError(f"{str(raw)[:40]!r} is not a number") from None
    if not math.isfinite(parsed):
        raise ReaderError(f"{str(raw)[:40]!r} is not a finite number")
    return parsed


def positive(time: float, raw: Any) -> float:
    if time <= 0:
        raise ReaderError(f"time {str(raw)[:40]!r} is not positive")
    return time


def numbers_in(raw: Any) -> list[tuple[float, str]]:
    """Numbers of a cell, each with its unit or an empty one: `94.3 94.2`, `12.3us`, `[1; 2] ms`.

    Raises: ReaderError (reason only) if there is anything else, or nothing.
    """
    if not isinstance(raw, str):
        return [(number(str(raw) if isinstance(raw, bool) else raw), "")]
    pairs: list[tuple[float, str]] = []
    bare = 0  # where the numbers without a unit begin
    for piece in _BETWEEN.split(raw.strip(_BRACKETS)):
        if not piece:
            continue
        taken = _PIECE.fullmatch(piece)
        digits, word = taken.groups() if taken else (piece, None)
        unit = unit_of(word or "")
        if word and not unit and (digits or _BETWEEN.search(raw.strip())):
            raise ReaderError(f"{raw[:40]!r} is not a number")
        if digits or not unit:
            pairs.append((number(re.sub("[dD]", "e", digits) if digits else piece), ""))
        if unit:
            pairs[bare:] = [(one, unit) for one, _ in pairs[bare:]]
            bare = len(pairs)
    if not pairs:
        raise ReaderError(f"{raw[:40]!r} is not a number")
    return pairs


def in_cells(cells: Collection[Any]) -> bool:
    """True if the times of a column contain their units, `40.0 us`, or no cell is a time."""
    units = [bool(unit) for cell in cells for _, unit in _pairs(cell)]
    return bool(cells) and 2 * sum(units) >= len(units)


def _pairs(cell: Any) -> list[tuple[float, str]]:
    try:
        return numbers_in(cell.replace(",", ".") if isinstance(cell, str) else cell)
    except ReaderError:
        return []


def comma_of(cells: Iterable[Any], where: str, *, rather: str) -> str:
    """Meaning of a comma in the cells of a column: `decimal`, `thousands`, `repeats` (between
    them), or "" where there is none or they disagree; `rather` is preferred where it may also
    separate repeats.

    Raises: ReaderError if it is ambiguous, with the place of the first such cell as its line.
    """
    may = {"decimal", "thousands", "repeats"}
    shown = ""
    line = None
    for at, cell in enumerate(cells):
        if not isinstance(cell, str) or not re.search(r"\d", cell):
            continue
        if "," in cell:
            line, shown = (line, shown) if shown else (at, cell)
            may &= _commas(cell)
        elif re.fullmatch(r"\s*\d+\.(?!\d{3}\s*$)\d+.*", cell):
            may -= {"decimal"}
    if not shown or not may:
        return ""
    if rather in may and "repeats" in may:
        return rather
    if len(may) > 1:
        raise ReaderError(
            f"a comma in {shown[:40]!r} may be {' or '.join(f'{_IS[one]}' for one in sorted(may))}",
            where=where,
            line=line,
            hint="write numbers with a point, and several in one cell with semicolons between them",
        )
    return may.pop()


_IS = {
    "decimal": "a decimal point",
    "thousands": "one of thousands",
    "repeats": "between two times",
}


def _commas(cell: str) -> set[str]:
    if re.search(r",\s|,$|^\s*[\[(]", cell):
        return {"repeats"}
    pieces = _BETWEEN.split(cell.strip())
    may = {"decimal", "thousands"} | (
        {"repeats"} if sum("," in one for one in pieces) == 1 else set()
    )
    forms = {"decimal": _DECIMAL, "thousands": _THOUSANDS, "repeats": _REPEATS}
    for piece in pieces:
        if "," in piece:
            bare = re.sub(r"[^\W\d_]+$", "", piece)
            may &= {meaning for meaning, form in forms.items() if form.fullmatch(bare)}
    return may


def _without_comma(text: str, comma: str) -> str:
    """A cell with a point for a decimal comma, and nothing or `;` for others."""
    if comma == "decimal":
        return text.replace(".", "").replace(",", ".") if "," in text else text
    return text.replace(",", "" if comma == "thousands" else ";")


def decimal_point(raw: Any) -> Any:
    """A cell of a file with decimal commas, converted to a point if it is such a number."""
    return (
        _without_comma(raw, "decimal")
        if isinstance(raw, str) and _DECIMAL.fullmatch(raw.strip())
        else raw
    )
