"""embeddb's own export: platforms, patterns and runs in one JSONL file, without loss.

The first line is `{"format": "embeddb", "version": 1}`. Every other line is an array:

    ["platform", 0, id, text, environment]
    ["pattern", 0, id, m, n, nnz, name, group, stub, thumbnail, features, about, kind, sizes]
    ["nest", pattern, {the nest as in its file}]
    ["tensor", pattern, {the kernel or program as in its file}]
    ["op", 0, "spmm:128"]
    ["config", 0, {"tile": 4}]
    ["run", pattern, op, platform, config, measurement, campaign, replaces]
    ["model", version, registered, card]
    ["end", platforms, patterns, runs]

A run refers to its pattern, op, platform and config by the numbers in their lines, so that a
damaged line costs only its references. Its id is not written: it follows from the content.
`measurement` holds the fields of `Measurement` in order. Trailing fields that have their default
are left out. `sizes` are those of other workloads than matrices, by name; their code
(`embeddb.nests.nest_text`, `embeddb.tensors.tensor_text`, without name and group) must have the id
and the sizes of the pattern's line. The thumbnail is base64; a number that JSON lacks is
`{"$float": "nan"}`. The end line distinguishes a complete file from a truncated one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.kinds import kinds
from embeddb.core.records import SOURCES, STATUSES, Measurement, Run, WorkloadInfo
from embeddb.core.workload import Workload
from indexer.readers.base.lines import json_lines, wrong_file
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow

VERSION = 1
T = TypeVar("T")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
#: Marks a number that JSON lacks.
_FLOAT = "$float"
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class PlatformDoc:
    """A platform as stored: its id (`name` or `name@instance`), TOML text and environment."""

    id: str
    text: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelDoc:
    """A registered model: its version, when it was registered (seconds since 1970) and its card."""

    version: str
    registered: float
    card: dict[str, Any]


_CUT = "the end line is missing: the file was cut off"
#: Record of a line of an export.
Record = PlatformDoc | WorkloadInfo | Workload | Run | ModelDoc | Reject


@dataclass(slots=True)
class _Seen:
    """Definitions in the lines read so far, by number."""

    platforms: dict[int, PlatformDoc] = field(default_factory=dict)
    patterns: dict[int, WorkloadInfo] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    configs: dict[int, Config] = field(default_factory=dict)
    runs: int = 0
    rejected: int = 0
    ended: bool = False


def documents(path: Path) -> Iterator[Record]:
    """Every record of an export in file order; a run comes after its platform and pattern.

    A damaged line is a `Reject`. Raises: ReaderError if the file is no export, or of a newer
    version; after its last record if its end is missing.
    """
    for line, record in _numbered(path):
        if isinstance(record, Reject) and record.reason == _CUT:
            hint = "get the file again; the records before this point are good"
            raise ReaderError(_CUT, where=str(path), line=line, hint=hint)
        yield record


def _numbered(path: Path) -> Iterator[tuple[int, Record]]:
    lines = json_lines(path, _decoded)
    _check_header(path, next(lines, (1, None))[1])
    seen = _Seen()
    line = 1
    for line, record in lines:
        try:
            parsed = _understood(record, seen)
        except ReaderError as error:
            seen.rejected += 1
            yield line, Reject(line, error.reason, _shown(record))
            continue
        if parsed is not None:
            yield line, parsed
    if not seen.ended:
        yield line + 1, Reject(line + 1, _CUT)


def _decoded(line: str) -> Any:
    value = _decode(line)
    try:
        return _revived(value) if _FLOAT in line else value
    except (ValueError, TypeError, OverflowError) as error:
        raise msgspec.DecodeError(f"no number: {error}") from error


def _understood(record: Any, seen: _Seen) -> Record | None:
    """Parse a record as `_record`; any other error that the line raises rejects that line alone."""
    try:
        if isinstance(record, Reject):
            raise ReaderError(record.reason)
        return _record(record, seen)
    except ReaderError:
        raise
    except Exception as error:
        raise ReaderError(f"not a record: {reason_of(error)}") from error


def _shown(record: Any) -> str:
    """The beginning of a line's text."""
    if isinstance(record, Reject):
        return record.text
    try:
        return json.dumps(record, separators=(",", ":"))[:200]
    except (ValueError, RecursionError):
        return ""


def _check_header(path: Path, header: Any) -> None:
    if not isinstance(header, dict) or header.get("format") != "embeddb":
        raise wrong_file(path, "embeddb", "the first line is not an export's header")
    version = header.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ReaderError(
            f"export version {version}; this program reads up to {VERSION}",
            where=str(path),
            hint="read it with the embeddb that wrote it, or a newer one",
        )


