"""Time columns of a log: which column may be the time of a run, as opposed to a rate, a clock or
the time of a build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from indexer.readers.base.column_values import MOSTLY, Column, is_duration
from indexer.readers.base.columns import words_of
from indexer.readers.base.statuses import is_nothing, is_number, status_meant
from indexer.readers.base.units import in_cells, unit_of

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
    "per", "flop", "flops", "gflop", "gflops", "mflop", "mflops", "tflop", "tflops", "gb", "mb",
    "tb", "kb", "gib", "mib", "gbps", "mbps", "gbs", "bytes", "ops", "gops", "throughput",
    "bandwidth", "bw", "speedup", "rate", "freq", "frequency", "hz", "khz", "mhz", "ghz", "qps",
    "rps", "fps", "teps", "mteps", "gteps", "it", "items", "iterations", "runs",
}  # fmt: skip
#: Divisors of a time that is still the time of a run.
_RUN = {
    "iter",
    "iteration",
    "it",
    "op",
    "call",
    "run",
    "rep",
    "repeat",
    "launch",
    "exec",
    "spmv",
    "spmm",
}
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
    """True if a name is a rate, which is better when higher: something per time."""
    words = words_of(column)
    if words[:1] == ["1"]:
        return True
    divided = words[-1:] and unit_of(words[-1]) and (words[-2:-1] == ["per"] or "/" in column)
    if divided:
        return words[-2 if "/" in column else -3 :][:1] != ["time"]
    if "per" in words or "/" in column:
        before = words[: words.index("per")] if "per" in words else words[:-1]
        return not any(unit_of(word) or word in _NAMED for word in before)
    return bool(_RATES & set(words)) and not _NAMED & set(words)


def is_total(column: str) -> bool:
    """True if a name is the sum of several runs."""
    return bool({"total", "sum"} & set(words_of(column)))


def is_count(name: str, column: Column) -> bool:
    """True if a column may hold the number of runs that were timed together."""
    return bool(_COUNTS & set(words_of(name))) and column.part(lambda text: text == "1") < 1


def has_units(column: Column) -> bool:
    """True if cells contain units: `40.0 us`."""
    return in_cells(column.values)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns that may be the time, with their units, and the reasons against others that look like
    it."""

    units: dict[str, str]
    not_times: dict[str, str]

    @classmethod
    def among(cls, names: Iterable[str], columns: Mapping[str, Column]) -> Candidates:
        units: dict[str, str] = {}
        not_times: dict[str, str] = {}
        for name in names:
            column, words = columns[name], set(words_of(name))
            if not has_durations(column):
                continue
            if is_rate(name):
                not_times[name] = "a rate"
            elif words & _CLOCKS or (column.only_rises and (words & _NAMED or unit_in(name))):
                not_times[name] = "a clock: it rises from row to row"
            elif not words & _OTHERS and (words & _NAMED or unit_in(name) or has_units(column)):
                units[name] = unit_in(name)
        return cls(units, not_times)


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
