"""TVM auto_scheduler records (`i`, `r`, `v` per line) of `sparse_dense` workloads.

`sparse_dense(M, N, K, data, indices, indptr, dtype)` multiplies a dense M x K matrix with the
transpose of a sparse N x K one in BSR form: an SpMM with M dense columns on an N x K matrix that
stores `data` entries (zeros inside blocks count). The workload names shapes, not the matrix, so
the name comes from the record's input tensors if it has any, else from the shapes.

The configuration is the schedule's transform steps as one canonical JSON text in the parameter
`steps` (equal steps are equal configurations). The target's string is in the measurement's context.
Costs are seconds per repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import Measurement
from indexer.readers.base.lines import json_lines
from indexer.readers.base.recognise import refuse_other, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    integer,
    number,
    seconds,
)

#: `MeasureErrorNo` of auto_scheduler and of AutoTVM: our status and a description by error number.
_ERRORS = {
    1: ("invalid", "instantiation error"),
    2: ("build", "host compilation error"),
    3: ("build", "device compilation error"),
    4: ("crash", "run time error on the device"),
    5: ("wrong", "wrong answer"),
    6: ("timeout", "build timeout"),
    7: ("timeout", "run timeout"),
    8: ("crash", "unknown error"),
}
_DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


class TvmReader:
    """Reader of `sparse_dense` records; other workloads are rejected by name."""

    name = "tvm"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        lines = [line for line in head.split(b"\n") if line.strip() and line[:1] != b"#"]
        return bool(lines) and re.match(rb'\{\s*"i"\s*:\s*\[\s*\[', lines[0]) is not None

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        refuse_other(self, path)
        good = False
        for line, record in json_lines(path):
            if isinstance(record, Reject):
                yield record
                continue
            try:
                with refusing(ReaderError):
                    matrix, op, config, measurement = _run(record)
            except ReaderError as error:
                if not good and not (isinstance(record, dict) and {"i", "input"} & set(record)):
                    raise wrong_file(path, self.name, 'a line without "i" and "r"') from None
                text = msgspec.json.encode(record).decode()[:200]
                yield Reject(line, error.reason, text)
                continue
            good = True
            yield RunRow(matrix, op, config, measurement, line, options.instance)


def _run(record: Any) -> tuple[MatrixRef, Op, dict[str, Any], Measurement]:
    try:
        return *_workload(record), _schedule(record), measured(record["r"], str(record["i"][0][1]))
    except (LookupError, TypeError) as error:
        raise ReaderError(f"fields are missing ({error})") from None


def _workload(record: Any) -> tuple[MatrixRef, Op]:
    if "input" in record:
        raise ReaderError("an AutoTVM record, not one of auto_scheduler: --format autotvm")
    task = record["i"][0]
    try:
        workload = json.loads(task[0])
    except (ValueError, RecursionError):
        raise ReaderError("the workload is not JSON") from None
    if workload[0] != "sparse_dense":
        raise ReaderError(f"workload {str(workload[0])[:60]!r}; only sparse_dense is read")
    width, m, n = (integer(size) for size in workload[1:4])
    data = [integer(size) for size in workload[4]]
    nnz = 1
    for size in data:
        nnz *= size
    dtype = str(workload[7])
    if min(m, n, nnz) < 0 or dtype not in _DTYPES:
        raise ReaderError(f"a negative size, or the value type {dtype!r}")
    block = "x".join(map(str, data[1:]))
    name = _tensor_name(task) or f"sparse_dense_{m}x{n}_{nnz}_{block}"
    try:
        return MatrixRef(name, m, n, nnz, name), Op("spmm", width, _DTYPES[dtype])
    except UsageError as error:
        raise ReaderError(str(error)) from None


def _tensor_name(task: list[Any]) -> str:
    """The common name of the inputs `X_W_data`, `X_W_indices`, `X_W_indptr`."""
    inputs = task[5] if len(task) > 5 else []
    names = [str(name).removesuffix("_data") for name in inputs if str(name).endswith("_data")]
    return names[0].removesuffix("_W") if names else ""


def _schedule(record: Any) -> dict[str, Any]:
    steps = record["i"][1][1]
    return {"steps": json.dumps(steps, separators=(",", ":"))}


def measured(result: Any, target: str) -> Measurement:
    """Measurement of TVM's `MeasureResult`: seconds, number of the error, seconds of the whole
    measurement, time stamp. The target's string is stored as context.

    Raises: ReaderError, and TypeError, ValueError where it is no list of four.
    """
    costs, error, _, stamp = result
    context: dict[str, float | str] = {"target": target}
    when = number(stamp)
    if error:
        status, why = _ERRORS.get(error, ("crash", f"error {error}"))
        return Measurement(status, (), "imported", when=when, error=why, context=context)
    if not isinstance(costs, list) or not costs:
        raise ReaderError("no cost and no error")
    times = tuple(seconds(one) for one in costs)
    return Measurement("ok", times, "imported", when=when, context=context)


PLUGIN = TvmReader
