"""COGNATE's rows of SPADE measurements (COGNATE paper, appendix E), in SPADE's own parameters and
mapped to the common loop nest. The paper states neither the operation nor the unit of the time, so
both must be given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.lines import wrong_file
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

_FLAGS = ("barrier", "bypass", "reorder")
_SPLIT = {1: 32, 32: 32, 256: 256}
_LOOPS = 7
#: The order of i1 i2 j1 j2 k1 k2 k3, numbered 1 to 7, without and with a barrier.
_ORDERS = ((6, 7, 2, 4, 1, 3, 5), (6, 7, 4, 2, 1, 3, 5))
_ROW_PANELS = (4, 32, 256, 2048)
_COLUMN_PANELS = (1024, 16384, 65536)
_SPLITS = (32, 256)
_ALL_COLUMNS = "NUM_MATRIX_COLS"


class CognateReader:
    """`name,row_panels,column_panels,split,barrier,bypass,reorder,time`, with or without that
    header. `split` is 32 or 256 (the paper's section 4.1) while its example row holds 1, which the
    example's own mapping turns into 32: 1 is read as 32. Nothing says how 256 would be coded, so
    any other value is rejected. `NUM_MATRIX_COLS` is kept as that symbol where a file has it for
    `column_panels`."""

    name = "cognate"
    platform = "spade"
    generic = False
    columns: tuple[str, ...] = ("name", "row_panels", "column_panels", "split", *_FLAGS, "time")

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.replace(b" ", b"").startswith(",".join(self.columns).encode())

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = self._table(path)
        places = table.need(self.columns, self.name)
        self._check_first(table)
        op = need_op(options, path)
        per_second = options.per_second(where=str(path))
        matrices: dict[str, MatrixRef] = {}
        widths: dict[str, int] = {}

        def run(row: list[str], line: int) -> RunRow:
            name, *cells, time = (row[i].strip() for i in places)
            if not name:
                raise ReaderError("no matrix name")
            config = self._config(name, cells, widths)
            measurement = Measurement("ok", (seconds(time, per_second),), "imported")
            matrix = matrices.setdefault(name, MatrixRef(name, group=name))
            return RunRow(matrix, op, config, measurement, line, options.instance)

        yield from table.runs(run)

    def _table(self, path: Path) -> Table:
        return Table(path, self.name, header=self.columns)

    def _check_first(self, table: Table) -> None:
        """Check that a file without header begins with a row of this shape."""
        first, width = table.first, len(self.columns)
        if first is None:
            return
        if len(first) != width:
            raise wrong_file(table.path, self.name, f"{len(first)} columns instead of {width}")
        try:
            self._config("", first[1:-1], {})
        except ReaderError as error:
            raise wrong_file(table.path, self.name, error.reason) from None

    def _config(self, name: str, cells: list[str], widths: dict[str, int]) -> dict[str, Any]:
        """SPADE's parameters; `widths` are the matrices' numbers of columns in earlier rows."""
        config: dict[str, Any] = {}
        for param, cell in zip(self.columns[1:-1], cells, strict=True):
            symbol = param == "column_panels" and cell.strip() == _ALL_COLUMNS
            config[param] = cell.strip() if symbol else integer(cell)
        split = config["split"]
        if split not in _SPLIT:
            raise ReaderError(f"split {split}: legal are 1 (read as 32), 32 and 256")
        config["split"] = _SPLIT[split]
        for flag in _FLAGS:
            if config[flag] not in (0, 1):
                raise ReaderError(f"{flag} {config[flag]}: legal are 0 and 1")
        return config


class CognateMappedReader(CognateReader):
    """`name,i_split,j_split,k_split,loop_1,...,loop_7,barrier,bypass,reorder,time` with that
    header: the training data of the paper's authors. The loops add nothing to the other columns:
    they are checked against the mapping of Section 3.2, and the row becomes SPADE's own parameters.
    A `j_split` that is no panel of SPADE is the number of the matrix's columns, and must be the
    same in all rows of a matrix."""

    name = "cognate-mapped"
    columns = (
        *("name", "i_split", "j_split", "k_split"),
        *(f"loop_{n}" for n in range(1, _LOOPS + 1)),
        *(*_FLAGS, "time"),
    )

    def _table(self, path: Path) -> Table:
        return Table(path, self.name)

    def _config(self, name: str, cells: list[str], widths: dict[str, int]) -> dict[str, Any]:
        i_split, j_split, k_split = cells[:3]
        loops, flags = cells[3 : 3 + _LOOPS], cells[3 + _LOOPS :]
        config: dict[str, Any] = {
            "row_panels": _one_of("i_split", i_split, _ROW_PANELS),
            "column_panels": _panel(name, j_split, widths),
            "split": _one_of("k_split", k_split, _SPLITS),
        }
        config |= {
            flag: _one_of(flag, cell, (0, 1)) for flag, cell in zip(_FLAGS, flags, strict=True)
        }
        order = tuple(map(integer, loops))
        meant = _ORDERS[config["barrier"]]
        if order != meant:
            shown, wanted = (",".join(map(str, loops)) for loops in (order, meant))
            raise ReaderError(f"loops {shown}: with barrier {config['barrier']} they are {wanted}")
        return config


def _one_of(column: str, cell: str, legal: tuple[int, ...]) -> int:
    value = integer(cell)
    if value not in legal:
        raise ReaderError(f"{column} {value}: legal are {', '.join(map(str, legal))}")
    return value


def _panel(name: str, cell: str, widths: dict[str, int]) -> int | str:
    if cell == _ALL_COLUMNS:
        return cell
    value = integer(cell)
    if value in _COLUMN_PANELS:
        return value
    if value < 1 or widths.setdefault(name, value) != value:
        raise ReaderError(
            f"j_split {value} is no panel of SPADE, nor the number of columns of matrix {name!r} "
            "in rows above"
        )
    return _ALL_COLUMNS


PLUGIN = CognateReader
