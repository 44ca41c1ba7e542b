"""The parameters of a drafted platform: their types and values, and the conditions and constraints
that hold in a log."""

from __future__ import annotations

import json
import keyword
import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from embeddb.core import plugins
from embeddb.core.config import Config, Op, Value
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.kinds import kinds
from embeddb.platforms.log_table import LogTable
from embeddb.platforms.platform import parse_platform
from embeddb.platforms.space.expression import FUNCTIONS
from embeddb.platforms.space.rules import MAX_TEXT, MAX_VALUES, SYMBOLS
from indexer.ingest import completed, reader_of
from indexer.readers.base.column_values import names_session, numbers_repeats
from indexer.readers.base.lines import read_rows
from indexer.readers.base.proposal import propose
from indexer.readers.base.row import ReadOptions, Reject, RunRow

#: More numbers than this, and more than one in so many rows, are results and no choices.
_MOST_CHOICES, _ROWS_PER_VALUE = 32, 10
#: The same for fractions.
_MOST_FRACTIONS, _ROWS_PER_FRACTION = 3, 4
_MOST_PERMUTED = 8
#: Matrices from which on a value that is the same in all rows of one belongs to the matrix.
_MATRICES = 3
_MOST_SUGGESTED = 5
#: A value that occurs once is suspect where half of its parameter's values occur so many times.
_OFTEN = 5

