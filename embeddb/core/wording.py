"""Text of numbers, names and configurations: on a terminal, and on a page, whose functions are the
filters of the templates.

Names and messages may come from untrusted files: unprintable characters are made visible, and long
texts are cut.
"""

from __future__ import annotations

import math
import shlex
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from embeddb.core.config import Config
from embeddb.core.kinds import kinds_among
from embeddb.core.records import CYCLES_PER_S
from embeddb.core.server_url import redacted

if TYPE_CHECKING:
    from markupsafe import Markup


def is_known(value: float | None) -> TypeGuard[float]:
    """Return true if there is a number to show."""
    return value is not None and math.isfinite(value)


def clean(text: object) -> str:
    """Make a text safe to show: names from files may contain escape sequences, line ends or
    right-to-left overrides; unprintable characters become `?`, and a password in a server's URL
    `***`."""
    return "".join(c if c.isprintable() else "?" for c in redacted(str(text)))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 run`, `1,234 runs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def one_of(*kinds: str) -> str:
    """Singular of these kinds: `matrix`, `nest`, `matrix or nest`."""
    return _series([kind.one for kind in kinds_among(kinds)], "or")


def many_of(*kinds: str) -> str:
    """Plural of these kinds: `matrices`, `matrices and nests`."""
    return _series([kind.many for kind in kinds_among(kinds)], "and")


def counted(by_kind: Mapping[str, int]) -> str:
    """`5 matrices and 1 nest`."""
    present = kinds_among(kind for kind, count in by_kind.items() if count)
    counts = [plural(by_kind.get(kind.name, 0), kind.one, kind.many) for kind in present]
    return _series(counts, "and")


def _series(words: list[str], last: str) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def value_text(value: object) -> str:
    """Text of a parameter's value: `(not used)` for None, `1 3 2` for a permutation."""
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
    """Percentage of a fraction: `93 %`."""
    return f"{100 * value:.0f}{gap}%" if is_known(value) else none


def short_time(seconds: float, *, gap: str = " ", micro: str = "us") -> str:
    """Three significant digits with a fitting unit: `12.3 us`; empty from 999.5 ms."""
    for unit, scale in (("ns", 1e9), (micro, 1e6), ("ms", 1e3)):
        if abs(seconds) < 999.5 / scale:
            return f"{seconds * scale:.3g}{gap}{unit}"
    return ""


def duration(seconds: float | None, unit: str = "s") -> str:
    """Two or three significant digits with a fitting unit: `12.3 us`, `4.56 s`, `3 min 20 s`; with
    the unit `cycles`, 1e-9 seconds stand for one: `33,300 cycles`."""
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


# -- pages -------------------------------------------------------------------------------------

#: Number of characters of a name, a value or a reason that a page shows.
MOST_SHOWN = 240
_NONE = "–"
#: Between a figure and its unit, where no line may end.
_GAP = "\u00a0"


def shown(text: object, most: int = MOST_SHOWN) -> str:
    """Text for a page: control, direction and unassigned characters as `[U+202E]`, white space as
    one space, a password in a server's URL as `***`, cut after `most` characters."""
    raw = redacted(str(text))
    visible = raw if len(raw) <= most else raw[:most]
    if not visible.isascii() or not visible.isprintable():
        visible = "".join(c if c.isprintable() else _visible(c) for c in visible)
    return visible if len(raw) <= most else f"{visible}… ({len(raw):,} characters)"


def _visible(c: str) -> str:
    if c == "\u00a0":
        return c
    space = c in "\t\n\r" or unicodedata.category(c) == "Zs"
    return " " if space else f"[U+{ord(c):04X}]"


def sentence(text: str) -> str:
    """Turn a remark into a sentence."""
    trimmed = text.strip()
    return trimmed[:1].upper() + trimmed[1:] + ("" if trimmed.endswith((".", "!", "?")) else ".")


def line(config: Mapping[str, Any], most: int = 4 * MOST_SHOWN) -> str:
    """A configuration as one line, in the form that `embeddb measure --config` takes."""
    return shown(Config(config), most)


def broken(text: str) -> Markup:
    """A configuration's line that may wrap after its commas; copying it gives the plain text."""
    from markupsafe import Markup, escape

    return Markup(",<wbr>").join(escape(part) for part in text.split(","))


def page_factor(value: float | None) -> str:
    """A speed-up: `1.23×`."""
    return factor(value, sign="×", none=_NONE)


def page_share(value: float | None) -> str:
    """Percentage of a fraction; `< 1 %` instead of 0 % for small ones."""
    little = is_known(value) and 0 < value < 0.005
    return f"< 1{_GAP}%" if little else share(value, gap=_GAP, none=_NONE)


def percent(value: float | None) -> str:
    """Percentage of a fraction with one decimal: `1.6 %`."""
    return f"{100 * value:.1f}{_GAP}%" if is_known(value) else _NONE


def quoted(text: str) -> str:
    """Quote one word of a command line."""
    return shlex.quote(shown(text))


def page_seconds(value: float | None, unit: str = "s") -> str:
    """Three significant digits with a fitting unit: `12.3 µs`, or `33,300 cycles`."""
    if not is_known(value):
        return _NONE
    if unit == "cycles":
        return duration(value, unit)
    short = short_time(value, gap=_GAP, micro="µs")
    return short or (f"{value:,.3g}{_GAP}s" if value < 999.5 else f"{value:,.0f}{_GAP}s")


def figure(value: float | None) -> str:
    """A number of unknown magnitude: integers with commas, others with four significant digits."""
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


#: Filters by their names in templates.
PAGE_FILTERS: dict[str, Callable[..., str]] = {
    "broken": broken,
    "factor": page_factor,
    "figure": figure,
    "line": line,
    "percent": percent,
    "plural": plural,
    "quoted": quoted,
    "seconds": page_seconds,
    "sentence": sentence,
    "share": page_share,
    "shown": shown,
    "size": size,
    "when": when,
}
