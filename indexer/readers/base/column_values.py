"""Columns of a log before they have a role: their values, the similarity of names and values to a
parameter's, and which columns may hold the time and the status of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.records import STATUSES
from embeddb.platforms.space.rules import Param
from indexer.readers.base.columns import words_of
from indexer.readers.base.lines import json_records
from indexer.readers.base.row import Reject, value
from indexer.readers.base.statuses import is_nothing, is_number, status_meant, status_of
from indexer.readers.base.table import Table
from indexer.readers.base.units import in_cells, numbers_in, unit_of

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


def head_records(path: Path, reader: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the first records of a log, CSV or JSONL, and their lines.

    Raises: ReaderError with the first reject if the log has no other lines; for a log without rows.
    """
    if reader == "csv":
        records: list[tuple[int, dict[str, Any]]] = [*islice(Table(path, reader).records(), _ROWS)]
        head = [] if records else [*islice(Table(path, reader).rows(follow=True), 1)]
    else:
        head = [*islice(json_records(path), _ROWS)]
        records = [(line, record) for line, record in head if isinstance(record, dict)]
    rejects = [record for _, record in head if isinstance(record, Reject)]
    if rejects and not records:
        raise ReaderError(rejects[0].reason, where=str(path), line=rejects[0].line)
    if not records:
        raise ReaderError("it holds no rows", where=str(path))
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


#: Words in a name: of a state, of flags that are true for a good run, and for a failed one.
_STATES = {"status", "result", "state", "outcome", "verdict"}
_GOOD = {"success", "successful", "succeeded", "ok", "valid", "passed", "pass", "correct",
         "verified", "completed", "done"}  # fmt: skip
_RIGHT = {"correct", "verified"}
_BAD = {"failed", "fail", "failure", "crashed", "timeout", "timedout", "oom", "invalid", "error",
        "errors", "occurred", "wrong", "timed", "killed"}  # fmt: skip
_CODES = {"exit", "exitcode", "exitstatus", "return", "returncode", "retcode", "retval", "rc",
          "ret", "errno"}  # fmt: skip
_TRUE, _FALSE = {"1", "true", "yes", "y", "t", "1.0"}, {"0", "false", "no", "n", "f", "0.0"}
#: Exit codes of a shell, of `timeout` and of a process that was killed.
_ENDED = {124: "timeout", 137: "oom", -9: "oom"}
_MOST_WORDS = 40


def is_flag(name: str, column: Column) -> bool:
    """True if a column is true or false, and its name has a word for success or failure."""
    meanings = (_GOOD | _BAD) & set(words_of(name))
    return bool(meanings) and all(text.lower() in _TRUE | _FALSE for text in column.values)


def is_status_column(name: str, column: Column) -> bool:
    """True if a column may hold the status of each run."""
    words = set(words_of(name))
    if not column.values or len(column.values) > _MOST_WORDS:
        return False
    codes = all(re.fullmatch(r"-?\d{1,3}(?:\.0)?", text) for text in column.values)
    texts = column.part(lambda text: not is_duration(text)) > MOSTLY
    if is_flag(name, column) or (words & _CODES and codes):
        return True
    return bool((words & _STATES and (texts or codes)) or (words & _GOOD and texts))


def statuses_meant(
    words: Iterable[str], name: str, cells: Sequence[tuple[Any, Any]]
) -> dict[str, str]:
    """Our status for each word of a column; empty where it could be any. `cells` are the status and
    the time of each row: a number is interpreted by the name of its column, or by which rows have
    times."""
    return {
        word: _number(word, name, cells) or _flag(word, name) or status_meant(word)
        for word in words
    }


def _flag(word: str, name: str) -> str:
    low, words = word.strip().lower(), set(words_of(name))
    if low not in _TRUE | _FALSE or not words & (_GOOD | _BAD):
        return ""
    if words & _BAD and not words & _GOOD:
        kind = status_meant(" ".join(words_of(name)))
        return "ok" if low in _FALSE else kind if kind not in ("", "ok") else "crash"
    return "ok" if low in _TRUE else "wrong" if words & _RIGHT else "crash"


