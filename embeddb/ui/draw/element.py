"""Text and numbers of strangers as SVG, and the element that every drawing is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

__all__ = [
    "attribute",
    "escaped",
    "figure",
    "identifier",
    "label",
    "number",
    "picture",
    "shown",
    "width_of",
    "wrapped",
]

#: Characters of a name kept where the whole of it is given.
_WHOLE = 400
_NARROW = frozenset("iljtfr.,:;|!'()[]{}I ")
_WIDE = frozenset("mwMW@%&QOGDNHU=+<>~×#")
_IDEOGRAPHS = 0x2E80
#: Bold text is so much wider.
_BOLD = 1.14


def shown(text: object, most: int = _WHOLE) -> str:
    """Bounded, printable, and without characters that turn the direction of writing; line ends
    stay. Not escaped yet."""
    whole = str(text)
    kept = "".join(c if c.isprintable() or c == "\n" else "?" for c in whole[: most + 1])
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def escaped(text: object) -> str:
    """Shown, as the content of an element."""
    return escape(shown(text))


def attribute(text: object) -> str:
    """Escaped for between double quotes."""
    return escape(shown(text), {'"': "&quot;", "\n": " "})


def identifier(key: str) -> str:
    """Safe as the start of ids."""
    return "draw-" + re.sub(r"[^A-Za-z0-9_-]", "-", key[:64])


def number(value: float) -> str:
    """A coordinate to a hundredth of a pixel, as short as it gets."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def figure(value: float) -> str:
    """A value for reading: three figures."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else ("never" if value > 0 else "-∞")
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"


def width_of(text: str, look: str = "") -> float:
    """About how wide text is in pixels, in a wide sans-serif."""
    units = sum(0.37 if c in _NARROW else 0.85 if c in _WIDE else 0.61 for c in text)
    units += sum(0.4 for c in text if ord(c) >= _IDEOGRAPHS) + sum(
        0.12 for c in text if c in "mM@%"
    )
    size = 15 if "draw-head" in look else 11 if "draw-small" in look else 12
    return units * size * (_BOLD if "draw-head" in look or "draw-strong" in look else 1)


def label(
    x: float, y: float, text: str, *, look: str = "", anchor: str = "start", room: float = math.inf
) -> str:
    """A text element in at most `room` pixels; where it is clipped the whole is its title."""
    whole = shown(text).replace("\n", " ")
    fits = _clipped(whole, room, look)
    looks = f' class="{look}"' if look else ""
    anchors = f' text-anchor="{anchor}"' if anchor != "start" else ""
    title = f"<title>{escaped(whole)}</title>" if fits != whole else ""
    return f'<text x="{number(x)}" y="{number(y)}"{looks}{anchors}>{title}{escape(fits)}</text>'


def _clipped(text: str, room: float, look: str) -> str:
    if width_of(text, look) <= room:
        return text
    while text and width_of(text + "…", look) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str, room: float, most: int, look: str = "") -> list[str]:
    """Text in at most so many lines, broken after spaces and commas; the last holds the rest."""
    rest = shown(text).replace("\n", " ")
    lines: list[str] = []
    while len(lines) < most - 1 and width_of(rest, look) > room:
        fits = len(_clipped(rest, room, look)) - 1
        at = max(rest.rfind(c, 0, fits) for c in " ,;/") + 1 or fits
        if not at:
            break
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest]


def picture(
    parts: Iterable[str], *, title: str, key: str, size: tuple[float, float], linked: bool = False
) -> str:
    """The whole `<svg>`. One that holds links is a group: the parts of an image are not read."""
    width, height = (number(x) for x in size)
    name = f"{identifier(key)}-title"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="draw" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="{"group" if linked else "img"}" '
        f'aria-labelledby="{name}"><title id="{name}">{escaped(title)}</title>'
        + "".join(parts)
        + "</svg>"
    )
