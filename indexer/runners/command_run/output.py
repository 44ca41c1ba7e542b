"""What a program printed, as seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddb.platforms.command import TimeSpec

_MAX_TIMES = 10_000


def read_times(spec: TimeSpec, text: str) -> list[float]:
    """Seconds of every repeat. Raises: ValueError with one line if that is not what is there."""
    raw = spec.regex.findall(text) if spec.regex is not None else _json_field(text, spec.path)
    if not raw:
        raise ValueError(f"no time in its {spec.stream}")
    if len(raw) > _MAX_TIMES:
        raise ValueError(f"{len(raw)} times in its {spec.stream}, at most {_MAX_TIMES} are read")
    return [_seconds(value, spec) for value in raw]


def _seconds(value: Any, spec: TimeSpec) -> float:
    shown = one_line(repr(value))[:60]
    try:
        seconds = float(value) * spec.unit_s
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"a time of {shown}, which is no number") from None
    if isinstance(value, bool) or not 0 < seconds < math.inf:
        raise ValueError(f"a time of {shown}, which nothing can take")
    return seconds


def _json_field(text: str, path: Sequence[str]) -> list[Any]:
    """The value or list at a path of the text's JSON: all of it, or its last line."""
    lines = text.strip().splitlines()
    for part in (text, *lines[-1:]):
        try:
            found = json.loads(part)
            break
        except (ValueError, RecursionError):
            continue
    else:
        raise ValueError("no JSON, neither the whole output nor its last line")
    for key in path:
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise ValueError(f"no field {'.'.join(path)} in its JSON")
    return found if isinstance(found, list) else [found]


def one_line(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
