"""Kernel Tuner's cache files (version 0.4 and later).

A cache is `{"device_name", "kernel_name", "tune_params_keys", …, "cache": {"128,4": {…}, …}}`. An
interrupted run leaves it without its closing brackets, possibly in the middle of an entry: all
whole entries are read. Times are milliseconds; `times` keeps every repeat, `time` is their mean
and is used where `times` is absent. Errors (`__error__`, or the error's name in place of the time
in older files) become statuses. The file names no matrix and no operation: the matrix is the
file's stem unless `options.matrix` is given, the operation must be given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from embeddb.core.config import Config
from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import STATUSES, Measurement
from indexer.readers.base.recognise import document_of, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    config_of,
    cost,
    label,
    need_op,
    seconds,
)
from indexer.readers.base.statuses import status_of

_ERRORS = ("InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig", "ErrorConfig")
_GAP = re.compile(r"[\s,]*")


class KernelTunerReader:
    """Reader of one cache: the runs of one problem on one device."""

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
    when = moment(entry.get("timestamp"))
    if error:
        status = status_of(error, STATUSES)
        return Measurement(status, (), "imported", None, _built(entry), None, when, error)
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


def _built(entry: Mapping[str, Any]) -> float | None:
    """Seconds to compile a failed configuration; None if there is no such number."""
    try:
        return cost(entry.get("compile_time"), 1e3)
    except ReaderError:
        return None


PLUGIN = KernelTunerReader
