"""Results in the FAIR T4 schema 1.0.0, as Kernel Tuner and embeddb's own export write them.

One JSON document `{"schema_version", "results": [{"configuration", "times", "invalidity", …}]}`.
The schema leaves the unit open: it is taken from `metadata.timeunit`, else from the unit of the
measurement `time`, else from `options.unit`. Repeats are `times.runtimes`; without them the
measurement named by `objectives` is the time. A result that embeddb wrote carries its matrix, op
and platform under `embeddb`; otherwise the matrix is `options.matrix` or the file's stem, and the
operation must be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.records import STATUSES, Measurement
from indexer.readers.base.recognise import document_of, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    config_of,
    cost,
    count,
    need_op,
    seconds,
)
from indexer.readers.base.statuses import status_of
from indexer.readers.base.units import UNITS
from indexer.readers.kernel_tuner import moment

_UNITS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


class T4Reader:
    """Reader of one JSON document; `line` of a row is the number of its result, from 1."""

    name = "t4"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        keys = (b'"configuration"', b'"invalidity"', b'"results"')
        return head.lstrip().startswith(b"{") and all(key in head for key in keys)

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        try:
            document = msgspec.json.decode(document_of(path, self.name))
        except (ValueError, RecursionError) as error:
            raise wrong_file(path, self.name, f"not JSON: {error}") from None
        results = document.get("results") if isinstance(document, dict) else None
        if not isinstance(results, list):
            raise wrong_file(path, self.name, 'no list "results"')
        unit = _stated(document)
        stem = options.matrix or path.name.split(".")[0]
        for number, result in enumerate(results, 1):
            try:
                if not isinstance(result, dict) or not isinstance(
                    result.get("configuration"), dict
                ):
                    raise ReaderError("no configuration")
                ours = result.get("embeddb")
                ours = ours if isinstance(ours, dict) else {}
                op = _op(ours) or need_op(options, path)
                measurement = _measured(result, unit or _unit(result), options, path)
                config = config_of(result["configuration"])
                matrix = _matrix(ours, stem)
            except Exception as error:
                if isinstance(error, ReaderError) and error.where:
                    raise
                text = msgspec.json.encode(result).decode()
                reason = error.reason if isinstance(error, ReaderError) else reason_of(error)
                yield Reject(number, reason, text[:200])
                continue
            name, _, instance = str(ours.get("platform", "")).partition("@")
            device = instance or options.instance
            campaign = str(ours.get("campaign", ""))
            yield RunRow(matrix, op, config, measurement, number, device, campaign, name)


def _stated(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    unit = str(metadata.get("timeunit", "")) if isinstance(metadata, dict) else ""
    return _UNITS.get(unit, unit)


def _unit(result: Mapping[str, Any]) -> str:
    unit = str(_objective(result).get("unit", ""))
    return _UNITS.get(unit, unit)


def _objective(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measurement that was optimised, {} if there is none."""
    wanted = result.get("objectives") or ["time"]
    if not isinstance(wanted, list):
        raise ReaderError("objectives is not a list of names")
    for one in result.get("measurements") or ():
        if isinstance(one, dict) and one.get("name") == wanted[0]:
            return one
    return {}


def _measured(
    result: Mapping[str, Any], stated: str, options: ReadOptions, path: Path
) -> Measurement:
    status = status_of(str(result.get("invalidity", "correct")), STATUSES)
    requested = options.unit
    unit = stated or requested or options.log.unit
    if stated and requested and stated != requested:
        raise ReaderError(f"the file's unit is {stated}, not {requested}", where=str(path))
    per_second = (
        options.per_second(unit, where=str(path)) if unit or status == "ok" else UNITS["ms"]
    )
    times = result.get("times")
    times = times if isinstance(times, dict) else {}
    raw = times.get("runtimes") or [_objective(result).get("value")]
    if status == "ok" and (not isinstance(raw, list) or raw == [None]):
        raise ReaderError("no time, though the result is correct")
    taken = tuple(seconds(t, per_second) for t in raw) if status == "ok" else ()
    built = times.get("compilation_time", times.get("compilation"))
    when, error = moment(result.get("timestamp")), "" if status == "ok" else result["invalidity"]
    return Measurement(
        status, taken, "imported", None, cost(built, per_second), None, when, str(error)
    )


def _op(ours: Mapping[str, Any]) -> Op | None:
    try:
        return Op.parse(str(ours["op"])) if "op" in ours else None
    except UsageError as error:
        raise ReaderError(str(error)) from None


def _matrix(ours: Mapping[str, Any], stem: str) -> MatrixRef:
    m, n, nnz = (count(ours.get(name)) for name in ("m", "n", "nnz"))
    return MatrixRef(str(ours.get("matrix") or stem), m, n, nnz, str(ours.get("group", "")))


PLUGIN = T4Reader
