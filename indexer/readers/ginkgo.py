"""SpMV times by storage format: ginkgo's benchmark collection, with its table of matrices, and
Morpheus-Oracle's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from embeddb.core.config import Config, Op, Value
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    count,
    integer,
    seconds,
)
from indexer.readers.base.table import Table
from indexer.readers.base.units import number

_WHAT = "ginkgo features"


def matrix_features(path: Path) -> dict[tuple[str, str], MatrixRef]:
    """Matrices by (group, name) of ginkgo's `matrix_features.csv[.gz]`: one row per SuiteSparse
    matrix with its group, sizes, and moments of row and column lengths. Numbers become features.

    Raises: ReaderError if the file is not such a table, naming file and line.
    """
    table = Table(path, _WHAT)
    group, name, m, n, nnz = table.need(("group", "name", "rows", "cols", "nnz"), _WHAT)
    words = [c for c in ("kind", "posdef", "2d3d") if c in table.at]
    numbers = [(c, i) for c, i in table.at.items() if c not in (*words, "group", "name", "id")]

    def matrix(row: list[str], line: int) -> MatrixRef:
        features = {c: number(row[i]) for c, i in numbers if row[i]}
        rows, cols, entries = (count(row[size]) for size in (m, n, nnz))
        about: dict[str, Any] = {c: row[table.at[c]] for c in words}
        return MatrixRef(row[name], rows, cols, entries, row[group], features, about)

    return {(one.group, one.name): one for one in table.sound(matrix)}


def by_name(matrices: Mapping[tuple[str, str], MatrixRef]) -> dict[str, MatrixRef]:
    """Matrices by name, for logs that lack the group. Of a name in several groups, the first if all
    are of one size (the same pattern, collected twice), else none."""
    named: dict[str, MatrixRef] = {}
    differ: set[str] = set()
    for (_, name), matrix in matrices.items():
        other = named.setdefault(name, matrix)
        if (other.m, other.n, other.nnz) != (matrix.m, matrix.n, matrix.nnz):
            differ.add(name)
    return {name: matrix for name, matrix in named.items() if name not in differ}


#: Largest relative error against the reference result that still counts as correct.
TOLERANCE = 1e-6
_COLUMNS = ("device", "group", "name", "rows", "cols", "nnz", "format", "time_s", "rel_err")


class GinkgoReader:
    """Ginkgo's SpMV benchmark collection: one row per device, matrix and storage format.

    The table is `device,executor,group,name,rows,cols,nnz,format,time_s,…,rel_err,completed` (times
    in seconds, double precision). Beside it may lie `conversion_times.csv[.gz]`, the cost of
    converting CSR into a format, which is then stored with the run. Our interpretations:

    - `completed` False becomes the status `crash` (the table does not say why; mostly ELL running
      out of memory; 18 such rows carry a time, which is kept), and so does a completed row without
      a time.
    - A relative error above 1e-6 is `wrong`; of 101,409 checked runs all others lie below 1e-14.
    - The executor is a fact of the device (`backend`): cuda, hip or omp.
    - Two devices' rows write the formats with capitals; names are read in lower case.
    - The devices count non-zeros differently (explicit zeros). With `features` given, a matrix's
      sizes are those of the features file on every device, so that it is one stub.
    """

    name = "ginkgo"
    platform = "spmv-formats"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"device,executor,group,name,rows,cols,nnz,format,")

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        """Rows and rejects of the table (224k rows take about as long as two passes of
        `csv.DictReader`)."""
        table = Table(path, self.name)
        places = table.need((*_COLUMNS, "completed"), self.name)
        op = options.ran or Op("spmv", 1, "f64")
        sizes_by_name = matrix_features(options.features) if options.features else {}
        costs = _conversions(path)
        matrix_of, config_of = cache(partial(_matrix, sizes_by_name)), cache(_config)
        device, group, name, rows, cols, nnz, form, time, err, done = places
        backend = table.at.get("executor")
        facts: dict[str, dict[str, str]] = {}

        def run(row: list[str], line: int) -> RunRow:
            matrix = matrix_of(row[group], row[name], row[rows], row[cols], row[nnz])
            instance, config = row[device], config_of(row[form])
            step = (instance, row[group], row[name], config["format"]) if costs else ()
            measurement = _measured(row[time], row[err], row[done], costs.get(step))
            if instance not in facts:
                backend_name = row[backend] if backend is not None else ""
                facts[instance] = {"backend": backend_name} if backend_name else {}
            return RunRow(matrix, op, config, measurement, line, instance, facts=facts[instance])

        yield from table.runs(run)


def _config(name: str) -> Config:
    if not name:
        raise ReaderError("no format")
    return Config({"format": name.lower()})


def _measured(time: str, err: str, done: str, cost: float | None) -> Measurement:
    if done != "True" or not time:
        if done not in ("True", "False"):
            raise ReaderError(f"{done!r} in column 'completed' is neither True nor False")
        why = "completed without a time" if done == "True" else "did not complete"
        times = (seconds(time),) if time else ()
        return Measurement("crash", times, "imported", cost, error=why)
    taken = (seconds(time),)
    if not err:
        return Measurement("ok", taken, "imported", cost)
    status = "ok" if number(err) <= TOLERANCE else "wrong"
    return Measurement(status, taken, "imported", cost, None, TOLERANCE)


def _named(name: str) -> str:
    if not name:
        raise ReaderError("no matrix name")
    return name


def _matrix(
    sizes_by_name: Mapping[tuple[str, str], MatrixRef],
    group: str,
    name: str,
    m: str,
    n: str,
    nnz: str,
) -> MatrixRef:
    matrix = sizes_by_name.get((group, name))
    return matrix or MatrixRef(_named(name), count(m), count(n), count(nnz), group)


def _conversions(path: Path) -> dict[tuple[Value, ...], float]:
    """Seconds from CSR by (device, group, name, format), from the file beside the runs."""
    names = ("conversion_times.csv", "conversion_times.csv.gz")
    file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if file is None:
        return {}
    table = Table(file, "ginkgo conversions")
    columns = ("device", "group", "name", "conversion", "time_s")
    device, group, matrix, step, time = table.need(columns, "ginkgo conversions")
    cost_s: dict[tuple[Value, ...], float] = {}

    def add(row: list[str], line: int) -> None:
        if row[time] and row[step].startswith("csr-"):
            cost_s[row[device], row[group], row[matrix], row[step][4:]] = number(row[time])

    for _ in table.sound(add):
        pass
    return cost_s


_MORPHEUS = ("matrix", "Format", "Timings", "OptimumFormat")
#: Format names by number.
_FORMATS = ("coo", "csr", "dia", "ell", "hyb", "hdc")
_BACKENDS = ("serial", "openmp", "cuda", "hip")
_CONFIGS = tuple(Config({"format": name}) for name in _FORMATS)


class MorpheusReader:
    """Morpheus-Oracle's SpMV timings, `MACHINE-square_set-BACKEND.csv[.gz]`: one file per machine
    and backend, one row per matrix and format.

    The table is `matrix,Format,Timings,OptimumFormat` (seconds, mean of 1,000 runs, double
    precision; the last column, which of the formats was fastest, is not kept). Our interpretations:

    - The set is the file's name, `cirrus-square_set-openmp.csv.gz`, less what all sets share: the
      instance is `cirrus-openmp`, and its backend a fact of it. `options.instance` overrides the
      label.
    - Formats are numbered in the order of the library's documentation: COO, CSR, DIA, ELL, HYB,
      HDC.
    - A time of `inf` becomes the status `crash`: the table does not say why (mostly DIA and ELL,
      which would need more memory than there is).
    - Matrices are named without group and sizes. With `options.features` (ginkgo's matrix features)
      both come from there, if the name belongs to one matrix only.
    """

    name = "morpheus"
    platform = "morpheus-formats"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.split(b"\n", 1)[0].strip() == ",".join(_MORPHEUS).encode()

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        matrix, form, time, _ = table.need(_MORPHEUS, self.name)
        op = options.ran or Op("spmv", 1, "f64")
        label = path.name.split(".")[0].replace("-square_set", "")
        machine, _, backend = label.rpartition("-")
        facts = {"backend": backend} if machine and backend in _BACKENDS else {}
        matrices_by_name = by_name(matrix_features(options.features)) if options.features else {}
        matrix_of = cache(lambda name: matrices_by_name.get(name) or MatrixRef(_named(name)))

        def run(row: list[str], line: int) -> RunRow:
            ref = matrix_of(row[matrix])
            at = integer(row[form])
            if not 0 <= at < len(_CONFIGS):
                raise ReaderError(f"no format {at}: they are 0 to {len(_CONFIGS) - 1}")
            if row[time] == "inf":
                measured = Measurement("crash", (), "imported", error="no time")
            else:
                measured = Measurement("ok", (seconds(row[time]),), "imported")
            instance = options.instance or label
            return RunRow(ref, op, _CONFIGS[at], measured, line, instance, facts=facts)

        yield from table.runs(run)


PLUGIN = GinkgoReader
