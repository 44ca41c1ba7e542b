"""embeddb's own export format; `indexer.readers.embeddb` describes it and reads it back."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable
from typing import Any, TextIO

import msgspec

from embeddb.core.kinds import kind_of, nameless
from embeddb.core.records import Measurement, PatternInfo, Run
from embeddb.core.subject import Subject
from indexer.readers.embeddb import VERSION, ModelDoc, PlatformDoc

__all__ = ["write_jsonl"]

_UNMEASURED = list(msgspec.to_builtins(Measurement()))
_UNKNOWN = [getattr(PatternInfo(id=""), name) for name in PatternInfo.__struct_fields__]


def write_jsonl(
    out: TextIO,
    runs: Iterable[Run],
    patterns: Iterable[PatternInfo],
    platforms: Iterable[PlatformDoc] = (),
    models: Iterable[ModelDoc] = (),
    coded: Iterable[Subject] = (),
) -> None:
    """Write a complete export: loss-free, and the same bytes for the same records in the same
    order. Patterns and platforms that only runs mention are written with their id alone."""
    lines = _Lines(out)
    lines.put({"format": "embeddb", "version": VERSION})
    for platform in platforms:
        lines.number("platform", platform.id, [platform.id, platform.text, platform.environment])
    for info in patterns:
        fields = [getattr(info, name) for name in PatternInfo.__struct_fields__]
        lines.number("pattern", info.id, _trimmed(fields, _UNKNOWN))
    for one in coded:
        number = lines.number("pattern", one.id, [one.id])
        kind = kind_of(one.kind)
        lines.put([kind.table, number, json.loads(kind.write(nameless(one)))])
    written = 0
    for run in runs:
        written += 1
        ends = _trimmed([run.campaign, run.replaces], ["", ""])
        measured = _trimmed(list(msgspec.structs.astuple(run.measurement)), _UNMEASURED)
        numbers = [
            lines.number("pattern", run.pattern_id, [run.pattern_id]),
            lines.number("op", run.op, [str(run.op)]),
            lines.number("platform", run.platform, [run.platform]),
            lines.number("config", run.config, [dict(run.config)]),
        ]
        lines.put(["run", *numbers, measured, *ends])
    for model in models:
        lines.put(["model", model.version, model.registered, model.card])
    lines.put(["end", lines.count("platform"), lines.count("pattern"), written])


class _Lines:
    """Writes lines and numbers what they define."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._encode = msgspec.json.Encoder().encode
        self._numbers: dict[str, dict[Hashable, int]] = {}

    def put(self, record: Any) -> None:
        self._out.write(self._encode(_spelled(record)).decode() + "\n")

    def number(self, kind: str, key: Hashable, fields: list[Any]) -> int:
        """The number of `key` among its kind, writing its line when it is new."""
        known = self._numbers.setdefault(kind, {})
        if key not in known:
            known[key] = len(known)
            self.put([kind, known[key], *fields])
        return known[key]

    def count(self, kind: str) -> int:
        return len(self._numbers.get(kind, ()))


def _trimmed(fields: list[Any], defaults: list[Any]) -> list[Any]:
    """Without the trailing fields that have their default."""
    while fields and _same(fields[-1], defaults[len(fields) - 1]):
        fields.pop()
    return fields


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) or (value == () and default == [])


def _spelled(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become `{"$float": "nan"}`."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, dict):
        return {key: _spelled(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(v) for v in value]
    return value