def _number(word: str, name: str, cells: Sequence[tuple[Any, Any]]) -> str:
    words = set(words_of(name))
    if not re.fullmatch(r"-?\d+(?:\.0)?", word.strip()) or words & (_GOOD | _BAD):
        return ""
    number = int(float(word))
    good = 0
    if not words & _CODES:
        timed: dict[str, bool] = {}
        for status, time in cells:
            text = status.strip() if isinstance(status, str) else json.dumps(status)
            timed[text] = timed.get(text, False) or _has_time(time)
        ok = [text for text, has in timed.items() if has]
        if len(ok) != 1:
            return ""
        good = int(float(ok[0])) if re.fullmatch(r"-?\d+(?:\.0)?", ok[0]) else 0
    return "ok" if number == good else _ENDED.get(number, "crash")


def _has_time(cell: Any) -> bool:
    text = cell.strip() if isinstance(cell, str) else json.dumps(cell)
    return text.lower() not in ("nan", "infinity") and is_duration(text)


_NAMED = {"time", "runtime", "elapsed", "duration", "latency", "wall", "exec"}
#: Words for times other than the time of a run.
_OTHERS = {
    "compile", "compilation", "build", "conversion", "convert", "setup", "prep", "preprocess",
    "preprocessing", "load", "loading", "transfer", "copy", "h2d", "d2h", "io", "overhead", "queue",
    "wait", "std", "stdev", "stddev", "var", "variance", "err", "error", "ci", "cv", "mad", "sem",
    "timeout", "limit", "budget", "size", "count", "log", "log2", "log10", "ln", "inverse", "inv",
    "normalized", "normalised", "relative", "ratio",
}  # fmt: skip
_CLOCKS = {
    "start", "started", "begin", "end", "ended", "stop", "since", "timestamp", "stamp", "date",
    "datetime", "epoch", "clock", "at",
}  # fmt: skip
_RATES = {
    "flop", "flops", "gflop", "gflops", "mflop", "mflops", "tflop", "tflops", "gb", "mb",
    "tb", "kb", "gib", "mib", "gbps", "mbps", "gbs", "bytes", "ops", "gops", "throughput",
    "bandwidth", "bw", "speedup", "rate", "freq", "frequency", "hz", "khz", "mhz", "ghz", "qps",
    "rps", "fps", "teps", "mteps", "gteps", "it", "items", "iterations", "runs",
}  # fmt: skip
#: Divisors of a time that is still the time of a run.
_RUN = {"iter", "iteration", "it", "op", "call", "run", "rep", "repeat", "launch", "exec", "spmv",
        "spmm"}  # fmt: skip
_COUNTS = {"iterations", "iters", "iteration", "reps", "repeats", "repetitions", "runs", "calls"}
#: A repeated value that is this many times the next smaller one means a missing time.
_FAR = 1000.0


def unit_in(column: str) -> str:
    """The unit in a column's name, its last word or before a divisor (`ns/op`); empty for a
    rate."""
    words = words_of(column)
    if len(words) > 2 and words[-2] == "per" and words[-1] in _RUN:
        words = words[:-2]
    elif len(words) > 1 and "/" in column and words[-1] in _RUN:
        words = words[:-1]
    return unit_of(words[-1]) if words and not is_rate(column) else ""


def is_rate(column: str) -> bool:
    """True if a name is a rate, which is better when higher: something per time. `rows_per_block`
    is a size."""
    words = words_of(column)
    if words[:1] == ["1"]:
        return True
    divided = words[-1:] and unit_of(words[-1]) and (words[-2:-1] == ["per"] or "/" in column)
    if divided:
        return words[-2 if "/" in column else -3 :][:1] != ["time"]
    if "per" in words or "/" in column:
        before = words[: words.index("per")] if "per" in words else words[:-1]
        if any(unit_of(word) for word in before):
            return False
    return bool(_RATES & set(words)) and not _NAMED & set(words)


#: Words of a name that numbers repeats, and of one that identifies a session or its state.
_REPEATS = {"seed", "trial", "trials", "rep", "reps", "repeat", "repeats", "repetition",
            "repetitions", "iteration", "iter", "attempt", "run", "sample"}  # fmt: skip
