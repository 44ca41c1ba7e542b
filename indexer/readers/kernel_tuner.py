"""Kernel Tuner's cache files, and results in the FAIR T4 schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.files.safe_read import reason_of, refusing
from embeddb.core.records import STATUSES, Measurement
from indexer.readers.base.lines import document_of, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    config_of,
    cost,
    count,
    label,
    need_op,
    seconds,
)
from indexer.readers.base.statuses import status_of
from indexer.readers.base.units import UNITS, unit_of

_ERRORS = ("InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig", "ErrorConfig")
_FAILED = 1e20  #: time of a failed run before version 0.4
_GAP = re.compile(r"[\s,]*")


class KernelTunerReader:
    """Reader of one cache: the runs of one problem on one device.

    A cache is `{"device_name", "kernel_name", "tune_params_keys", …, "cache": {"128,4": {…}, …}}`.
    An interrupted run leaves it without its closing brackets, possibly in the middle of an entry:
    all whole entries are read. Times are milliseconds; `times` keeps every repeat, `time` is their
    mean and is used where `times` is absent. Errors (`__error__`, or the error's name or 1e20 in
    place of the time in older files) become statuses. The file names no matrix and no operation:
    the matrix is the file's stem unless `options.matrix` is given, the operation must be given.
    """

    name = "kernel-tuner"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return b'"tune_params_keys"' in head

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        text = document_of(path, self.name)
        head, start = _header(text, path)
        op = need_op(options, path)
        matrix = MatrixRef(options.matrix or path.name.split(".")[0])
        device = options.instance or label(str(head.get("device_name", "")))
        campaign = f"kernel-tuner {head.get('kernel_name', '')}".strip()
        line, seen = 1, 0
        for offset, entry in _entries(text, start):
            line, seen = line + text.count("\n", seen, offset), offset
            shown = text[offset : offset + 200]
            if isinstance(entry, str):
                yield Reject(line, entry, shown)
                continue
            try:
                with refusing(ReaderError):
                    config = _config(entry, head["tune_params_keys"])
                    measurement = _measured(entry)
            except ReaderError as error:
                yield Reject(line, error.reason, shown)
                continue
            yield RunRow(matrix, op, config, measurement, line, device, campaign)


def _header(text: str, path: Path) -> tuple[dict[str, Any], int]:
    """The cache's header, and the offset of its first entry."""
    opening = re.search(r'"cache"\s*:\s*\{', text)
    if opening is None:
        raise wrong_file(path, "kernel-tuner", 'no "cache" in it')
    try:
        head = json.loads(text[: opening.end()] + "}}")
    except (ValueError, RecursionError) as error:
        raise ReaderError(f"the header is not JSON: {error}", where=str(path)) from None
    keys = head.get("tune_params_keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise wrong_file(path, "kernel-tuner", "tune_params_keys is not a list of names")
    return head, opening.end()


def _entries(text: str, at: int) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Offset and value of every entry, or the reason why one cannot be read."""
    decode = json.JSONDecoder().raw_decode
    while True:
        at = _gap(text, at)
        if at >= len(text) or text[at] == "}":
            return
        try:
            key, after = decode(text, at)
            colon = _gap(text, after)
            if not isinstance(key, str) or text[colon : colon + 1] != ":":
                raise JSONDecodeError("no key", text, at)
            entry, end = decode(text, _gap(text, colon + 1))
        except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits
            following = re.compile(r'\n\s*"[^"\n]*"\s*:\s*\{').search(text, at)
            yield at, "a damaged entry" if following else "the entry was cut off"
            if following is None:
                return
            at = following.start() + 1
            continue
        yield at, entry if isinstance(entry, dict) else "the entry is not an object"
        at = end


def _gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def _config(entry: Mapping[str, Any], keys: list[str]) -> Config:
    missing = [key for key in keys if key not in entry]
    if missing:
        raise ReaderError(f"no value for the parameter {missing[0]!r}")
    return config_of({key: entry[key] for key in keys})


def _measured(entry: Mapping[str, Any]) -> Measurement:
    error = str(entry.get("__error__", ""))
    if not error:
        error = next((v for v in entry.values() if isinstance(v, str) and v in _ERRORS), "")
    if not error and entry.get("time") == _FAILED:
        error = "ErrorConfig"
    when = moment(entry.get("timestamp"))
    if error:
        status = status_of(error, STATUSES)
        built: float | None = None
        with suppress(ReaderError):  # of a failed run it may be anything
            built = cost(entry.get("compile_time"), 1e3)
        return Measurement(status, (), "imported", None, built, None, when, error)
    built = cost(entry.get("compile_time"), 1e3)
    many = entry.get("times") or [entry.get("time")]
    if many == [None] or not isinstance(many, list):
        raise ReaderError("no time and no error")
    times = tuple(seconds(time, 1e3) for time in many)
    return Measurement("ok", times, "imported", None, built, None, when)


def moment(stamp: Any) -> float:
    """Seconds since the epoch of an ISO time; 0 if there is none. A time without zone is UTC."""
    if not stamp:
        return 0.0
    try:
        time = datetime.fromisoformat(str(stamp))
    except ValueError:
        raise ReaderError(f"{str(stamp)[:40]!r} is not a time stamp") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


#: A name of a measurement that is a time, where its unit is not stated.
_TIME = re.compile("time|latency|duration|elapsed", re.IGNORECASE)


class T4Reader:
    """Results in the FAIR T4 schema 1.0.0, as Kernel Tuner and embeddb's own export write them;
    `line` of a row is the number of its result, from 1.

    One JSON document `{"schema_version", "results": [{"configuration", "times", "invalidity",
    …}]}`. The schema leaves the unit open: it is taken from `metadata.timeunit`, else from the unit
    of the measurement `time`, else from `options.unit`. Repeats are `times.runtimes`; without them
    the measurement `time`, else the one named by `objectives` if that is a time. A result that
    embeddb wrote carries its matrix, op and platform under `embeddb`; otherwise the matrix is
    `options.matrix` or the file's stem, and the operation must be given.
    """

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
        metadata = document.get("metadata")
        unit = _unit(metadata.get("timeunit", "")) if isinstance(metadata, dict) else ""
        stem = options.matrix or path.name.split(".")[0]
        for number, result in enumerate(results, 1):
            try:
                if not isinstance(result, dict) or not isinstance(
                    result.get("configuration"), dict
                ):
                    raise ReaderError("no configuration")
                ours = result.get("embeddb")
                ours = ours if isinstance(ours, dict) else {}
                op = _t4_op(ours) or need_op(options, path)
                measurement = _t4_measured(
                    result, unit or _unit(_measured_time(result).get("unit", "")), options, path
                )
                config = config_of(result["configuration"])
                matrix = _t4_matrix(ours, stem)
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


def _unit(word: Any) -> str:
    return unit_of(str(word)) or str(word)


def _measured_time(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measurement of the run time: `time`, else what was optimised if that is a time; {} if
    there is none."""
    wanted = result.get("objectives") or ["time"]
    if not isinstance(wanted, list):
        raise ReaderError("objectives is not a list of names")
    every = [one for one in result.get("measurements") or () if isinstance(one, dict)]
    for name in ("time", wanted[0]):
        for one in every:
            timed = unit_of(str(one.get("unit", ""))) or _TIME.search(str(name))
            if timed and one.get("name") == name:
                return one
    return {}


def _t4_measured(
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
    raw = times.get("runtimes") or [_measured_time(result).get("value")]
    if status == "ok" and (not isinstance(raw, list) or raw == [None]):
        raise ReaderError("no time, though the result is correct")
    taken = tuple(seconds(t, per_second) for t in raw) if status == "ok" else ()
    built = times.get("compilation_time", times.get("compilation"))
    when, error = moment(result.get("timestamp")), "" if status == "ok" else result["invalidity"]
    return Measurement(
        status, taken, "imported", None, cost(built, per_second), None, when, str(error)
    )


def _t4_op(ours: Mapping[str, Any]) -> Op | None:
    try:
        return Op.parse(str(ours["op"])) if "op" in ours else None
    except UsageError as error:
        raise ReaderError(str(error)) from None


def _t4_matrix(ours: Mapping[str, Any], stem: str) -> MatrixRef:
    m, n, nnz = (count(ours.get(name)) for name in ("m", "n", "nnz"))
    return MatrixRef(str(ours.get("matrix") or stem), m, n, nnz, str(ours.get("group", "")))


PLUGIN = KernelTunerReader
