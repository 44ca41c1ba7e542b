"""The rows of a log of which no platform is known: its roles are proposed, its other columns are
taken for parameters until their values say otherwise."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.kinds import kinds
from embeddb.platforms.log_table import LogTable
from embeddb.platforms.platform import parse_platform
from embeddb.platforms.space.expression import FUNCTIONS
from embeddb.platforms.space.rules import SYMBOLS
from indexer.ingest import completed, reader_of
from indexer.readers.base.proposal import propose
from indexer.readers.base.reading import read_rows
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow

#: Rows that a draft is made from.
_MOST_ROWS = 200_000
#: What a log is of that does not say it, as far as a draft can help.
_KERNELS = [op.name for kind in kinds() if kind.sparse for op in kind.operations]
#: A platform that no column is like: what its log needs beside parameters is proposed by it.
_BLANK = """
name = "blank"
version = "1"
title = "Nothing is known of it"
[[space]]
kernels = KERNELS
[space.params]
qzjx = { type = "permutation", values = ["qzjx1", "qzjx2"] }
[space.default]
qzjx = ["qzjx1", "qzjx2"]
"""


@dataclass(frozen=True, slots=True)
class LogRows:
    """What a log holds: `rows` that can be read, with a configuration of all its other columns;
    `rejected` others, with the first `reason`. `columns` are the columns' names by parameter, `log`
    the table by which it was read."""

    rows: Sequence[RunRow]
    rejected: int
    reason: str
    columns: Mapping[str, str]
    log: LogTable


def read_log_rows(path: Path, options: ReadOptions, *, reader: str = "") -> LogRows:
    """The first rows of a CSV or JSONL log.

    Raises: ReaderError for a file of another format, without a column for matrix or time, or of
    which no row can be read; UsageError where operation or unit is not known, or a column of
    sizes of matrices holds something else.
    """
    name = reader or reader_of(path)
    if name not in ("csv", "jsonl") or path.is_dir():
        raise UsageError(
            f"{path}: read as {name}, which belongs to a platform of its own or says it",
            hint="a draft is made from a table: CSV, or JSON lines",
        )
    options = _as_proposed(path, name, options)
    plug = plugins.load("reader", name)()
    rows: list[RunRow] = []
    rejected: list[Reject] = []
    for row in islice(read_rows(plug, path, options), _MOST_ROWS):
        (rejected if isinstance(row, Reject) else rows).append(row)  # type: ignore[arg-type]
    if not rows:
        first = rejected[0] if rejected else None
        raise ReaderError(
            first.reason if first else "it holds no rows",
            where=str(path),
            line=first.line if first else None,
        )
    _refuse_sizes_that_change(path, rows)
    columns = {n.removeprefix("config."): c for n, c in options.columns.items() if "." in n}
    reason = f"line {rejected[0].line}: {rejected[0].reason}" if rejected else ""
    return LogRows(rows, len(rejected), reason, columns, options.log)


def _as_proposed(path: Path, reader: str, options: ReadOptions) -> ReadOptions:
    """The options with the proposed roles, the unit, and every other column as a parameter.

    Raises: UsageError naming what nothing in the log says.
    """
    kernels = [options.op.kernel] if options.op is not None else _KERNELS
    blank = parse_platform(_BLANK.replace("KERNELS", json.dumps(kernels)))
    cycles = LogTable(unit=options.unit, clock_ghz=1.0, counts_cycles=options.unit == "cycles")
    proposal = propose(path, reader, blank, replace(completed(options, blank), log=cycles))
    assert proposal is not None  # the blank platform's parameter is in no log
    log = proposal.log
    lacking = [line for line in proposal.open if "qzjx" not in line]
    if lacking:
        raise UsageError(f"{path}: {lacking[0]}")
    unit = log.unit or _stated_unit(log)
    log = replace(log, unit=unit, counts_cycles=unit == "cycles", instance="")
    taken: dict[str, str] = {}
    for column in proposal.unused:
        if column not in options.columns.values():
            taken[_parameter(column, taken)] = column
    columns = {**{f"config.{name}": column for name, column in taken.items()}, **options.columns}
    return replace(options, columns=columns, params=tuple(taken), log=log)


def _refuse_sizes_that_change(path: Path, rows: Sequence[RunRow]) -> None:
    """Raises: UsageError where a column whose name is one of a size changes within a matrix."""
    first: dict[str, MatrixRef] = {}
    for row in rows:
        known = first.setdefault(row.matrix.name, row.matrix)
        for role, words in (("m", "rows"), ("n", "columns"), ("nnz", "non-zeros")):
            sizes = getattr(known, role), getattr(row.matrix, role)
            if sizes[0] != sizes[1]:
                raise UsageError(
                    f"{path}: line {row.line}: matrix {known.name[:80]} has {sizes[1]} {words}, "
                    f"and {sizes[0]} at line {rows[0].line} or later",
                    hint="if that column is a parameter: --map config.NAME=COLUMN",
                )


def _stated_unit(log: LogTable) -> str:
    """`cycles` where the column of the times is one of cycles; others are stored in seconds."""
    return "cycles" if any(role.endswith("_cycles") for role in log.columns) else ""


def _parameter(column: str, taken: Mapping[str, str]) -> str:
    """A name that a parameter can have for a column: `Tile rows` is `Tile_rows`."""
    name = re.sub(r"\W+", "_", column, flags=re.ASCII).strip("_")[:60] or "column"
    name = f"p_{name}" if name[0].isdigit() else name
    if keyword.iskeyword(name) or name in FUNCTIONS or name in SYMBOLS:
        name += "_"
    while name in taken:
        name += "_"
    return name


def operations(rows: Sequence[RunRow]) -> list[Op]:
    """The operations that ran, the most frequent first."""
    counts: dict[Op, int] = {}
    for row in rows:
        counts[row.op] = counts.get(row.op, 0) + 1
    return sorted(counts, key=lambda op: -counts[op])


def configs_of(rows: Sequence[RunRow], names: Sequence[str]) -> list[Config]:
    """The configurations of rows, of these parameters alone."""
    return [Config({n: row.config[n] for n in names if n in row.config}) for row in rows]