_SESSIONS = {"session", "date", "datetime", "day", "timestamp", "host", "hostname", "node",
             "machine", "server", "device", "job", "user", "pid", "commit", "sha", "power",
             "temperature", "temp", "energy"}  # fmt: skip
#: Words beside them that change nothing.
_BESIDE = {"id", "idx", "index", "no", "num", "number", "name", "git", "random", "slurm", "gpu",
           "cpu", "avg", "mean", "w", "mw", "watt", "watts", "c", "j"}  # fmt: skip
_CHIPS = ({"gpu"}, {"cpu"}, {"accelerator"}, {"gpu", "name"}, {"cpu", "name"}, {"gpu", "model"},
          {"cpu", "model"})  # fmt: skip
_MOST_CHOICES = 32


def numbers_repeats(name: str) -> bool:
    """True if a column, by its name, numbers the repeats of a run or is an identifier."""
    words = set(words_of(name))
    return words - _BESIDE <= _REPEATS and bool(words & {*_REPEATS, "id"})


def names_session(name: str) -> bool:
    """True if a column, by its name, is of the session or the machine and not of the program."""
    words = set(words_of(name))
    sessions = bool(words & _SESSIONS) and words - _BESIDE <= _SESSIONS | _REPEATS
    return sessions or words in _CHIPS


def may_be_choice(name: str, column: Column) -> bool:
    """True if a column has few values, and its name is not that of a repeat or of their number."""
    few = len(column.values) <= min(_MOST_CHOICES, sum(column.values.values()) / 2)
    return few and not (numbers_repeats(name) or _COUNTS & set(words_of(name)))


def is_count(name: str, column: Column) -> bool:
    """True if a column may hold the number of runs that were timed together."""
    return bool(_COUNTS & set(words_of(name))) and column.part(lambda text: text == "1") < 1


def time_candidates(
    names: Iterable[str], columns: Mapping[str, Column]
) -> tuple[dict[str, str], dict[str, str]]:
    """Columns that may be the time, with their units, and the reasons against others that look like
    it."""
    units: dict[str, str] = {}
    not_times: dict[str, str] = {}
    for name in names:
        column, words = columns[name], set(words_of(name))
        if not has_durations(column):
            continue
        unit = unit_in(name)
        if is_rate(name):
            not_times[name] = "a rate"
        elif words & _CLOCKS or (column.only_rises and (words & _NAMED or unit)):
            not_times[name] = "a clock: it rises from row to row"
        elif not words & _OTHERS and (words & _NAMED or unit or in_cells(column.values)):
            units[name] = unit
    return units, not_times


def has_durations(column: Column) -> bool:
    """True if the cells are times, apart from those that mean a missing time."""
    texts = [text for text in column.values if not _no_time(text)]
    rows = sum(column.values[text] for text in texts)
    times = sum(column.values[text] for text in texts if is_duration(text))
    return times > MOSTLY * rows > 0


def _no_time(text: str) -> bool:
    low = text.lower()
    if is_number(text):
        return not is_duration(text)
    return is_nothing(text) or low in _ENDLESS or status_meant(text) not in ("", "ok")


_ENDLESS = {"inf", "-inf", "+inf", "infinity", "-infinity"}


def sentinels(column: Column) -> dict[str, str]:
    """Cells of a time column that mean a run without a time, in lower case (`empty` for an empty
    one), and the probable status of each; an empty status for 0."""
    statuses: dict[str, str] = {}
    for text in filter(_no_time, column.values):
        if is_number(text):
            statuses[text.lower()] = "crash" if float(text) else ""
        elif is_nothing(text) or text.lower() in _ENDLESS:
            statuses[text.lower()] = "crash"
        else:
            statuses[text.lower()] = status_meant(text)
    if column.empty and column.values:
        statuses["empty"] = "crash"
    return statuses | _far(column)


def _far(column: Column) -> dict[str, str]:
    """A number that occurs repeatedly, far above all others."""
    numbers = {}
    for text in column.values:
        if is_duration(text):
            try:
                numbers[text] = float(text)
            except ValueError:
                return {}
    if len(numbers) < 3:
        return {}
    *_, second, most = sorted(numbers, key=lambda text: numbers[text])
    again = column.values[most] > 1
    return {most.lower(): "timeout"} if again and numbers[most] > _FAR * numbers[second] else {}
