"""RA-SpMM's sweeps on one GPU: ten kernels per graph and width, times in milliseconds.

`ms_warm` is the time, `preprocess_ms` the conversion cost; `correct` False with a time is `wrong`,
without one `crash`. Kernels of reduced precision are marked by their `tolerance`. The smaller
sweep over unseen graphs lacks the GPU's name, preprocessing and errors; its instance is the first
word of the file's name (`rtx3090_unseen_sweep.csv`) unless `options.instance` is given.
"""

from __future__ import annotations

import re
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
    label,
    number,
    seconds,
)
from indexer.readers.base.table import Table

_COLUMNS = ("dataset", "M", "K", "nnz", "N", "kernel", "ms_warm", "correct", "tolerance")
_FEATURES = ("avg_nnz_per_row", "cv_d", "max_nnz_per_row")
_ABOUT = {"category": "category", "descriptor_category": "category", "synthetic": "synthetic"}


class RaSpmmReader:
    """Reads both sweeps; a graph is its own group, its category is kept in `about`."""

    name = "ra-spmm"
    platform = "gpu-kernels"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        names = head.split(b"\n", 1)[0].strip().split(b",")
        return names[0] == b"dataset" and {c.encode() for c in _COLUMNS} <= set(names)

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        table.need(_COLUMNS, self.name)
        device = options.instance or _device_of(path)
        matrices: dict[tuple[str, ...], MatrixRef] = {}

        def run(row: list[str], line: int) -> RunRow:
            cells = dict(zip(table.names, row, strict=True))
            key = (cells["dataset"], cells["M"], cells["K"], cells["nnz"])
            if key not in matrices:
                matrices[key] = _matrix(cells)
            gpu = label(cells.get("gpu_name", "")) or device
            return RunRow(matrices[key], *_run(cells), line, gpu)

        yield from table.runs(run)


def _device_of(path: Path) -> str:
    word = re.match(r"[a-z]+\d+[a-z]*(?=_)", path.name.lower())
    return word[0] if word else ""


def _matrix(cells: Mapping[str, str]) -> MatrixRef:
    name = cells["dataset"]
    if not name:
        raise ReaderError("no dataset name")
    return MatrixRef(
        name,
        count(cells["M"]),
        count(cells["K"]),
        count(cells["nnz"]),
        name,
        {c: number(cells[c]) for c in _FEATURES if cells.get(c)},
        {as_: cells[c] for c, as_ in _ABOUT.items() if cells.get(c)},
    )


def _run(cells: Mapping[str, str]) -> tuple[Op, Config, Measurement]:
    width = integer(cells["N"])
    if not 1 <= width <= 1 << 20 or not cells["kernel"]:
        raise ReaderError("no kernel, or a width outside 1..2^20")
    if cells["correct"] not in ("True", "False"):
        raise ReaderError(f"{cells['correct'][:40]!r} in column 'correct' is not True or False")
    good = cells["correct"] == "True" and cells.get("hard_fail") != "True"
    if good and not cells["ms_warm"]:
        raise ReaderError("correct, but without a time")
    times = (seconds(cells["ms_warm"], 1e3),) if cells["ms_warm"] else ()
    error = "" if good else cells.get("error", "") or "not correct"
    measurement = Measurement(
        "ok" if good else "wrong" if times else "crash",
        times,
        "imported",
        cost(cells.get("preprocess_ms"), 1e3),
        None,
        number(cells["tolerance"]) if cells["tolerance"] else None,
        error=error,
    )
    return Op("spmm", width), Config({"kernel": cells["kernel"]}), measurement


PLUGIN = RaSpmmReader
