"""COGNATE's rows of SPADE measurements, mapped to the common loop nest.

`name,i_split,j_split,k_split,loop_1,...,loop_7,barrier,bypass,reorder,time` with that header: the
training data of its authors (COGNATE paper, appendix E), the other half of the rows read by
`indexer.readers.cognate`. The paper states neither the operation nor the unit of the time, so both
must be given. The loops add nothing to the other columns: they are checked against the mapping of
Section 3.2, and the row becomes SPADE's own parameters. A `j_split` that is no panel of SPADE is
the number of the matrix's columns, and must be the same in all rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from indexer.readers.base.row import ReadOptions, Reject, RunRow, integer
from indexer.readers.base.table import Table
from indexer.readers.cognate import named_rows

_LOOPS = 7
_OWN = ("barrier", "bypass", "reorder")
_COLUMNS = (
    "name",
    "i_split",
    "j_split",
    "k_split",
    *(f"loop_{n}" for n in range(1, _LOOPS + 1)),
    *_OWN,
    "time",
)
#: The order of i1 i2 j1 j2 k1 k2 k3, numbered 1 to 7, without and with a barrier.
_ORDERS = ((6, 7, 2, 4, 1, 3, 5), (6, 7, 4, 2, 1, 3, 5))
_ROW_PANELS = (4, 32, 256, 2048)
_COLUMN_PANELS = (1024, 16384, 65536)
_SPLITS = (32, 256)
_ALL_COLUMNS = "NUM_MATRIX_COLS"


class CognateMappedReader:
    """Reader that converts configurations of the common loop nest to SPADE's."""

    name = "cognate-mapped"
    platform = "spade"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.replace(b" ", b"").startswith(",".join(_COLUMNS).encode())

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        places = table.need(_COLUMNS, self.name)
        columns: dict[str, int] = {}
        yield from named_rows(
            table, places, options, lambda name, cells: _config(name, cells, columns)
        )


def _config(name: str, cells: list[str], columns: dict[str, int]) -> dict[str, Any]:
    """SPADE's parameters; `columns` caches the matrices' numbers of columns from earlier rows."""
    i_split, j_split, k_split = cells[:3]
    loops, own = cells[3 : 3 + _LOOPS], cells[3 + _LOOPS :]
    config: dict[str, Any] = {
        "row_panels": _one_of("i_split", i_split, _ROW_PANELS),
        "column_panels": _panel(name, j_split, columns),
        "split": _one_of("k_split", k_split, _SPLITS),
    }
    config |= {part: _one_of(part, cell, (0, 1)) for part, cell in zip(_OWN, own, strict=True)}
    order = tuple(integer(cell) for cell in loops)
    if order != _ORDERS[config["barrier"]]:
        meant = ",".join(map(str, _ORDERS[config["barrier"]]))
        raise ReaderError(
            f"loops {','.join(map(str, order))}: with barrier {config['barrier']} they are {meant}"
        )
    return config


def _one_of(column: str, cell: str, legal: tuple[int, ...]) -> int:
    value = integer(cell)
    if value not in legal:
        raise ReaderError(f"{column} {value}: legal are {', '.join(map(str, legal))}")
    return value


def _panel(name: str, cell: str, columns: dict[str, int]) -> int | str:
    if cell == _ALL_COLUMNS:
        return cell
    value = integer(cell)
    if value in _COLUMN_PANELS:
        return value
    if value < 1 or columns.setdefault(name, value) != value:
        raise ReaderError(
            f"j_split {value} is no panel of SPADE, nor the number of columns of matrix {name!r} "
            "in rows above"
        )
    return _ALL_COLUMNS


PLUGIN = CognateMappedReader
