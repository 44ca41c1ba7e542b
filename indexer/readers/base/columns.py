"""The column map of the generic readers: which column of a record plays which role."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.kinds import operation_exists, operation_of
from embeddb.core.records import SOURCES, STATUSES, Measurement
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    RunRow,
    config_of,
    cost,
    count,
)
from indexer.readers.base.statuses import is_nothing, no_value, status_meant, status_of
from indexer.readers.base.units import (
    UNIT_WORDS,
    Cells,
    comma_of,
    decimal_point,
    in_cells,
    number,
    unit_of,
)

#: Roles a column can have, with the column names that take them when no map is given, the role's
#: own name first. A role `time` may carry its unit (`time_ms`), and `config.NAME` is the parameter
#: NAME.
ROLES: Mapping[str, tuple[str, ...]] = {
    "matrix": ("matrix", "matrix_name", "name"),
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
    "unit": ("unit", "time_unit"),
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
DURATIONS = ("times", "time", "conversion", "compile")
#: Words in the name of a column that may hold matrices.
MATRIX_WORDS = frozenset(
    ("matrix", "mtx", "file", "filename", "path", "input", "dataset", "graph", "workload")
)
_BASES = (*DURATIONS, "runtime")
_UNIT = "|".join(sorted(UNIT_WORDS, key=len, reverse=True))
_SUFFIX = re.compile(rf"({'|'.join(_BASES)})_({_UNIT})")
_ROLE_OF = {name: (role, rank) for role, names in ROLES.items() for rank, name in enumerate(names)}
#: Names that are too short, or too ambiguous, to be recognised in capitals.
_EXACT = frozenset(("m", "n", "name", "op"))


def folded(name: str) -> str:
    """A column's name in small letters, with `_` for spaces and brackets and u for µ."""
    text = unicodedata.normalize("NFKC", name).casefold().replace("μ", "u")
    return re.sub(r"[\s\[\](){}<>,:;=_-]+", "_", text).strip("_")


def words_of(column: str) -> list[str]:
    """The words that a name is made of, in lower case."""
    text = unicodedata.normalize("NFKC", column).replace("μ", "u").replace("Μ", "u")
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text)]


def timed(name: str) -> tuple[str, str]:
    """A role or column name without its unit, and the unit; only durations have one."""
    suffix = _SUFFIX.fullmatch(folded(name))
    return (suffix[1], unit_of(suffix[2])) if suffix else (name, "")


def by_name(name: str, params: Sequence[str]) -> tuple[str, str, int]:
    """The role (or `config.NAME`) and unit of a column by its name alone, "" if none, and the rank
    of the name among the role's names, 0 for the role's own.

    A parameter of the platform takes precedence over a role of the same name: on a platform with a
    parameter `kernel`, a column `kernel` is that parameter.
    """
    if name in params:
        return f"config.{name}", "", 0
    if name.startswith("config.") and len(name) > 7:
        return name, "", 0
    base, unit = timed(name)
    other = int(base == name and base not in _ROLE_OF)
    if other:
        base = folded(base)
    role, rank = _ROLE_OF.get(base, ("", 0))
    if other and base in _EXACT:
        return "", "", 0
    return role, unit, 10 * (name != folded(name)) + rank


def chosen(role: str, columns: Mapping[str, int], names: Sequence[str]) -> str:
    """The column of a role, of those that match it by name (with their ranks): the one nearest to
    the role's own name; no other in `names` may have the same rank.

    Raises: ReaderError naming the columns if it is ambiguous.
    """
    best = min(columns, key=lambda column: columns[column])
    rivals = [c for c, rank in columns.items() if c != best and rank == columns[best]]
    if role == "time":
        rivals = [c for c in columns if c != best]
    if role == "matrix" and folded(best) == "name":
        rivals = [c for c in names if c != best and MATRIX_WORDS & set(words_of(c))]
    if rivals:
        both = " and ".join(map(repr, (best, *rivals)))
        raise ReaderError(
            f"columns {both} may be the {role}", hint=f"--map {role}={best}, or the other"
        )
    return best


