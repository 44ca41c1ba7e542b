"""COGNATE's rows of SPADE measurements.

`name,row_panels,column_panels,split,barrier,bypass,reorder,time`, with or without that header
(COGNATE paper, appendix E). The paper states neither the operation nor the unit of the time, so
both must be given. `split` is 32 or 256 (its section 4.1) while the example row holds 1, which the
example's own mapping turns into 32: 1 is read as 32. Nothing says how 256 would be coded, so any
other value is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    integer,
    need_op,
    seconds,
)
from indexer.readers.base.table import Table

_COLUMNS = (
    "name",
    "row_panels",
    "column_panels",
    "split",
    "barrier",
    "bypass",
    "reorder",
    "time",
)
_SPLIT = {1: 32, 32: 32, 256: 256}


class CognateReader:
    """`NUM_MATRIX_COLS` is kept as that symbol where a file has it for `column_panels`."""

    name = "cognate"
    platform = "spade"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.replace(b" ", b"").startswith(",".join(_COLUMNS).encode())

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name, header=_COLUMNS)
        places = table.need(_COLUMNS, self.name)
        if len(table.names) == len(_COLUMNS) and table.first is not None:
            _check_bare(path, table.first)
        yield from named_rows(table, places, options, lambda _, cells: _config(cells))


def named_rows(
    table: Table,
    places: Sequence[int],
    options: ReadOptions,
    config_of: Callable[[str, list[str]], dict[str, Any]],
) -> Iterator[RunRow | Reject]:
    """Rows of a table whose `places` are a matrix's name, its configuration's cells and its time;
    `config_of` converts name and cells to a configuration, or raises ReaderError."""
    op = need_op(options, table.path)
    per_second = options.per_second(where=str(table.path))
    matrices: dict[str, MatrixRef] = {}

    def run(row: list[str], line: int) -> RunRow:
        name, *cells, time = (row[i].strip() for i in places)
        if not name:
            raise ReaderError("no matrix name")
        config = config_of(name, cells)
        measurement = Measurement("ok", (seconds(time, per_second),), "imported")
        matrix = matrices.setdefault(name, MatrixRef(name, group=name))
        return RunRow(matrix, op, config, measurement, line, options.instance)

    yield from table.runs(run)


def _check_bare(path: Path, first: list[str]) -> None:
    """Check that a file without header begins with a row of this shape."""
    if len(first) != len(_COLUMNS):
        raise wrong_file(path, "cognate", f"{len(first)} columns instead of {len(_COLUMNS)}")
    try:
        _config(first[1:-1])
    except ReaderError as error:
        raise wrong_file(path, "cognate", error.reason) from None


def _config(cells: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, cell in zip(_COLUMNS[1:-1], cells, strict=True):
        symbol = name == "column_panels" and cell.strip() == "NUM_MATRIX_COLS"
        config[name] = cell.strip() if symbol else integer(cell)
    split = config["split"]
    if split not in _SPLIT:
        raise ReaderError(f"split {split}: legal are 1 (read as 32), 32 and 256")
    config["split"] = _SPLIT[split]
    for name in ("barrier", "bypass", "reorder"):
        if config[name] not in (0, 1):
            raise ReaderError(f"{name} {config[name]}: legal are 0 and 1")
    return config


PLUGIN = CognateReader
