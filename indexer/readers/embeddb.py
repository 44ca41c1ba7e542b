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

A run names its pattern, op, platform and config by the numbers their lines gave them, so that a
damaged line costs only what refers to it. Its id is not written: it follows from the content.
`measurement` holds the fields of `Measurement` in order. Trailing fields that have their default
are left out. `sizes` are those of what is no matrix, by name; its code (`embeddb.nests.nest_text`,
`embeddb.tensors.tensor_text`, without name and group) must give the id and the sizes that its
pattern's line says. The thumbnail is
base64; a number that JSON lacks is `{"$float": "nan"}`. The end line tells a complete file from a
truncated one.
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
from indexer.readers.base.lines import json_lines
from indexer.readers.base.recognise import wrong_file
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


#: What a line of an export may hold.
Record = PlatformDoc | WorkloadInfo | Workload | Run | ModelDoc | Reject


@dataclass(slots=True)
class _Seen:
    """What the lines so far have defined, by number."""

    platforms: dict[int, PlatformDoc] = field(default_factory=dict)
    patterns: dict[int, WorkloadInfo] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    configs: dict[int, Config] = field(default_factory=dict)
    runs: int = 0
    rejected: int = 0
    ended: bool = False


def documents(path: Path) -> Iterator[Record]:
    """Every record of an export in file order; a run comes after its platform and pattern.

    A damaged line is a `Reject`, and so is a file that ends before its end line.
    Raises: ReaderError if the file is no export, or of a newer version.
    """
    for _, found in _numbered(path):
        yield found


def _numbered(path: Path) -> Iterator[tuple[int, Record]]:
    lines = json_lines(path, _decoded)
    _check_header(path, next(lines, (1, None))[1])
    seen = _Seen()
    line = 1
    for line, record in lines:
        try:
            found = _understood(record, seen)
        except ReaderError as error:
            seen.rejected += 1
            yield line, Reject(line, error.reason, _shown(record))
            continue
        if found is not None:
            yield line, found
    if not seen.ended:
        yield line + 1, Reject(line + 1, "the end line is missing: the file was cut off")


def _decoded(line: str) -> Any:
    found = _decode(line)
    try:
        return _revived(found) if _FLOAT in line else found
    except (ValueError, TypeError, OverflowError) as error:
        raise msgspec.DecodeError(f"no number: {error}") from error


def _understood(record: Any, seen: _Seen) -> Record | None:
    """As `_record`; whatever else a stranger's line makes it raise costs that line alone."""
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
        _check_end(rest, seen)
        return None
    number, *rest = rest
    if kind in {one.table for one in kinds() if not one.sparse}:
        return _coded(kind, _defined("pattern", seen.patterns, number), rest[0])
    if kind == "config":
        seen.configs[number] = Config(rest[0])
    elif kind == "op":
        seen.ops[number] = Op.parse(rest[0])
    elif kind == "pattern":
        seen.patterns[number] = _pattern(rest)
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
        raise ReaderError("a campaign that is no text")
    if replaces and not (isinstance(replaces, str) and _RUN_ID.fullmatch(replaces)):
        raise ReaderError("replaces what is no id of a run")
    return Run(
        _defined("pattern", seen.patterns, pattern).id,
        _defined("op", seen.ops, op),
        _defined("platform", seen.platforms, platform).id,
        _defined("config", seen.configs, config),
        measurement,
        campaign,
        replaces or "",
    )


def _check(found: Measurement) -> None:
    if found.status not in STATUSES or found.source not in SOURCES:
        raise ReaderError(f"no status {found.status!r} or no source {found.source!r}")
    if found.ok and not found.times_s:
        raise ReaderError("status ok without a time")
    if not all(0 < time < math.inf for time in found.times_s):
        raise ReaderError("a time that is not positive and finite")


def _defined(kind: str, known: dict[int, T], number: int) -> T:
    if number not in known:
        raise ReaderError(f"{kind} {number} is not defined above this line")
    return known[number]


_FIELDS = WorkloadInfo.__struct_fields__


def _pattern(rest: list[Any]) -> WorkloadInfo:
    """Thumbnails come as base64, which `msgspec.convert` undoes."""
    return msgspec.convert(dict(zip(_FIELDS, rest, strict=False)), WorkloadInfo)


def _coded(word: str, pattern: WorkloadInfo, told: Any) -> Workload:
    """Named as its pattern is. Raises: ReaderError unless it is what the pattern's line says."""
    found = pattern.workload.read(json.dumps(told).encode())
    if found.id != pattern.id:
        raise ReaderError(f"the code of another {word} than {pattern.id}")
    if (pattern.kind, pattern.named) != (found.kind, dict(found.sizes.named)):
        raise ReaderError(
            f"a {pattern.kind} of {pattern.sizes}, its code is a {found.kind} of {found.sizes}"
        )
    named: Workload = replace(found, name=pattern.name, group=pattern.group)
    return named


def _check_end(rest: list[Any], seen: _Seen) -> None:
    seen.ended = True
    found = [len(seen.platforms), len(seen.patterns), seen.runs]
    if rest != found and not seen.rejected:
        raise ReaderError(f"the end line counts {rest}, the file holds {found}")


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
    """Reads an export as plain rows; importing into a store uses `documents`, which also yields
    platforms and patterns as they were stored."""

    name = "embeddb"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0].replace(b" ", b"")
        return first.startswith(b'{"format":"embeddb"')

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        """Rows of every platform in the file; `row.platform` and `row.instance` say which."""
        matrices: dict[str, MatrixRef] = {}
        for line, found in _numbered(path):
            if isinstance(found, WorkloadInfo):
                matrices[found.id] = MatrixRef(
                    found.name or found.id,
                    found.m,
                    found.n,
                    found.nnz,
                    found.group,
                    {k: v for k, v in found.features.items() if math.isfinite(v)},
                    found.about,
                )
            elif isinstance(found, Reject):
                yield found
            elif isinstance(found, Run):
                name, _, instance = found.platform.partition("@")
                yield RunRow(
                    matrices[found.pattern_id],
                    found.op,
                    found.config,
                    found.measurement,
                    line,
                    instance,
                    found.campaign,
                    name,
                )


PLUGIN = EmbeddbReader