#: First records, from which the meaning of commas and the units are inferred.
SAMPLE = 1000
#: Cells without a value of a parameter, in lower case. `none` and `null` may be choices.
_NO_VALUE = ("", "nan", "na", "n/a")
#: A numeric identifier as some tables write it.
_FLOAT = re.compile(r"(\d+)\.0+")
#: Roles of the cells that describe a matrix.
_OF_MATRIX = ("matrix", "m", "n", "nnz", "group")
#: Most matrices or configurations that are read once for all rows with the same cells, and the most
#: characters of these: bounds memory.
_MOST_CACHED, _LONGEST_CACHED = 1 << 16, 500
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Plan:
    """Roles resolved against the columns of one file. `units` has the format of each duration,
    `decimal` is true for decimal commas."""

    roles: Mapping[str, str]
    units: Mapping[str, Cells]
    config: Mapping[str, str]
    options: ReadOptions
    decimal: bool = False
    _matrices: dict[str, MatrixRef] = field(default_factory=dict)
    _configs: dict[str, Config] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        options: ReadOptions,
        records: Sequence[Mapping[str, Any]] = (),
        comma: str = "",
    ) -> Plan:
        """Resolve the roles of columns. `records` are the first ones, which decide about commas and
        units in cells; `comma` is the meaning of a comma where they leave it open (`comma_of`).

        Raises: ReaderError for a mapped column that is missing, no matrix or time column, a column
        that is there twice, two columns for one role, an unknown role, no operation, a missing or
        contradictory unit, and an ambiguous comma.
        """
        names = list(names)
        roles, stated, config = assigned(names, options)
        _require(names, roles, options)
        _refuse_twice(names, (*roles.values(), *config.values()))
        units = {}
        for role in filter(roles.__contains__, DURATIONS):
            sample = [record.get(roles[role]) for record in records]
            per_second = _per_second(role, roles, stated[role], options, sample)
            rather = "repeats" if role == "times" else comma
            log, where = options.log, f"column {roles[role]!r}"
            meant = comma_of(sample, where, rather=rather)
            units[role] = Cells(per_second, meant, log.clock_ghz, log.counts_cycles)
        decimal = any(cells.comma == "decimal" for cells in units.values())
        return cls(roles, units, config, options, decimal)

    def row(self, record: Mapping[str, Any], line: int) -> RunRow:
        """Convert a record to a run. Raises: ReaderError (reason only) with all reasons at once."""
        parts: dict[str, Any] = {}
        wrong: list[ReaderError] = []
        for name, part in (
            ("matrix", self._matrix),
            ("op", self._op),
            ("config", self._config),
            ("measurement", self._measurement),
        ):
            try:
                parts[name] = part(record)
            except ReaderError as error:
                wrong.append(error)
        if wrong:
            raise ReaderError("; ".join(e.reason for e in wrong), hint=wrong[0].hint)
        return RunRow(
            parts["matrix"],
            parts["op"],
            parts["config"],
            parts["measurement"],
            line,
            self._text(record, "instance") or self.options.instance or self.options.log.instance,
            self._text(record, "campaign"),
            self._text(record, "platform"),
        )

    def _config(self, record: Mapping[str, Any]) -> Config:
        columns = ("config", *self.config.values())
        return _once(self._configs, columns, record, self._new_config)

    def _new_config(self, record: Mapping[str, Any]) -> Config:
        nested = record.get("config")
        config = dict(nested) if isinstance(nested, Mapping) else {}
        for param, column in self.config.items():
            raw = record.get(column)
            if raw is not None and not self._is_empty(raw):
                config[param] = raw
        if self.decimal:
            config = {param: decimal_point(raw) for param, raw in config.items()}
        return config_of(config)

    def _is_empty(self, raw: Any) -> bool:
        """True if a cell sets no parameter; a word that the platform has as a value does."""
        text = raw.strip() if isinstance(raw, str) else None
        return text is not None and text.lower() in _NO_VALUE and text not in self.options.texts

    def _get(self, record: Mapping[str, Any], role: str) -> Any:
        column = self.roles.get(role)
        if column is None:
            return None
        cell = record.get(column)
        return None if cell == "" else cell

    def _text(self, record: Mapping[str, Any], role: str) -> str:
        column = self.roles.get(role)
        if column is None:
            return ""
        cell = record.get(column)
        return "" if cell is None else str(cell).rstrip(" ")

    def _matrix(self, record: Mapping[str, Any]) -> MatrixRef:
        columns = [self.roles.get(role, "") for role in _OF_MATRIX]
        return _once(self._matrices, columns, record, self._new_matrix)

    def _new_matrix(self, record: Mapping[str, Any]) -> MatrixRef:
        name = self._text(record, "matrix") or self.options.matrix
        if not name:
            raise ReaderError("no matrix name")
        if name.endswith("0") and (whole := _FLOAT.fullmatch(name)):
            name = whole[1]
        m, n, nnz = (self._size(record, role) for role in ("m", "n", "nnz"))
        return MatrixRef(name, m, n, nnz, self._text(record, "group"))

    def _size(self, record: Mapping[str, Any], role: str) -> int:
        cell = self._get(record, role)
        try:
            return count(cell)
        except ReaderError:
            if no_value(cell):
                return -1
            raise

    def _op(self, record: Mapping[str, Any]) -> Op:
        stated, default = self._text(record, "op") or self._text(record, "kernel"), self.options.ran
        width, dtype = self._text(record, "width"), self._text(record, "dtype")
        if default is not None and not (stated or width or dtype):
            return default
        text = stated or str(default or self.options.op_name)
        if not text:
            raise ReaderError("no operation")
        op, other = _op_of(text, width, dtype, default)
        if other:
            how = "" if stated else f": `--op {op.name}` takes what the columns have"
            raise ReaderError(f"{other}, where the operation is {text}{how}")
        return op

    def _measurement(self, record: Mapping[str, Any]) -> Measurement:
        status, times = self._outcome(record)
        source = self._text(record, "source") or "imported"
        if source not in SOURCES:
            raise ReaderError(f"{source!r} is no source: one of {', '.join(SOURCES)}")
        return Measurement(
            status,
            times,
            source,
            self._fact(record, "conversion", status),
            self._fact(record, "compile", status),
            self._fact(record, "tolerance", status),
            self._fact(record, "when", status) or 0.0,
            self._text(record, "error"),
        )

    def _fact(self, record: Mapping[str, Any], role: str, status: str) -> float | None:
        """A number beside the times; None where there is none, or an unusable one of a failed
        run."""
        raw = self._get(record, role)
        if raw is None or no_value(raw):
            return None
        try:
            if role in DURATIONS:
                return cost(raw, self.units[role].per_second or 1.0)
            return number(raw)
        except ReaderError:
            if status == "ok":
                raise
            return None

    def _outcome(self, record: Mapping[str, Any]) -> tuple[str, tuple[float, ...]]:
        """Status and times. Without a status column, an error is one, and so is a word in place of
        a time that `[log.status]` has. Failed runs keep positive times alone."""
        own = self.options.log.statuses
        word = self._text(record, "status")
        status = status_of(word, STATUSES, own)
        cell, cells = self._time(record)
        if not word:
            error = self._text(record, "error")
            if error and not is_nothing(error):
                status = status_meant(error)
                status = "crash" if status in ("", "ok") else status
            elif own:
                text = "empty" if cell is None else str(cell).strip().lower()
                status = own.get(text, status)
        unit = unit_of(self._text(record, "unit")) if "unit" in self.roles else ""
        if status != "ok":
            return status, () if cell is None else cells.usable(cell, unit)
        if cell is None:
            raise ReaderError("no time, and no status of a failure")
        if not unit and cells.per_second is None and "unit" in self.roles:
            raise ReaderError(f"no time unit {self._text(record, 'unit')[:40]!r}")
        return status, cells.seconds(cell, unit)

    def _time(self, record: Mapping[str, Any]) -> tuple[Any, Cells]:
        """The cell with the times, None if there is none, and its format."""
        for role in ("times", "time"):
            raw = self._get(record, role)
            if raw is not None and raw != []:
                return raw, self.units[role]
        return None, _NO_CELLS


