"""How numbers and names read wherever they are shown: on a terminal, on a page, in a notebook.

The figures are the same everywhere; what differs between the three (the sign of a multiple, the
space before a unit, what stands for nothing) are arguments, with the terminal's as defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

from embeddb.core.kinds import kinds_among
from embeddb.core.records import CYCLES_PER_S
from embeddb.core.server_url import redacted

__all__ = [
    "clean",
    "counted",
    "duration",
    "factor",
    "is_known",
    "many_of",
    "one_of",
    "plural",
    "share",
    "short_time",
    "size",
    "value_text",
]


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether there is a figure to show."""
    return value is not None and math.isfinite(value)


def clean(text: object) -> str:
    """Safe to show: names from files may hold escape sequences, line ends or text that runs
    backwards; whatever is not printable becomes `?`, and a password in a server's URL `***`."""
    return "".join(c if c.isprintable() else "?" for c in redacted(str(text)))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 run`, `1,234 runs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def one_of(*kinds: str) -> str:
    """What one of these kinds is called: `matrix`, `nest`, `matrix or nest`."""
    return " or ".join(kind.one for kind in kinds_among(kinds))


def many_of(*kinds: str) -> str:
    """What several of these kinds are called: `matrices`, `matrices and nests`."""
    return " and ".join(kind.many for kind in kinds_among(kinds))


def counted(by_kind: Mapping[str, int]) -> str:
    """`5 matrices and 1 nest`."""
    known = kinds_among(kind for kind, count in by_kind.items() if count)
    return " and ".join(plural(by_kind.get(kind.name, 0), kind.one, kind.many) for kind in known)


def value_text(value: object) -> str:
    """A parameter's value; one that is not there is not used, a permutation is `1 3 2`."""
    if value is None:
        return "(not used)"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def size(count: float) -> str:
    """Bytes with a unit: `4.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def factor(value: float | None, *, sign: str = "x", none: str = "-") -> str:
    """A speed-up: `1.23x`."""
    return f"{value:.2f}{sign}" if is_known(value) else none


def share(value: float | None, *, gap: str = " ", none: str = "-") -> str:
    """A part of one: `93 %`."""
    return f"{100 * value:.0f}{gap}%" if is_known(value) else none


def short_time(seconds: float, *, gap: str = " ", micro: str = "us") -> str:
    """Three figures and the unit that fits: `12.3 us`; empty from 999.5 ms on."""
    for unit, scale in (("ns", 1e9), (micro, 1e6), ("ms", 1e3)):
        if abs(seconds) < 999.5 / scale:
            return f"{seconds * scale:.3g}{gap}{unit}"
    return ""


def duration(seconds: float | None, unit: str = "s") -> str:
    """Two or three figures and the unit that fits: `12.3 us`, `4.56 s`, `3 min 20 s`; with the unit
    `cycles`, 1e-9 seconds stand for one: `33,300 cycles`."""
    if seconds is None or math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "never"
    if unit == "cycles":
        return f"{seconds * CYCLES_PER_S:,.0f} cycles"
    short = short_time(seconds)
    if short or seconds < 99.5:
        return short or f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
