"""LiteForm's table of autotuned SparseTIR `hyb` formats: the winner per matrix and width only.

`best_num_partitions` and `best_max_bucket_width` are the configuration, `exe_time_hyb(ms)` its
time. The tuning's seconds and the naive kernel's time (another program, not a configuration) are
kept in the measurement's context. Where the table says `inf` for both, no configuration ran: the
row becomes a `crash` of the configuration it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    cost,
    count,
    integer,
    number,
    seconds,
)
from indexer.readers.base.table import Table

_SIZES = ("num_rows", "num_cols", "nnz")
_TIME, _NAIVE, _TUNING = "exe_time_hyb(ms)", "exe_time_naive(ms)", "autotuning_time(s)"
_COLUMNS = ("name", *_SIZES, "K", "best_num_partitions", "best_max_bucket_width", _TIME)
_FEATURES = tuple(
    f"{how}_nnz_{what}"
    for what in ("per_row", "density_per_row")
    for how in ("avg", "min", "max", "std_dev")
)


class LiteformReader:
    """Reader of the winners; one row is one run, and losing configurations are not recorded."""

    name = "liteform"
    platform = "gpu-hyb"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        names = set(head.split(b"\n", 1)[0].strip().split(b","))
        return {c.encode() for c in _COLUMNS} <= names

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        table.need(_COLUMNS, self.name)
        yield from table.runs(
            lambda row, line: _row(dict(zip(table.names, row, strict=True)), line, options.instance)
        )


def _row(cells: Mapping[str, str], line: int, instance: str) -> RunRow:
    name, width = cells["name"], integer(cells["K"])
    if not name or not 1 <= width <= 1 << 20:
        raise ReaderError("no matrix name, or a width outside 1..2^20")
    features = {c: number(cells[c]) for c in _FEATURES if cells.get(c)}
    m, n, nnz = (count(cells[c]) for c in _SIZES)
    matrix = MatrixRef(name, m, n, nnz, name, features)
    config = Config(
        {
            "num_partitions": integer(cells["best_num_partitions"]),
            "max_bucket_width": integer(cells["best_max_bucket_width"]),
        }
    )
    return RunRow(matrix, Op("spmm", width), config, _measured(cells), line, instance)


def _measured(cells: Mapping[str, str]) -> Measurement:
    context: dict[str, float | str] = {}
    tuning = cost(cells.get(_TUNING))
    if tuning is not None:
        context["autotune_s"] = tuning
    naive = cells.get(_NAIVE, "")
    if naive not in ("", "inf"):
        context["naive_s"] = seconds(naive, 1e3)
    if cells[_TIME] == "inf":
        return Measurement("crash", (), "imported", error="no time (inf)", context=context)
    return Measurement("ok", (seconds(cells[_TIME], 1e3),), "imported", context=context)


PLUGIN = LiteformReader
