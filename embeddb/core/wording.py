"""How numbers and names read wherever they are shown: on a terminal, on a page, in a notebook.

The figures are the same everywhere; what differs between the three (the sign of a multiple, the
space before a unit, what stands for nothing) are arguments, with the terminal's as defaults.
"""

from __future__ import annotations

import math
from typing import TypeGuard

__all__ = ["clean", "duration", "factor", "is_known", "plural", "share", "short_time", "size"]


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether there is a figure to show."""
    return value is not None and math.isfinite(value)


def clean(text: object) -> str:
    """Safe to show: names from files may hold escape sequences, line ends or text that runs
    backwards; whatever is not printable becomes `?`."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 run`, `1,234 runs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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


def duration(seconds: float | None) -> str:
    """Two or three figures and the unit that fits: `12.3 us`, `4.56 s`, `3 min 20 s`."""
    if seconds is None or math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "never"
    short = short_time(seconds)
    if short or seconds < 99.5:
        return short or f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
