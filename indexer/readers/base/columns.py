"""The column map of the generic readers: which column of a record plays which role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.records import SOURCES, STATUSES, Measurement
from indexer.readers.base.row import (
    UNITS,
    MatrixRef,
    ReadOptions,
    RunRow,
    config_of,
    cost,
    count,
    divisor,
    number,
    seconds,
    status_of,
)

__all__ = ["ROLES", "Plan"]

#: Roles a column can have, with the column names that take them when no map is given. A role
#: `time` may carry its unit (`time_ms`), and `config.NAME` is the parameter NAME.
ROLES: Mapping[str, tuple[str, ...]] = {
    "matrix": ("matrix", "name", "matrix_name"),
    "m": ("m", "rows", "num_rows"),
    "n": ("n", "cols", "num_cols"),
    "nnz": ("nnz",),
    "group": ("group",),
    "op": ("op",),
    "kernel": ("kernel",),
    "width": ("width",),
    "dtype": ("dtype",),
    "times": ("times",),
    "time": ("time", "runtime"),
    "status": ("status",),
    "error": ("error",),
    "source": ("source",),
    "conversion": ("conversion",),
    "compile": ("compile",),
    "tolerance": ("tolerance",),
    "when": ("when",),
    "instance": ("instance", "device"),
    "campaign": ("campaign",),
    "platform": ("platform",),
}
_DURATIONS = ("times", "time", "conversion", "compile")
_SUFFIX = re.compile(r"(.+)_(s|ms|us|ns)")


@dataclass(frozen=True, slots=True)
class Plan:
    """Roles resolved against the columns of one file. `units` holds the divisor per duration."""

    roles: Mapping[str, str]
    units: Mapping[str, float]
    config: Mapping[str, str]
    options: ReadOptions

    @classmethod
    def of(cls, names: Iterable[str], options: ReadOptions) -> Plan:
        """Raises: ReaderError for a mapped column that is not there, a missing matrix or time
        column, an unknown role, no operation, and a unit that is missing or contradicted."""
        names = list(names)
        roles, stated, config = _mapped(names, options)
        taken = {*roles.values(), *config.values()}
        free = [name for name in names if name not in taken]
        for name in free:
            role, unit = _by_name(name, options.params)
            if role.startswith("config."):
                config.setdefault(role[7:], name)
            elif role and role not in roles:
                roles[role], stated[role] = name, unit
        _require(names, roles, options)
        units = {r: _unit(roles[r], stated[r], options) for r in _DURATIONS if r in roles}
        return cls(roles, units, config, options)

    def row(self, record: Mapping[str, Any], line: int) -> RunRow:
        """Raises: ReaderError (reason only) for a record that is not a run."""
        nested = record.get("config")
        config = dict(nested) if isinstance(nested, Mapping) else {}
        for param, column in self.config.items():
            raw = record.get(column)
            if raw is not None and raw != "":
                config[param] = raw
        return RunRow(
            self._matrix(record),
            self._op(record),
            config_of(config),
            self._measurement(record),
            line,
            self._text(record, "instance") or self.options.instance,
            self._text(record, "campaign"),
            self._text(record, "platform"),
        )

    def _get(self, record: Mapping[str, Any], role: str) -> Any:
        column = self.roles.get(role)
        found = None if column is None else record.get(column)
        return None if found == "" else found

    def _text(self, record: Mapping[str, Any], role: str) -> str:
        found = self._get(record, role)
        return "" if found is None else str(found)

    def _matrix(self, record: Mapping[str, Any]) -> MatrixRef:
        name = self._text(record, "matrix") or self.options.matrix
        if not name:
            raise ReaderError("no matrix name")
        m, n, nnz = (count(self._get(record, role)) for role in ("m", "n", "nnz"))
        return MatrixRef(name, m, n, nnz, self._text(record, "group"))

    def _op(self, record: Mapping[str, Any]) -> Op:
        text = self._text(record, "op")
        if not text and "kernel" in self.roles:
            parts = [self._text(record, role) for role in ("kernel", "width", "dtype")]
            text = ":".join(part for part in parts if part)
        if text:
            return _parsed(text)
        if self.options.op is None:
            raise ReaderError("no operation")
        return self.options.op

    def _measurement(self, record: Mapping[str, Any]) -> Measurement:
        status = status_of(self._text(record, "status"), STATUSES)
        source = self._text(record, "source") or "imported"
        if source not in SOURCES:
            raise ReaderError(f"{source!r} is no source: one of {', '.join(SOURCES)}")
        tolerance, when = self._get(record, "tolerance"), self._get(record, "when")
        return Measurement(
            status,
            self._times(record, status),
            source,
            self._cost(record, "conversion"),
            self._cost(record, "compile"),
            None if tolerance is None else number(tolerance),
            0.0 if when is None else number(when),
            self._text(record, "error"),
        )

    def _cost(self, record: Mapping[str, Any], role: str) -> float | None:
        return cost(self._get(record, role), self.units.get(role, 1.0))

    def _times(self, record: Mapping[str, Any], status: str) -> tuple[float, ...]:
        for role in ("times", "time"):
            raw = self._get(record, role)
            if raw is None:
                continue
            many = raw.split(";") if isinstance(raw, str) else raw
            if not isinstance(many, list):
                many = [many]
            if many:
                return tuple(seconds(one, self.units[role]) for one in many)
        if status == "ok":
            raise ReaderError("no time, and no status that says why")
        return ()


def _mapped(
    names: list[str], options: ReadOptions
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Roles, their stated units and parameters as the caller mapped them."""
    roles: dict[str, str] = {}
    stated: dict[str, str] = {}
    config: dict[str, str] = {}
    for asked, column in options.columns.items():
        if column not in names:
            raise ReaderError(
                f"no column {column!r} for the role {asked!r}", hint=f"columns: {', '.join(names)}"
            )
        role, unit = _timed(asked)
        if asked.startswith("config.") and len(asked) > 7:
            config[asked[7:]] = column
        elif role in ROLES:
            roles[role], stated[role] = column, unit
        else:
            raise ReaderError(
                f"no role {asked!r}", hint=f"roles: {', '.join(ROLES)}, time_ms, config.NAME"
            )
    return roles, stated, config