def _record(record: Any, seen: _Seen) -> Record | None:
    """One line's record, or None for a line that only defines a number."""
    if not isinstance(record, list) or not record:
        raise ReaderError("not a record")
    kind, *rest = record
    if kind == "run":
        seen.runs += 1
        return _run(rest, seen)
    if kind == "model":
        version, registered, card = rest
        body = {"version": version, "registered": registered, "card": card}
        return msgspec.convert(body, ModelDoc)
    if kind == "end":
        seen.ended = True
        counts = [len(seen.platforms), len(seen.patterns), seen.runs]
        if rest != counts and not seen.rejected:
            raise ReaderError(f"the end line counts {rest}, the file has {counts}")
        return None
    number, *rest = rest
    if kind in {one.table for one in kinds() if not one.sparse}:
        return _coded(kind, _defined("pattern", seen.patterns, number), rest[0])
    if kind == "config":
        seen.configs[number] = Config(rest[0])
    elif kind == "op":
        seen.ops[number] = Op.parse(rest[0])
    elif kind == "pattern":
        fields = zip(WorkloadInfo.__struct_fields__, rest, strict=False)
        # Thumbnails come as base64, which this undoes.
        seen.patterns[number] = msgspec.convert(dict(fields), WorkloadInfo)
        return seen.patterns[number]
    elif kind == "platform":
        seen.platforms[number] = msgspec.convert(
            dict(zip(("id", "text", "environment"), rest, strict=False)), PlatformDoc
        )
        return seen.platforms[number]
    else:
        raise ReaderError(f"no kind of record {str(kind)[:40]!r}")
    return None


def _run(rest: list[Any], seen: _Seen) -> Run:
    pattern, op, platform, config, measured, *ends = rest
    measurement = msgspec.convert(measured, Measurement)
    _check(measurement)
    campaign, replaces = ends if len(ends) == 2 else (*ends, *[""] * (2 - len(ends)))
    if not isinstance(campaign, str):
        raise ReaderError("the campaign is no text")
    if replaces and not (isinstance(replaces, str) and _RUN_ID.fullmatch(replaces)):
        raise ReaderError("'replaces' is no id of a run")
    return Run(
        _defined("pattern", seen.patterns, pattern).id,
        _defined("op", seen.ops, op),
        _defined("platform", seen.platforms, platform).id,
        _defined("config", seen.configs, config),
        measurement,
        campaign,
        replaces or "",
    )


def _check(measurement: Measurement) -> None:
    if measurement.status not in STATUSES or measurement.source not in SOURCES:
        raise ReaderError(f"no status {measurement.status!r} or no source {measurement.source!r}")
    if measurement.ok and not measurement.times_s:
        raise ReaderError("status ok without a time")
    if not all(0 < time < math.inf for time in measurement.times_s):
        raise ReaderError("a time is not positive and finite")


def _defined(kind: str, defined: dict[int, T], number: int) -> T:
    if number not in defined:
        raise ReaderError(f"{kind} {number} is not defined above this line")
    return defined[number]


def _coded(word: str, pattern: WorkloadInfo, document: Any) -> Workload:
    """The workload of a code record, named as its pattern. Raises: ReaderError if it disagrees with
    the pattern's line."""
    workload = pattern.workload.read(json.dumps(document).encode())
    if workload.id != pattern.id:
        raise ReaderError(f"the code of another {word} than {pattern.id}")
    if (pattern.kind, pattern.named) != (workload.kind, dict(workload.sizes.named)):
        raise ReaderError(
            f"the pattern is a {pattern.kind} of {pattern.sizes}, "
            f"its code is a {workload.kind} of {workload.sizes}"
        )
    named: Workload = replace(workload, name=pattern.name, group=pattern.group)
    return named


def _revived(value: Any) -> Any:
    """Turns `{"$float": "nan"}` back."""
    if isinstance(value, list):
        return [_revived(v) if v.__class__ in (list, dict) else v for v in value]
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {k: _revived(v) if v.__class__ in (list, dict) else v for k, v in value.items()}
    return value


class EmbeddbReader:
    """Read an export as plain rows; importing into a store uses `documents`, which also yields
    platforms and patterns as stored."""

    name = "embeddb"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0].replace(b" ", b"")
        return first.startswith(b'{"format":"embeddb"')

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        """Rows of every platform in the file, each with `platform` and `instance`."""
        matrices: dict[str, MatrixRef] = {}
        for line, record in _numbered(path):
            if isinstance(record, WorkloadInfo):
                matrices[record.id] = MatrixRef(
                    record.name or record.id,
                    record.m,
                    record.n,
                    record.nnz,
                    record.group,
                    {k: v for k, v in record.features.items() if math.isfinite(v)},
                    record.about,
                )
            elif isinstance(record, Reject):
                yield record
            elif isinstance(record, Run):
                name, _, instance = record.platform.partition("@")
                yield RunRow(
                    matrices[record.pattern_id],
                    record.op,
                    record.config,
                    record.measurement,
                    line,
                    instance,
                    record.campaign,
                    name,
                )


PLUGIN = EmbeddbReader