_NO_CELLS = Cells(1.0)


def assigned(
    names: list[str], options: ReadOptions
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Columns by role, their stated units by role, and columns by parameter: as mapped by the
    caller and the platform's file, the others by name. Raises: ReaderError as `Plan.of` for a
    map."""
    roles, stated, config = _mapped(names, options)
    taken = {*roles.values(), *config.values()}
    able: dict[str, dict[str, int]] = {}
    units: dict[str, str] = {}
    for name in names:
        role, units[name], rank = ("", "", 0) if name in taken else by_name(name, options.params)
        if role.startswith("config."):
            other = config.setdefault(role[7:], name)
            if other != name and other not in taken:
                raise ReaderError(
                    f"columns {other!r} and {name!r} may be the parameter {role[7:]!r}",
                    hint=f"--map {role}={other}, or the other",
                )
        elif role and role not in roles:
            able.setdefault(role, {})[name] = rank
    ran = None if {"op", "kernel"} & {*roles, *able} else options.ran
    if ran is not None:  # `width` of spmv is no number of dense columns
        for role, has in (("width", ran.traits.wide), ("dtype", ran.traits.typed)):
            if not has:
                able.pop(role, None)
    for role, columns in able.items():
        roles[role] = chosen(role, columns, [n for n in names if n not in taken])
        stated[role] = units[roles[role]]
    return roles, stated, config


def _mapped(
    names: list[str], options: ReadOptions
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Roles, their stated units and parameters as they were mapped."""
    roles: dict[str, str] = {}
    stated: dict[str, str] = {}
    config: dict[str, str] = {}
    for key, column in [*options.log.here(names).items(), *options.columns.items()]:
        if column not in names:
            raise ReaderError(
                f"no column {column!r} for the role {key!r}", hint=f"columns: {', '.join(names)}"
            )
        role, unit = timed(key)
        if key.startswith("config.") and len(key) > 7:
            config[key[7:]] = column
        elif role in ROLES:
            roles[role], stated[role] = column, unit
        else:
            raise ReaderError(
                f"no role {key!r}", hint=f"roles: {', '.join(ROLES)}, time_ms, config.NAME"
            )
    return roles, stated, config


def _require(names: list[str], roles: Mapping[str, str], options: ReadOptions) -> None:
    shown = f"columns: {', '.join(names)[:300]}"
    if "matrix" not in roles and not options.matrix:
        raise ReaderError("no column names the matrix", hint=f"--map matrix=COLUMN; {shown}")
    if not {"time", "times", "status"} & roles.keys():
        raise ReaderError("no column is the time", hint=f"--map time_ms=COLUMN; {shown}")
    if {"op", "kernel"} & roles.keys() or options.ran is not None:
        return
    if not options.op_name:
        example = "spmm" if "width" in roles else "spmm:128"
        hint = f"give --op, such as --op {example}"
        raise ReaderError("no column names the operation", hint=hint)
    if "width" not in roles:
        hint = f"give --op {options.op_name}:128, or --map width=COLUMN"
        raise ReaderError("no column has the number of dense columns", hint=hint)


def _refuse_twice(names: Sequence[str], used: Iterable[str]) -> None:
    for name in used:
        if names.count(name) > 1:
            raise ReaderError(
                f"{names.count(name)} columns are named {name!r}",
                hint="rename or remove all but one",
            )


def _per_second(
    role: str,
    roles: Mapping[str, str],
    stated: str,
    options: ReadOptions,
    sample: Sequence[Any],
) -> float | None:
    """Units per second of a duration column: from the role's unit, the column's suffix or the
    caller's; None where each row has a unit, in another column or its cell."""
    column = roles[role]
    units = {u for u in (stated, timed(column)[1]) if u}
    if len(units) > 1 or (units and options.unit and options.unit not in units):
        stated_units = " and ".join(sorted({*units, options.unit} - {""}))
        raise ReaderError(f"column {column!r} has two units: {stated_units}", hint="state one unit")
    unit = units.pop() if units else options.unit
    if not unit and (("unit" in roles and role in ("time", "times")) or in_cells(sample)):
        return None
    return options.per_second(unit, where=f"column {column!r}")


@lru_cache(256)
def _op_of(text: str, width: str, dtype: str, default: Op | None) -> tuple[Op, str]:
    """The operation by its text, to which the cells `width` and `dtype` add what it does not
    name, and what of these two contradicts the text. A bare name is completed by the `default` of
    that name."""
    name, *named = (part.strip().lower() for part in text.split(":"))
    own = {"dtype" if part[:1].isalpha() else "width": part for part in named}
    if len(own) < len(named):  # twice the same part, which the parser refuses
        own = {"width": ":".join(named)}
    size = -1 if no_value(width) else count(width)
    beside = {"width": str(size) if size >= 0 else "", "dtype": "" if no_value(dtype) else dtype}
    if default is not None and not named and name == default.name:
        beside = {role: beside[role] or str(getattr(default, role)) for role in beside}
    op, other = _completed(name, own, beside), _completed(name, beside, own)
    differ = [role for role in beside if getattr(op, role) != getattr(other, role)]
    return op, " and ".join(f"{role} {getattr(other, role)}" for role in differ)


def _once(
    results: dict[str, _Read],
    columns: Iterable[str],
    record: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], _Read],
) -> _Read:
    """The value of the cells of some columns: one object for all records in which these are equal,
    as in most of a log. Their texts differ between 1 and `true`, and need no hash."""
    cells = repr([record.get(column) for column in columns])
    result = results.get(cells) or read(record)
    if len(cells) <= _LONGEST_CACHED:
        if len(results) >= _MOST_CACHED:
            results.clear()
        results[cells] = result
    return result


def _completed(name: str, first: Mapping[str, str], second: Mapping[str, str]) -> Op:
    """An operation of this name with the width and value type of `first`, else of `second`."""
    width, dtype = (first.get(role) or second.get(role) for role in ("width", "dtype"))
    try:
        return Op.parse(":".join(filter(None, (name, width, dtype))))
    except UsageError as error:
        lacks = not width and operation_exists(name) and operation_of(name)[0].wide
        how = f": --map width=COLUMN, or --op {name}:WIDTH" if lacks else ""
        raise ReaderError(f"{error}{how}", hint=error.hint) from None
