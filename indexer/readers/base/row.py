"""Rows of a log, the options of reading, the protocol of readers, and the conversion of text to
numbers and seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from embeddb.core.config import Config, Op, Value
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.records import STATUSES, Measurement, Run
from embeddb.core.sizes import Sizes
from embeddb.core.workload import Workload
from embeddb.platforms.log_table import LogTable
from indexer.readers.base.units import divisor, number, positive


class MatrixRef(msgspec.Struct, frozen=True, gc=False):
    """The matrix of a row, as described in the file; unknown sizes are -1.

    `features` and `about` are facts of the matrix that came with the file (numbers by name, and
    anything else); a stub keeps them. `content` is the nest, kernel or program itself, where the
    file describes it completely: it needs no file of that name.
    """

    name: str
    m: int = -1
    n: int = -1
    nnz: int = -1
    group: str = ""
    features: dict[str, float] = {}
    about: dict[str, Any] = {}
    content: Workload | None = None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz)


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """One run in a file.

    `config` is a `Config` where the reader shares one object between rows. `instance` is the
    device's label ("" if the file has none), `facts` its description in the file (see
    `embeddb.platforms.machines`; the same in all of its rows), `platform` the platform's name if
    the file has one, `where` the file inside a folder.
    """

    matrix: MatrixRef
    op: Op
    config: Mapping[str, Any]
    measurement: Measurement
    line: int
    instance: str = ""
    campaign: str = ""
    platform: str = ""
    where: str = ""
    facts: Mapping[str, str] = {}


class Reject(msgspec.Struct, frozen=True, gc=False):
    """A row that could not be read: its line, the reason, and its first 200 characters."""

    line: int
    reason: str
    text: str = ""
    where: str = ""


#: Types of the fields of a row, and of those of its matrix.
_OF_ROW: dict[str, type] = {
    **{"matrix": MatrixRef, "op": Op, "config": Mapping, "measurement": Measurement, "line": int},
    **dict.fromkeys(("instance", "campaign", "platform", "where"), str),
    "facts": Mapping,
}
_OF_MATRIX: dict[str, type] = {
    **dict.fromkeys(("name", "group"), str),
    **dict.fromkeys(("m", "n", "nnz"), int),
    **dict.fromkeys(("features", "about"), Mapping),
}


def checked_row(row: object) -> RunRow | Reject:
    """A row of a plug-in, with a copy of its configuration, which the plug-in may write to again.
    Raises: TypeError, ValueError for what cannot be stored."""
    if isinstance(row, Reject):
        return row
    if not isinstance(row, RunRow):
        raise TypeError(f"it returned a {type(row).__name__}, neither a RunRow nor a Reject")
    _check_types(row, row.line, _OF_ROW)
    _check_types(row.matrix, row.line, _OF_MATRIX)
    measured = row.measurement
    if measured.status not in STATUSES:
        raise ValueError(f"line {row.line}: no status {measured.status!r:.40}")
    try:
        Run("", row.op, "", Config({}), measured).id  # noqa: B018  # its check
    except UsageError as error:
        raise TypeError(f"line {row.line}: {error}") from None
    if measured.ok and not measured.times_s:
        raise ValueError(f"line {row.line}: its status is ok, and it has no time")
    return row if isinstance(row.config, Config) else replace(row, config=dict(row.config))


def _check_types(thing: object, line: int, types: Mapping[str, type]) -> None:
    for name, kind in types.items():
        value = getattr(thing, name)
        if not isinstance(value, kind):
            raise TypeError(f"line {line}: its {name} is {value!r:.40}, no {kind.__name__}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Facts that the file may lack.

    `op` for files without the operation, `op_name` its name alone where a column has its number of
    dense columns, `unit` (a key of `UNITS`) for times without one, `columns` from role to column
    name, `params` the platform's parameter names, `features` a file of matrix features, `matrix`
    and `instance` names for files that lack them. `log` is the log table of the
    platform's file, which all others override; `texts` are the values of its parameters that are
    texts.
    """

    op: Op | None = None
    unit: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    params: tuple[str, ...] = ()
    features: Path | None = None
    matrix: str = ""
    instance: str = ""
    log: LogTable = field(default_factory=LogTable)
    op_name: str = ""
    #: No part of the journal's key: it follows from the platform, which is.
    texts: frozenset[str] = field(default_factory=frozenset, repr=False)

    @property
    def ran(self) -> Op | None:
        """The operation for files that do not state it; none if only its name is given."""
        return self.op or (None if self.op_name else self.log.op)

    def per_second(self, stated: str = "", *, where: str) -> float:
        """Units of its times per second: by the unit that the file has `stated`, the caller's or
        the platform file's. Raises: as `divisor`."""
        unit = stated or self.unit or self.log.unit
        if self.log.counts_cycles and unit != "cycles":
            raise ReaderError(
                f"{unit or 'times without a unit'}, where the platform counts cycles",
                where=where,
                hint="give its `clock_ghz` under [traits], or --unit cycles if these are cycles",
            )
        return divisor(unit, where=where, clock_ghz=self.log.clock_ghz)


