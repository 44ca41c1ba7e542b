"""The two tables of "LCM" (vectorised sparse codelets) from a 20-thread Intel node, in seconds.

SpMM: `Matrix,nRows,nCols,NNZ,mTileSize,nTileSize,bCols,…,SpMM DDT,SpMM DDT Analysis`; the time is
`SpMM DDT`, its inspection is kept as the conversion cost. SpMV: `…, size_cutoff, col_threshold,…`
with the time in `SpMV DDT Parallel Executor`. The other timing columns do not depend on the
configuration; they are kept in the measurement's context. The tables name no value type, so runs
are filed as f32 unless `options.op` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    cost,
    count,
    integer,
    seconds,
)
from indexer.readers.base.table import Table

_MATRIX = ("Matrix", "nRows", "nCols", "NNZ")
_SPMM = ("mTileSize", "nTileSize")
_SPMV = ("size_cutoff", "col_threshold")
_SPMV_TIMES = ("SpMV DDT Parallel Executor", "SpMVDDT Parallel Executor")


class LcmReader:
    """Reader of both tables, distinguished by their headers."""

    name = "lcm"
    platform = "lcm-tiles"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0]
        return first.startswith(b"Matrix,nRows,nCols,NNZ,") and (
            b"SpMM DDT" in first or b"SpMV DDT" in first
        )

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        matrix_at = table.need(_MATRIX, self.name)
        spmm = "SpMM DDT" in table.at
        params = _SPMM if spmm else _SPMV
        config_at = table.need(params, self.name)
        time = table.at["SpMM DDT"] if spmm else _spmv_time(table, path)
        analysis = table.at.get("SpMM DDT Analysis")
        extra = _references(table, time)
        matrices: dict[tuple[str, ...], MatrixRef] = {}

        def run(row: list[str], line: int) -> RunRow:
            key = tuple(row[i] for i in matrix_at)
            if key not in matrices:
                matrices[key] = _matrix(key)
            values = [integer(row[i]) for i in config_at]
            config = Config(dict(zip(params, values, strict=True)))
            measurement = Measurement(
                "ok",
                (seconds(row[time]),),
                "imported",
                cost(row[analysis]) if analysis is not None else None,
                context={name: seconds(row[i]) for name, i in extra.items() if row[i]},
            )
            op = options.ran or _op(table, row, spmm=spmm)
            return RunRow(matrices[key], op, config, measurement, line, options.instance)

        yield from table.runs(run)


def _spmv_time(table: Table, path: Path) -> int:
    for name in _SPMV_TIMES:
        if name in table.at:
            return table.at[name]
    raise wrong_file(path, "lcm", f"no column {_SPMV_TIMES[0]!r}")


def _op(table: Table, row: list[str], *, spmm: bool) -> Op:
    if not spmm:
        return Op("spmv")
    width = integer(row[table.need(["bCols"], "lcm")[0]])
    if not 1 <= width <= 1 << 20:
        raise ReaderError(f"bCols {width} is no number of dense columns")
    return Op("spmm", width)


def _references(table: Table, time: int) -> dict[str, int]:
    """Context names (`spmm_mkl_s`) of the timing columns that are not the result."""
    columns = {}
    for name, place in table.at.items():
        if name.startswith(("SpMM ", "SpMV")) and place != time and "Analysis" not in name:
            columns[re.sub(r"\W+", "_", name.lower()) + "_s"] = place
    return columns


def _matrix(key: tuple[str, ...]) -> MatrixRef:
    name = PurePosixPath(key[0]).name.removesuffix(".mtx")
    if not name:
        raise ReaderError("no matrix name")
    m, n, nnz = (count(size) for size in key[1:])
    return MatrixRef(name, m, n, nnz, name)


PLUGIN = LcmReader
