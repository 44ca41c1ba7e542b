"""Morpheus-Oracle's SpMV timings: one file per machine and backend, one row per matrix and format.

The table is `matrix,Format,Timings,OptimumFormat` (seconds, mean of 1,000 runs, double precision;
the last column, which of the formats was fastest, is not kept). Our interpretations:

- The set is the file's name, `cirrus-square_set-openmp.csv.gz`, less what all sets share: the
  instance is `cirrus-openmp`, and its backend a fact of it. `options.instance` overrides the label.
- Formats are numbered in the order of the library's documentation: COO, CSR, DIA, ELL, HYB, HDC.
- A time of `inf` becomes the status `crash`: the table does not say why (mostly DIA and ELL, which
  would need more memory than there is).
- Matrices are named without group and sizes. With `options.features` (ginkgo's matrix features)
  both come from there, if the name belongs to one matrix only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow, integer, seconds
from indexer.readers.base.table import Table
from indexer.readers.ginkgo import by_name, matrix_features

_COLUMNS = ("matrix", "Format", "Timings", "OptimumFormat")
#: Format names by number.
_FORMATS = ("coo", "csr", "dia", "ell", "hyb", "hdc")
_BACKENDS = ("serial", "openmp", "cuda", "hip")
_CONFIGS = tuple(Config({"format": name}) for name in _FORMATS)


class MorpheusReader:
    """Reader of `MACHINE-square_set-BACKEND.csv[.gz]`."""

    name = "morpheus"
    platform = "morpheus-formats"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.split(b"\n", 1)[0].strip() == ",".join(_COLUMNS).encode()

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        table = Table(path, self.name)
        matrix, form, time, _ = table.need(_COLUMNS, self.name)
        op = options.ran or Op("spmv", 1, "f64")
        instance, facts = options.instance or _set_of(path), _facts_of(path)
        matrices_by_name = by_name(matrix_features(options.features)) if options.features else {}
        matrices: dict[str, MatrixRef] = {}

        def run(row: list[str], line: int) -> RunRow:
            name = row[matrix]
            if name not in matrices:
                matrices[name] = matrices_by_name.get(name) or _matrix(name)
            config, measurement = _config(row[form]), _measured(row[time])
            return RunRow(matrices[name], op, config, measurement, line, instance, facts=facts)

        yield from table.runs(run)


def _set_of(path: Path) -> str:
    return path.name.split(".")[0].replace("-square_set", "")


def _facts_of(path: Path) -> dict[str, str]:
    machine, _, backend = _set_of(path).rpartition("-")
    return {"backend": backend} if machine and backend in _BACKENDS else {}


def _matrix(name: str) -> MatrixRef:
    if not name:
        raise ReaderError("no matrix name")
    return MatrixRef(name)


def _config(raw: str) -> Config:
    number = integer(raw)
    if not 0 <= number < len(_CONFIGS):
        raise ReaderError(f"no format {number}: they are 0 to {len(_CONFIGS) - 1}")
    return _CONFIGS[number]


def _measured(time: str) -> Measurement:
    if time == "inf":
        return Measurement("crash", (), "imported", error="no time")
    return Measurement("ok", (seconds(time),), "imported")


PLUGIN = MorpheusReader