class Reader(Protocol):
    """A reader plug-in: one file format, one class, no state between calls.

    `platform` is the built-in platform the format belongs to ("" if any), `generic` true for
    formats that would accept the files of other readers. `rows` yields rows and rejects in file
    order with 1-based line numbers, in bounded memory, and never raises for a single bad row.
    """

    name: str
    platform: str
    generic: bool

    def sniff(self, path: Path, head: bytes) -> bool:
        """True if the file looks like this format. `head`: its first bytes, decompressed."""
        ...

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        """Yield the rows. Raises: ReaderError if the file as a whole is not of this format or lacks
        an option."""
        ...


def need_op(options: ReadOptions, path: Path) -> Op:
    """The requested operation, required by formats that lack it. Raises: ReaderError without
    one."""
    op = options.ran
    if op is None:
        why = "the file does not state the operation"
        raise ReaderError(why, where=str(path), hint="give --op, such as --op spmm:128")
    return op


def seconds(raw: Any, per_second: float = 1.0) -> float:
    """A positive duration in seconds. Raises: ReaderError for zero, negative, NaN, overflow."""
    return positive(number(raw) / per_second, raw)


def cost(raw: Any, per_second: float = 1.0) -> float | None:
    """A duration that may be zero, or None for an empty cell."""
    if raw is None or raw == "":
        return None
    duration = number(raw) / per_second
    if duration < 0:
        raise ReaderError(f"duration {str(raw)[:40]!r} is negative")
    return duration


def integer(raw: Any) -> int:
    """An integer of at most 18 digits; written as a float (`5000.0`, `5e3`) one below 2^53."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", raw, re.ASCII):
        return int(raw)
    try:
        size = number(raw)
    except ReaderError:
        size = math.nan
    if not size.is_integer() or abs(size) >= 2**53:
        raise ReaderError(f"{str(raw)[:40]!r} is not an integer")
    return int(size)


def count(raw: Any) -> int:
    """A size: an integer that is not negative, or -1 for an empty cell."""
    if raw is None or raw == "":
        return -1
    size = integer(raw)
    if not -1 <= size < 1 << 62:
        raise ReaderError(f"{str(raw)[:40]!r} is no possible size")
    return size


def value(raw: Any) -> Value:
    """A parameter's value from a cell: number, true/false, JSON list of names, else text."""
    if not isinstance(raw, str):
        return _listed(raw)
    text = raw.strip()
    if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        parsed = number(text)
        return int(parsed) if parsed.is_integer() else parsed
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("["):
        with suppress(ValueError, RecursionError, ReaderError):
            return _listed(json.loads(text))
    return text


def config_of(cells: Mapping[str, Any]) -> Config:
    """A configuration from cells or JSON values by parameter name."""
    try:
        return Config({name: value(raw) for name, raw in cells.items()})
    except UsageError as error:
        raise ReaderError(str(error)[:200]) from None


def _listed(raw: Any) -> Value:
    """A value of JSON; a list of numbers, as of tile lengths, is a text."""
    if isinstance(raw, list) and raw and all(type(one) in (int, float) for one in raw):
        raw = json.dumps(raw)
    try:
        return Config({"value": raw})["value"]
    except UsageError:
        raise ReaderError(f"{str(raw)[:40]!r} cannot be a parameter's value") from None


def label(device: str) -> str:
    """A device name as an instance label: `NVIDIA GeForce RTX 3090` is `rtx3090`."""
    words = [w for w in re.findall(r"[a-z0-9]+", device.lower()) if w not in _VENDORS]
    return "".join(words)


_VENDORS = ("nvidia", "geforce", "amd", "radeon", "intel", "r", "tm", "cpu", "gpu")
