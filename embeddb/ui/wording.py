"""How values read in a report. Texts come from strangers: what does not print is made visible, and
what is too long is cut with its length told."""

from __future__ import annotations

import shlex
import time
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embeddb.core import wording
from embeddb.core.config import Config
from embeddb.core.server_url import redacted
from embeddb.core.wording import is_known, size

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = [
    "broken",
    "factor",
    "figure",
    "line",
    "percent",
    "quoted",
    "seconds",
    "sentence",
    "share",
    "shown",
    "size",
    "when",
]

#: Characters of a name, a value or a reason that a report shows.
MOST_SHOWN = 240
_NONE = "–"
#: Between a figure and its unit, where no line may end.
_GAP = "\u00a0"


def shown(text: object, most: int = MOST_SHOWN) -> str:
    """Text for a page: control, direction and unassigned characters as `[U+202E]`, white space as
    one space, a password in a server's URL as `***`, and no more than `most` characters of it."""
    raw = redacted(str(text))
    kept = raw if len(raw) <= most else raw[:most]
    if not kept.isascii() or not kept.isprintable():
        kept = "".join(c if c.isprintable() else _visible(c) for c in kept)
    return kept if len(raw) <= most else f"{kept}… ({len(raw):,} characters)"


def _visible(c: str) -> str:
    if c == "\u00a0":
        return c
    space = c in "\t\n\r" or unicodedata.category(c) == "Zs"
    return " " if space else f"[U+{ord(c):04X}]"


def sentence(text: str) -> str:
    """A remark as a sentence of its own."""
    kept = text.strip()
    return kept[:1].upper() + kept[1:] + ("" if kept.endswith((".", "!", "?")) else ".")


def line(config: Mapping[str, Any], most: int = 4 * MOST_SHOWN) -> str:
    """A configuration as one line, in the form that `embeddb measure --config` takes."""
    return shown(Config(config), most)


def broken(text: str) -> Markup:
    """A configuration's line that may wrap after its commas; copying it gives the text alone."""
    from markupsafe import Markup, escape

    return Markup(",<wbr>").join(escape(part) for part in text.split(","))


def factor(value: float | None) -> str:
    """A speed-up: `1.23×`."""
    return wording.factor(value, sign="×", none=_NONE)


def share(value: float | None) -> str:
    """A part of one: `93 %`; never 0 % of what is there."""
    little = is_known(value) and 0 < value < 0.005
    return f"< 1{_GAP}%" if little else wording.share(value, gap=_GAP, none=_NONE)


def percent(value: float | None) -> str:
    """A part of one where tenths of a percent matter: `1.6 %`."""
    return f"{100 * value:.1f}{_GAP}%" if is_known(value) else _NONE


def quoted(text: str) -> str:
    """One word of a command line."""
    return shlex.quote(shown(text))


def seconds(value: float | None, unit: str = "s") -> str:
    """Three figures and the unit that fits: `12.3 µs`; `33,300 cycles` where these are the unit."""
    if not is_known(value):
        return _NONE
    if unit == "cycles":
        return wording.duration(value, unit)
    short = wording.short_time(value, gap=_GAP, micro="µs")
    return short or (f"{value:,.3g}{_GAP}s" if value < 999.5 else f"{value:,.0f}{_GAP}s")


def figure(value: float | None) -> str:
    """A number whose size is not known beforehand: whole ones with commas, others with four
    figures."""
    if not is_known(value):
        return _NONE
    whole = value == int(value) and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:.4g}"


def when(created: float) -> str:
    """Seconds since the epoch as a date and time in UTC."""
    try:
        moment = time.gmtime(created)
    except (OverflowError, ValueError, OSError):
        return _NONE
    return time.strftime("%Y-%m-%d %H:%M UTC", moment) if created > 0 else _NONE
