"""Three tables of SpMM times (one also of SpMV), a row per matrix and configuration: "LCM", RA-SpMM
and LiteForm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.lines import wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    cost,
    count,
    integer,
    label,
    seconds,
)
from indexer.readers.base.table import Table
from indexer.readers.base.units import number

_MOST_WIDTH = 1 << 20
_LCM_MATRIX = ("Matrix", "nRows", "nCols", "NNZ")
_LCM_SPMM = ("mTileSize", "nTileSize")
_LCM_SPMV = ("size_cutoff", "col_threshold")
_LCM_SPMV_TIMES = ("SpMV DDT Parallel Executor", "SpMVDDT Parallel Executor")


def _names(head: bytes) -> list[str]:
    """The names in the first line of a file."""
    return head.split(b"\n", 1)[0].strip().decode(errors="replace").split(",")


class LcmReader:
    """The two tables of "LCM" (vectorised sparse codelets) from a 20-thread Intel node, in seconds,
    distinguished by their headers.

    SpMM: `Matrix,nRows,nCols,NNZ,mTileSize,nTileSize,bCols,…,SpMM DDT,SpMM DDT Analysis`; the time
    is `SpMM DDT`, its inspection is kept as the conversion cost. SpMV: `…, size_cutoff,
    col_threshold,…` with the time in `SpMV DDT Parallel Executor`. The other timing columns do not
    depend on the configuration; they are kept in the measurement's context. The tables name no
    value type, so runs are filed as f32 unless `options.op` says otherwise.
    """

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
        matrix_at = table.need(_LCM_MATRIX, self.name)
        spmm = "SpMM DDT" in table.at
        params = _LCM_SPMM if spmm else _LCM_SPMV
        config_at = table.need(params, self.name)
        names = ("SpMM DDT",) if spmm else _LCM_SPMV_TIMES
        time = next((table.at[name] for name in names if name in table.at), None)
        if time is None:
            raise wrong_file(path, self.name, f"no column {names[0]!r}")
        analysis = table.at.get("SpMM DDT Analysis")
        references = _lcm_references(table, time)
        matrix = cache(_lcm_matrix)

        def run(row: list[str], line: int) -> RunRow:
            ref = matrix(*(row[i] for i in matrix_at))
            values = [integer(row[i]) for i in config_at]
            config = Config(dict(zip(params, values, strict=True)))
            measurement = Measurement(
                "ok",
                (seconds(row[time]),),
                "imported",
                cost(row[analysis]) if analysis is not None else None,
                context={name: seconds(row[i]) for name, i in references.items() if row[i]},
            )
            op = options.ran or _lcm_op(table, row, spmm=spmm)
            return RunRow(ref, op, config, measurement, line, options.instance)

        yield from table.runs(run)


def _lcm_op(table: Table, row: list[str], *, spmm: bool) -> Op:
    if not spmm:
        return Op("spmv")
    width = integer(row[table.need(["bCols"], "lcm")[0]])
    if not 1 <= width <= _MOST_WIDTH:
        raise ReaderError(f"bCols {width} is no number of dense columns")
    return Op("spmm", width)


def _lcm_references(table: Table, time: int) -> dict[str, int]:
    """Context names (`spmm_mkl_s`) of the timing columns that are not the result."""
    return {
        re.sub(r"\W+", "_", name.lower()) + "_s": place
        for name, place in table.at.items()
        if name.startswith(("SpMM ", "SpMV")) and place != time and "Analysis" not in name
    }


def _lcm_matrix(path: str, rows: str, cols: str, nnz: str) -> MatrixRef:
    name = PurePosixPath(path).name.removesuffix(".mtx")
    if not name:
        raise ReaderError("no matrix name")
    return MatrixRef(name, count(rows), count(cols), count(nnz), name)


_RA_COLUMNS = ("dataset", "M", "K", "nnz", "N", "kernel", "ms_warm", "correct", "tolerance")
_RA_FEATURES = ("avg_nnz_per_row", "cv_d", "max_nnz_per_row")
_RA_ABOUT = {"category": "category", "descriptor_category": "category", "synthetic": "synthetic"}


class RaSpmmReader:
    """RA-SpMM's sweeps on one GPU: ten kernels per graph and width, times in milliseconds. A graph
    is its own group, its category is kept in `about`.

    `ms_warm` is the time, `preprocess_ms` the conversion cost; `correct` False with a time is
    `wrong`, without one `crash`. Kernels of reduced precision are marked by their `tolerance`. The
    smaller sweep over unseen graphs lacks the GPU's name, preprocessing and errors; its instance is
    the first word of the file's name (`rtx3090_unseen_sweep.csv`) unless `options.instance` is
    given.
    """

    name = "ra-spmm"
    platform = "gpu-kernels"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        names = _names(head)
        return names[0] == "dataset" and set(_RA_COLUMNS) <= set(names)

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        table.need(_RA_COLUMNS, self.name)
        word = re.match(r"[a-z]+\d+[a-z]*(?=_)", path.name.lower())
        device = options.instance or (word[0] if word else "")
        matrices: dict[tuple[str, ...], MatrixRef] = {}

        def run(row: list[str], line: int) -> RunRow:
            cells = dict(zip(table.names, row, strict=True))
            key = (cells["dataset"], cells["M"], cells["K"], cells["nnz"])
            if key not in matrices:
                matrices[key] = _ra_graph(cells)
            gpu = label(cells.get("gpu_name", "")) or device
            return RunRow(matrices[key], *_ra_run(cells), line, gpu)

        yield from table.runs(run)


def _ra_graph(cells: Mapping[str, str]) -> MatrixRef:
    name = cells["dataset"]
    if not name:
        raise ReaderError("no dataset name")
    m, n, nnz = (count(cells[c]) for c in ("M", "K", "nnz"))
    features = {c: number(cells[c]) for c in _RA_FEATURES if cells.get(c)}
    about = {as_: cells[c] for c, as_ in _RA_ABOUT.items() if cells.get(c)}
    return MatrixRef(name, m, n, nnz, name, features, about)


def _ra_run(cells: Mapping[str, str]) -> tuple[Op, Config, Measurement]:
    width = integer(cells["N"])
    if not 1 <= width <= _MOST_WIDTH or not cells["kernel"]:
        raise ReaderError("no kernel, or a width outside 1..2^20")
    if cells["correct"] not in ("True", "False"):
        raise ReaderError(f"{cells['correct'][:40]!r} in column 'correct' is not True or False")
    good = cells["correct"] == "True" and cells.get("hard_fail") != "True"
    if good and not cells["ms_warm"]:
        raise ReaderError("correct, but without a time")
    times = (seconds(cells["ms_warm"], 1e3),) if cells["ms_warm"] else ()
    measurement = Measurement(
        "ok" if good else "wrong" if times else "crash",
        times,
        "imported",
        cost(cells.get("preprocess_ms"), 1e3),
        None,
        number(cells["tolerance"]) if cells["tolerance"] else None,
        error="" if good else cells.get("error", "") or "not correct",
    )
    return Op("spmm", width), Config({"kernel": cells["kernel"]}), measurement


_HYB_SIZES = ("num_rows", "num_cols", "nnz")
_HYB_TIME, _HYB_PARAMS = "exe_time_hyb(ms)", ("num_partitions", "max_bucket_width")
_HYB_COLUMNS = ("name", *_HYB_SIZES, "K", *(f"best_{param}" for param in _HYB_PARAMS), _HYB_TIME)
_HYB_FEATURES = tuple(
    f"{how}_nnz_{what}"
    for what in ("per_row", "density_per_row")
    for how in ("avg", "min", "max", "std_dev")
)


class LiteformReader:
    """LiteForm's table of autotuned SparseTIR `hyb` formats: the winner per matrix and width only,
    so that losing configurations are not recorded.

    `best_num_partitions` and `best_max_bucket_width` are the configuration, `exe_time_hyb(ms)` its
    time. The tuning's seconds and the naive kernel's time (another program, not a configuration)
    are kept in the measurement's context. Where the table says `inf` for both, no configuration
    ran: the row becomes a `crash` of the configuration it names.
    """

    name = "liteform"
    platform = "gpu-hyb"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return set(_HYB_COLUMNS) <= set(_names(head))

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        table.need(_HYB_COLUMNS, self.name)

        def run(row: list[str], line: int) -> RunRow:
            cells = dict(zip(table.names, row, strict=True))
            name, width = cells["name"], integer(cells["K"])
            if not name or not 1 <= width <= _MOST_WIDTH:
                raise ReaderError("no matrix name, or a width outside 1..2^20")
            features = {c: number(cells[c]) for c in _HYB_FEATURES if cells.get(c)}
            m, n, nnz = (count(cells[c]) for c in _HYB_SIZES)
            matrix = MatrixRef(name, m, n, nnz, name, features)
            config = Config({param: integer(cells[f"best_{param}"]) for param in _HYB_PARAMS})
            return RunRow(
                matrix, Op("spmm", width), config, _hyb_measured(cells), line, options.instance
            )

        yield from table.runs(run)


def _hyb_measured(cells: Mapping[str, str]) -> Measurement:
    context: dict[str, float | str] = {}
    tuning = cost(cells.get("autotuning_time(s)"))
    if tuning is not None:
        context["autotune_s"] = tuning
    naive = cells.get("exe_time_naive(ms)", "")
    if naive not in ("", "inf"):
        context["naive_s"] = seconds(naive, 1e3)
    if cells[_HYB_TIME] == "inf":
        return Measurement("crash", (), "imported", error="no time (inf)", context=context)
    return Measurement("ok", (seconds(cells[_HYB_TIME], 1e3),), "imported", context=context)