def _timed(name: str) -> tuple[str, str]:
    """A role or column name without its unit, and the unit; only durations have one."""
    found = _SUFFIX.fullmatch(name)
    if found and found[1] in (*_DURATIONS, "runtime"):
        return found[1], found[2]
    return name, ""


def _by_name(name: str, params: tuple[str, ...]) -> tuple[str, str]:
    """The role (or `config.NAME`) and unit a column has by its name alone; "" if none.

    A parameter of the platform wins over a role of the same name: on a platform with a parameter
    `kernel`, a column `kernel` is that parameter.
    """
    if name in params:
        return f"config.{name}", ""
    if name.startswith("config.") and len(name) > 7:
        return name, ""
    base, unit = _timed(name)
    return next((role for role, names in ROLES.items() if base in names), ""), unit


def _require(names: list[str], roles: Mapping[str, str], options: ReadOptions) -> None:
    shown = f"columns: {', '.join(names)[:300]}"
    if "matrix" not in roles and not options.matrix:
        raise ReaderError("no column names the matrix", hint=f"--map matrix=COLUMN; {shown}")
    if "time" not in roles and "times" not in roles:
        raise ReaderError("no column holds the time", hint=f"--map time_ms=COLUMN; {shown}")
    if "op" not in roles and "kernel" not in roles and options.op is None:
        raise ReaderError("no column names the operation", hint="give --op spmm:128")


def _unit(column: str, stated: str, options: ReadOptions) -> float:
    """Seconds' divisor of a duration column: the role's unit, the column's suffix or `unit`."""
    found = {u for u in (stated, _timed(column)[1]) if u}
    if not found:
        return divisor(options.unit, where=f"column {column!r}")
    if len(found) > 1 or (options.unit and options.unit not in found):
        said = " and ".join(sorted({*found, options.unit} - {""}))
        raise ReaderError(f"column {column!r} is said to hold {said}", hint="state one unit")
    return UNITS[found.pop()]


@lru_cache(256)
def _parsed(text: str) -> Op:
    try:
        return Op.parse(text)
    except UsageError as error:
        raise ReaderError(str(error), hint=error.hint) from None
