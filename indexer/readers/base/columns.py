"""The column map of the generic readers: which column of a record plays which role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.records import SOURCES, STATUSES, Measurement
from indexer.readers.base.roles import DURATIONS, ROLES, by_name, timed
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    RunRow,
    config_of,
    cost,
    count,
    number,
    seconds,
    status_of,
)

__all__ = ["ROLES", "Plan", "assigned"]


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
        roles, stated, config = assigned(names, options)
        _require(names, roles, options)
        units = {r: _unit(roles[r], stated[r], options) for r in DURATIONS if r in roles}
        return cls(roles, units, config, options)

    def row(self, record: Mapping[str, Any], line: int) -> RunRow:
        """Raises: ReaderError (reason only) for a record that is not a run; all reasons at once."""
        made: dict[str, Any] = {}
        wrong: list[ReaderError] = []
        parts = {"matrix": self._matrix, "op": self._op, "config": self._config}
        for name, part in {**parts, "measurement": self._measurement}.items():
            try:
                made[name] = part(record)
            except ReaderError as error:
                wrong.append(error)
        if wrong:
            raise ReaderError("; ".join(e.reason for e in wrong), hint=wrong[0].hint)
        return RunRow(
            made["matrix"],
            made["op"],
            made["config"],
            made["measurement"],
            line,
            self._text(record, "instance") or self.options.instance or self.options.log.instance,
            self._text(record, "campaign"),
            self._text(record, "platform"),
        )

    def _config(self, record: Mapping[str, Any]) -> Config:
        nested = record.get("config")
        config = dict(nested) if isinstance(nested, Mapping) else {}
        for param, column in self.config.items():
            raw = record.get(column)
            if raw is not None and raw != "":
                config[param] = raw
        return config_of(config)

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
        op = self.options.ran
        if op is None:
            raise ReaderError("no operation")
        return op

    def _measurement(self, record: Mapping[str, Any]) -> Measurement:
        status = status_of(self._text(record, "status"), STATUSES, self.options.log.statuses)
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


def assigned(
    names: list[str], options: ReadOptions
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Columns by role, their stated units by role, and columns by parameter: as the caller and the
    platform's file mapped them, the others by name. Raises: ReaderError as `Plan.of` for a map."""
    roles, stated, config = _mapped(names, options)
    taken = {*roles.values(), *config.values()}
    for name in names:
        role, unit = ("", "") if name in taken else by_name(name, options.params)
        if role.startswith("config."):
            config.setdefault(role[7:], name)
        elif role and role not in roles:
            roles[role], stated[role] = name, unit
    return roles, stated, config


def _mapped(
    names: list[str], options: ReadOptions
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Roles, their stated units and parameters as they were mapped."""
    roles: dict[str, str] = {}
    stated: dict[str, str] = {}
    config: dict[str, str] = {}
    for asked, column in [*options.log.here(names).items(), *options.columns.items()]:
        if column not in names:
            raise ReaderError(
                f"no column {column!r} for the role {asked!r}", hint=f"columns: {', '.join(names)}"
            )
        role, unit = timed(asked)
        if asked.startswith("config.") and len(asked) > 7:
            config[asked[7:]] = column
        elif role in ROLES:
            roles[role], stated[role] = column, unit
        else:
            raise ReaderError(
                f"no role {asked!r}", hint=f"roles: {', '.join(ROLES)}, time_ms, config.NAME"
            )
    return roles, stated, config


def _require(names: list[str], roles: Mapping[str, str], options: ReadOptions) -> None:
    shown = f"columns: {', '.join(names)[:300]}"
    if "matrix" not in roles and not options.matrix:
        raise ReaderError("no column names the matrix", hint=f"--map matrix=COLUMN; {shown}")
    if "time" not in roles and "times" not in roles:
        raise ReaderError("no column holds the time", hint=f"--map time_ms=COLUMN; {shown}")
    if "op" not in roles and "kernel" not in roles and options.ran is None:
        raise ReaderError("no column names the operation", hint="give --op, such as --op spmm:128")


def _unit(column: str, stated: str, options: ReadOptions) -> float:
    """Seconds' divisor of a duration column: the role's unit, the column's suffix or `unit`."""
    found = {u for u in (stated, timed(column)[1]) if u}
    if len(found) > 1 or (found and options.unit and options.unit not in found):
        said = " and ".join(sorted({*found, options.unit} - {""}))
        raise ReaderError(f"column {column!r} is said to hold {said}", hint="state one unit")
    return options.per_second(found.pop() if found else "", where=f"column {column!r}")


@lru_cache(256)
def _parsed(text: str) -> Op:
    try:
        return Op.parse(text)
    except UsageError as error:
        raise ReaderError(str(error), hint=error.hint) from None