Configs = Sequence[Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A parameter of a log: `kind` and `values` of the platform file, the condition `when` it is
    set; `sometimes`: it is missing in some rows, and no simple condition explains in which."""

    name: str
    kind: str
    values: tuple[Value, ...]
    when: str = ""
    sometimes: bool = False


def drafted_parameters(
    rows: Sequence[RunRow],
    columns: Mapping[str, str],
    mapped: Collection[str],
    nested: Collection[str],
) -> tuple[list[Drafted], dict[str, str]]:
    """The parameters among the columns, which are by parameter, and for the others the reason why
    they are none. The caller has `mapped` some: the names of these columns do not count. Those
    `nested` in `config` all are parameters, as rows with one that is not would be rejected."""
    params: list[Drafted] = []
    others: dict[str, str] = {}
    for name, column in columns.items():
        reason = _no_choice(rows, name) or ("" if name in mapped else _no_name(name, column))
        if reason and name not in nested:
            others[name] = reason
        else:
            params.append(_typed(name, _values(rows, name)))
    configs = [row.config for row in rows]
    steady = [p for p in params if all(p.name in config for config in configs)]
    return [p if p in steady else _conditional(p, steady, configs) for p in params], others


def _no_name(name: str, column: str) -> str:
    """Reason why a column is no parameter by its name alone; empty if it may be one."""
    kind = "a repeat" if numbers_repeats(column) else "a session or machine"
    if numbers_repeats(column) or names_session(column):
        apart = "" if numbers_repeats(column) else f"--map instance={column} keeps machines apart, "
        return f"of {kind} by its name; {apart}--map config.{name}={column} makes it a parameter"
    return ""


def _values(rows: Sequence[RunRow], name: str) -> list[Value]:
    """The distinct values, in the order of the rows."""
    return list(dict.fromkeys(row.config[name] for row in rows if name in row.config))


def _no_choice(rows: Sequence[RunRow], name: str) -> str:
    """Reason why a column is no parameter; empty if it may be one."""
    values = _values(rows, name)
    if not values:
        return "empty in every row"
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    fractions = [v for v in numbers if isinstance(v, float)]
    if len(numbers) > _MOST_CHOICES and len(numbers) * _ROWS_PER_VALUE > len(rows):
        return f"{len(numbers):,} different numbers: a result, or a fact of the matrix"
    if len(fractions) > _MOST_FRACTIONS and len(fractions) * _ROWS_PER_FRACTION > len(rows):
        return f"{len(fractions):,} different fractions: a result, or a fact of the matrix"
    matrices = {row.matrix.name for row in rows}
    if len(matrices) >= _MATRICES and len(numbers) * 1.2 > len(rows):
        return "another number in nearly every row: a result, or a fact of the matrix"
    if len(values) > MAX_VALUES:
        return f"{len(values):,} different values"
    if any(isinstance(v, str) and len(v) > MAX_TEXT for v in values):
        return f"texts of more than {MAX_TEXT} characters"
    if len(values) == 1 and all(name in row.config for row in rows):
        return f"always {values[0]}"
    by_matrix: dict[str, set[Value | None]] = {}
    for row in rows:
        if name in row.config or len(values) == 1:  # an empty cell is the other value of a flag
            by_matrix.setdefault(row.matrix.name, set()).add(row.config.get(name))
    alone = all(len(values_of_one) == 1 for values_of_one in by_matrix.values())
    if alone and len(by_matrix) >= _MATRICES and len(rows) > 2 * len(by_matrix):
        return "the same in all rows of a matrix: a fact of the matrix"
    return ""


def _typed(name: str, values: list[Value]) -> Drafted:
    if all(isinstance(v, bool) for v in values):
        return Drafted(name, "bool", (0, 1))
    values = [int(v) if isinstance(v, bool) else v for v in values]
    if all(isinstance(v, tuple) for v in values):
        items = {frozenset(v) for v in values if isinstance(v, tuple)}
        if len(items) == 1 and len(values[0]) <= _MOST_PERMUTED:  # type: ignore[arg-type]
            return Drafted(name, "permutation", tuple(sorted(next(iter(items)))))
    if any(isinstance(v, tuple) for v in values):
        values = [" ".join(v) if isinstance(v, tuple) else v for v in values]
    whole = [v for v in values if isinstance(v, int)]
    symbols = [v for v in values if v in SYMBOLS]
    if set(whole) == {0, 1} and len(values) == 2:
        return Drafted(name, "bool", (0, 1))
    if len(whole) + len(symbols) == len(values) and whole:
        return Drafted(name, "int", (*sorted(whole), *symbols))
    numbers = sorted(v for v in values if isinstance(v, (int, float)))
    return Drafted(name, "choice", (*numbers, *(v for v in values if isinstance(v, str))))


def _conditional(param: Drafted, steady: Sequence[Drafted], configs: Configs) -> Drafted:
    """The parameter with the simplest condition over one or two others that explains in which rows
    it is set."""
    there = [config for config in configs if param.name in config]
    gone = [config for config in configs if param.name not in config]
    conditions = [text for one in steady if (text := _condition(one, there, gone))]
    if not conditions:
        conditions = [
            f"{first} and {second}"
            for one, other in combinations(steady, 2)
            if (first := _narrow(one, there)) and (second := _narrow(other, there))
            if not any(_compatible(one, there, c) and _compatible(other, there, c) for c in gone)
        ]
    best = min(conditions, key=len, default="")
    return replace(param, when=best, sometimes=not best)


def _condition(one: Drafted, there: Configs, gone: Configs) -> str:
    """`flow == 'outer'` if the values of `one` decide whether a parameter is set; else empty."""
    with_it = {_plain(config[one.name]) for config in there}
    without = {_plain(config[one.name]) for config in gone}
    if with_it & without or not _writable(one):
        return ""
    if len(with_it) > 1 and len(without) == 1:
        return f"{one.name} != {_quoted(next(iter(without)))}"
    return _narrow(one, there)


def _narrow(one: Drafted, there: Configs) -> str:
    """The condition that `one` has a value of these rows; empty if these have all."""
    values = {_plain(config[one.name]) for config in there}
    if len(values) == len(one.values) or not _writable(one):
        return ""
    if len(values) == 1:
        return f"{one.name} == {_quoted(next(iter(values)))}"
    return f"{one.name} in ({', '.join(sorted(map(_quoted, values)))})"


def _compatible(one: Drafted, there: Configs, config: Mapping[str, Value]) -> bool:
    return config[one.name] in {other[one.name] for other in there}


def _plain(value: Value) -> Any:
    return int(value) if isinstance(value, bool) else value


def _writable(one: Drafted) -> bool:
    """True if an expression can name each of its values."""
    texts = [value for value in one.values if isinstance(value, str)]
    return one.kind != "permutation" and not any(set(text) & set("'\\\n\r") for text in texts)


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def rare_values(params: Sequence[Drafted], rows: Sequence[RunRow]) -> list[str]:
    """Values that occur in one row where the others of their parameter occur often: perhaps typing
    errors, that a platform file would make legal."""
    rare = []
    for name in (p.name for p in params if p.kind in ("int", "choice")):
        seen = Counter(row.config[name] for row in rows if name in row.config)
        if statistics.median(seen.values()) >= _OFTEN:
            rare += [f"{name}: {value} occurs in one row" for value, n in seen.items() if n == 1]
    return rare[:_MOST_SUGGESTED]


def unseen_values(params: Sequence[Drafted], rows: Sequence[RunRow]) -> list[str]:
    """Values of choices that no run of an operation has, in a log of several: they may be of
    another one's programs."""
    by_kernel: dict[str, list[RunRow]] = {}
    for row in rows:
        by_kernel.setdefault(row.op.name, []).append(row)
    unseen = [
        f"{param.name}: {value} in no run of {kernel}: if it is none of its choices, give {kernel} "
        "a [[space]] of its own"
        for param in params
        if param.kind == "choice"
        for kernel, ran in by_kernel.items()
        for value in param.values
        if value not in _values(ran, param.name)
    ]
    return unseen[:_MOST_SUGGESTED]


def suggested_constraints(params: Sequence[Drafted], rows: Sequence[RunRow]) -> list[str]:
    """Orders and limits of products that hold in every successful run, and that are broken by value
    pairs without a run."""
    numeric = [p for p in params if p.kind == "int" and not p.when and not p.sometimes]
    ran = [row.config for row in rows if row.measurement.ok]
    constraints: list[str] = []
    for one, other in combinations(numeric, 2):
        seen = {(config[one.name], config[other.name]) for config in ran}
        pairs = [(a, b) for a, b in seen if isinstance(a, int) and isinstance(b, int)]
        every = {(a, b) for a in _ints(one) for b in _ints(other)}
        unseen = every - set(pairs)
        if not unseen or not pairs:
            continue
        most = max(a * b for a, b in pairs)
        if all(a <= b for a, b in pairs) and all(a > b for a, b in unseen):
            constraints.append(f"{one.name} <= {other.name}")
        elif all(a >= b for a, b in pairs) and all(a < b for a, b in unseen):
            constraints.append(f"{one.name} >= {other.name}")
        elif all(a * b > most for a, b in unseen):
            constraints.append(f"{one.name} * {other.name} <= {most}")
    return constraints[:_MOST_SUGGESTED]


def _ints(param: Drafted) -> list[int]:
    return [v for v in param.values if isinstance(v, int)]


#: Rows that a draft is made from.
_MOST_ROWS = 200_000
#: Candidate kernels of a log without an operation.
_KERNELS = [op.name for kind in kinds() if kind.sparse for op in kind.operations]
#: A platform that no column resembles, used to propose the roles of a log without a platform.
_BLANK = """
name = "blank"
version = "1"
title = "Nothing is known about it"
[[space]]
kernels = KERNELS
[space.params]
qzjx = { type = "permutation", values = ["qzjx1", "qzjx2"] }
[space.default]
qzjx = ["qzjx1", "qzjx2"]
"""


@dataclass(frozen=True, slots=True)
class LogRows:
    """Content of a log: the readable `rows`, with a configuration of all its other columns; the
    number of `rejected` ones, with the first `reason`. `columns` are the columns' names by
    parameter, `log` the table by which it was read, `nested` the parameters that are keys of
    `config`."""

    rows: Sequence[RunRow]
    rejected: int
    reason: str
    columns: Mapping[str, str]
    log: LogTable
    nested: Sequence[str] = ()


def read_log_rows(path: Path, options: ReadOptions, *, reader: str) -> LogRows:
    """The first rows of a log.

    Raises: ReaderError for a file without a column for matrix or time, or without a readable row;
    UsageError if operation or unit is unknown, or a column of matrix sizes has other values.
    """
    name = reader or reader_of(path)
    plug = plugins.load("reader", name)()
    if name in ("csv", "jsonl"):
        options = _as_proposed(path, name, options)
    else:
        options = replace(options, log=LogTable(unit=options.unit))
    rows: list[RunRow] = []
    rejected: list[Reject] = []
    for row in islice(read_rows(plug, path, options), _MOST_ROWS):
        (rejected if isinstance(row, Reject) else rows).append(row)  # type: ignore[arg-type]
    if not rows:
        first = rejected[0] if rejected else None
        raise ReaderError(
            first.reason if first else "it has no rows",
            where=str(path),
            line=first.line if first else None,
        )
    _refuse_sizes_that_change(path, rows)
    columns = {n.removeprefix("config."): c for n, c in options.columns.items() if "." in n}
    nested = _nested(path, rows, columns)
    columns |= dict(zip(nested, nested, strict=True))
    reason = f"line {rejected[0].line}: {rejected[0].reason}" if rejected else ""
    return LogRows(rows, len(rejected), reason, columns, options.log, nested)


def _nested(path: Path, rows: Sequence[RunRow], columns: Mapping[str, str]) -> list[str]:
    """Keys of the object `config` of JSON lines, or all parameters of a format without columns.
    Raises: UsageError for one that no parameter can be named."""
    names = [
        n for n in dict.fromkeys(name for row in rows for name in row.config) if n not in columns
    ]
    for name in names:
        if (legal := _parameter(name, {})) != name:
            raise UsageError(
                f"{path}: a configuration has {name[:80]!r}, which is no name of a parameter",
                hint=f"rename it in the log, to {legal}",
            )
    return names


def _as_proposed(path: Path, reader: str, options: ReadOptions) -> ReadOptions:
    """The options with the proposed roles, the unit, and every other column as a parameter.

    Raises: UsageError naming a fact that cannot be inferred from the log.
    """
    stated = options.op.name if options.op is not None else options.op_name
    kernels = [stated] if stated else _KERNELS
    blank = parse_platform(_BLANK.replace("KERNELS", json.dumps(kernels)))
    cycles = LogTable(unit=options.unit, clock_ghz=1.0, counts_cycles=options.unit == "cycles")
    proposal = propose(path, reader, blank, replace(completed(options, blank), log=cycles))
    # None: every column has a role, and `config` of JSON lines holds the parameters.
    log = proposal.log if proposal is not None else cycles
    lacking = [line for line in proposal.open if "qzjx" not in line] if proposal else []
    if lacking:
        raise UsageError(f"{path}: {lacking[0]}")
    # A time column in another unit than cycles is stored in seconds.
    in_cycles = any(role.endswith("_cycles") for role in log.columns)
    unit = log.unit or ("cycles" if in_cycles else "")
    # The file holds the caller's map too, so that `index` needs none.
    mapped = {role: c for role, c in options.columns.items() if not role.startswith("config.")}
    columns = {**log.columns, **mapped}
    log = replace(log, columns=columns, unit=unit, counts_cycles=unit == "cycles", instance="")
    taken: dict[str, str] = {}
    for column in proposal.unused if proposal is not None else ():
        if column not in options.columns.values():
            taken[_parameter(column, taken)] = column
    columns = {**{f"config.{name}": column for name, column in taken.items()}, **options.columns}
    return replace(options, columns=columns, params=tuple(taken), log=log)


def _refuse_sizes_that_change(path: Path, rows: Sequence[RunRow]) -> None:
    """Raises: UsageError if a column named like a size changes within a matrix."""
    first: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for role, words in (("m", "rows"), ("n", "columns"), ("nnz", "non-zeros")):
            if (size := getattr(row.matrix, role)) == -1:
                continue
            earlier, line = first.setdefault((row.matrix.name, role), (size, row.line))
            if size != earlier:
                raise UsageError(
                    f"{path}: line {row.line}: matrix {row.matrix.name[:80]} has {size} {words}, "
                    f"and {earlier} at line {line}",
                    hint="if that column is a parameter: --map config.NAME=COLUMN",
                )


def _parameter(column: str, taken: Mapping[str, str]) -> str:
    """A legal parameter name for a column: `Tile rows` becomes `Tile_rows`."""
    name = re.sub(r"\W+", "_", column, flags=re.ASCII).strip("_")[:60] or "column"
    name = f"p_{name}" if name[0].isdigit() else name
    if keyword.iskeyword(name) or name in FUNCTIONS or name in SYMBOLS:
        name += "_"
    while name in taken:
        name += "_"
    return name


def operations(rows: Sequence[RunRow]) -> list[Op]:
    """The operations that ran, the most frequent first."""
    return [op for op, _ in Counter(row.op for row in rows).most_common()]


def configs_of(rows: Sequence[RunRow], names: Sequence[str]) -> list[Config]:
    """The configurations of rows, of these parameters alone."""
    return [Config({n: row.config[n] for n in names if n in row.config}) for row in rows]
