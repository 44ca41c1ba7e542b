"""Building blocks of every chart: text and numbers as SVG, colours, marks and style."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from string import Template
from xml.sax.saxutils import escape

#: Largest length of a full name.
_WHOLE = 400
_NARROW = frozenset("iljtfr.,:;|!'()[]{}I ")
_WIDE = frozenset("mwMW@%&QOGDNHU=+<>~×#")
_IDEOGRAPHS = 0x2E80
#: Width of bold text over that of normal text.
_BOLD = 1.14


def shown(text: object, most: int = _WHOLE) -> str:
    """Text truncated and printable, without direction marks; line ends stay. Not escaped."""
    whole = str(text)
    printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in whole[: most + 1])
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def escaped(text: object) -> str:
    """Text as the content of an element."""
    return escape(shown(text))


def identifier(key: str) -> str:
    """A key as a safe prefix of ids."""
    return "draw-" + re.sub(r"[^A-Za-z0-9_-]", "-", key[:64])


def number(value: float) -> str:
    """A coordinate to a hundredth of a pixel, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def figure(value: float) -> str:
    """A value as text with three significant figures."""
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
    """Approximate width of text in pixels, in a wide sans-serif."""
    units = sum(0.37 if c in _NARROW else 0.85 if c in _WIDE else 0.61 for c in text)
    units += sum(0.4 for c in text if ord(c) >= _IDEOGRAPHS) + sum(
        0.12 for c in text if c in "mM@%"
    )
    size = 15 if "draw-head" in look else 11 if "draw-small" in look else 12
    return units * size * (_BOLD if "draw-head" in look or "draw-strong" in look else 1)


def label(
    x: float, y: float, text: str, *, look: str = "", anchor: str = "start", room: float = math.inf
) -> str:
    """A text element of at most `room` pixels; if clipped, its title has the full text."""
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
    """Text in at most `most` lines, broken after spaces and commas; the last has the rest."""
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
    parts: Iterable[str], *, title: str, key: str, size: tuple[float, float], group: bool = False
) -> str:
    """The `<svg>` element. Several charts are a group: screen readers skip parts of an image."""
    width, height = (number(x) for x in size)
    name = f"{identifier(key)}-title"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="draw" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="{"group" if group else "img"}" '
        f'aria-labelledby="{name}"><title id="{name}">{escaped(title)}</title>'
        + "".join(parts)
        + "</svg>"
    )


#: Kinds with a mark of their own; further ones are drawn as `other`.
KINDS = 8
#: The first that is installed is used; resvg knows none by `sans-serif` alone.
FONTS = (
    "system-ui,'Segoe UI',Roboto,'Noto Sans','Helvetica Neue',Arial,'Liberation Sans',"
    "'DejaVu Sans',sans-serif"
)


def _hex(digits: str) -> list[str]:
    return [f"#{d}" for d in digits.split()]


# Distance between kinds: OKLab 0.1, with full sight and with each simulated colour blindness
# (Machado et al. 2009); contrast with the paper: WCAG 3:1, which `test_draw.py` computes.
_KINDS_LIGHT = _hex("1b6ab8 c27a0a 4a1a70 3b9d8c 7a4a12 4d4e73 a76ef8 6d1733")
_KINDS_DARK = _hex("5aa5f0 f7c948 d0609a 9be3cf 7c7903 a6a442 5f66ed e88aa8")

#: Colour by its part in a drawing.
LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1c2126",
    "quiet": "#57606a",
    "grid": "#e4e8ec",
    "axis": "#8a949e",
    "bar": "#7f94a8",
    "accent": "#0b57a4",
    "alert": "#b3410a",
    "other": "#747d87",
    **{f"k{at}": colour for at, colour in enumerate(_KINDS_LIGHT)},
}
DARK: Mapping[str, str] = {
    "paper": "#101418",
    "ink": "#e4e9ee",
    "quiet": "#a0abb6",
    "grid": "#272e36",
    "axis": "#6d7883",
    "bar": "#667c92",
    "accent": "#86bdf7",
    "alert": "#ff9d5c",
    "other": "#8b96a1",
    **{f"k{at}": colour for at, colour in enumerate(_KINDS_DARK)},
}

#: Dashes of the lines of each kind, so that they differ without colour.
DASHES = ("", "6 3", "2 3", "9 3 2 3", "12 3", "4 2", "1 2", "9 2 2 2 2 2")
#: Shape (see `path_of`) of marks with a fixed one.
MARKS = {"best": 2, "default": 1, "answer": 3}

_RULES = Template(
    """
$s text{fill:$ink;font-family:$fonts;font-size:12px;stroke:none}
$s .draw-paper{fill:$paper}
$s .draw-head{font-size:15px;font-weight:600}
$s .draw-strong{font-weight:600}
$s .draw-quiet{fill:$quiet}
$s .draw-small{font-size:11px}
$s .draw-halo{stroke:$paper;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}
$s .draw-grid{stroke:$grid;stroke-width:1;fill:none}
$s .draw-axis{stroke:$axis;stroke-width:1;fill:none}
$s .draw-thick{stroke-width:2.5}
$s .draw-box{fill:$paper}
$s .draw-line{stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;fill:none}
$s .draw-dot{fill:currentColor;stroke:$paper;stroke-width:.6}
$s .draw-ring{fill:none;stroke:currentColor;stroke-width:1.2}
$s .draw-mark{fill:$paper;stroke:$ink;stroke-width:1.6;stroke-linejoin:round}
$s .draw-bar{fill:$bar}
$s .draw-chosen{fill:$accent}
$s .draw-span{stroke:$ink;stroke-width:1.3;fill:none}
$s .draw-under{stroke:$paper;stroke-width:3.4;fill:none}
$s .draw-reference{stroke:$ink;stroke-width:1;stroke-dasharray:4 3}
$s .draw-cells{stroke:$ink;stroke-width:1;fill:none;shape-rendering:crispEdges}
$s .draw-attended{stroke:$alert}
$s .draw-attended text{stroke:$paper}
$s .draw-hatch{stroke:$alert;stroke-width:1.2;fill:none}
$s .draw-other{color:$other}
"""
    + "".join(f"$s .draw-k{at}{{color:$k{at}}}\n" for at in range(KINDS))
)


def style() -> str:
    """The CSS of charts in a page. They follow `prefers-color-scheme`; in print they are light. A
    page may set the custom properties `--draw-ink`, `--draw-paper`, ... itself."""
    light, dark = _properties(LIGHT), _properties(DARK)
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        ":not(svg)>.draw{max-width:100%;height:auto}"
        + _rules(".draw", lambda name: f"var(--draw-{name})")
    )


def literal(*, dark: bool = True) -> str:
    """The CSS of a standalone file, without custom properties, which few SVG viewers support;
    without `dark` also without media queries, which resvg lacks."""
    light = _rules("svg", LIGHT.__getitem__)
    if not dark:
        return light
    by_system = _rules("svg", DARK.__getitem__)
    return light + f"@media screen and (prefers-color-scheme:dark){{{by_system}}}\n"


def _properties(colours: Mapping[str, str]) -> str:
    return ";".join(f"--draw-{name}:{colour}" for name, colour in colours.items())


def _rules(scope: str, value: Callable[[str], str]) -> str:
    return _RULES.substitute({name: value(name) for name in LIGHT}, s=scope, fonts=FONTS)


#: Steps of the shapes after the circle, for a radius of 1: square, triangle, diamond, triangle
#: down, plus, cross, bar.
_SHAPES = (
    "-.88 -.88 1.76 0 0 1.76 -1.76 0",
    "-1.15 .75 1.15 -1.85 1.15 1.85",
    "-1.25 0 1.25 -1.25 1.25 1.25 -1.25 1.25",
    "-1.15 -.75 1.15 1.85 1.15 -1.85",
    "-.4 -1.2 .8 0 0 .8 .8 0 0 .8 -.8 0 0 .8 -.8 0 0 -.8 -.8 0 0 -.8 .8 0",
    "-1.25 -.7 .55 -.55 .7 .7 .7 -.7 .55 .55 -.7 .7 .7 .7 -.55 .55 -.7 -.7 -.7 .7 -.55 -.55 .7 -.7",
    "-1.5 -.5 3 0 0 1 -3 0",
)


def path_of(kind: int, x: float, y: float, r: float) -> str:
    """Path data of a kind's shape (modulo 8) around a point; all have about the same area."""
    start, shape = f"M{x:.5g} {y:.5g}", kind % KINDS
    if not shape:
        half = f"a{r:.3g} {r:.3g} 0 1 0"
        return f"{start}m{-r:.3g} 0{half} {2 * r:.3g} 0{half} {-2 * r:.3g} 0"
    steps = [f"{float(step) * r:.3g}" for step in _SHAPES[shape - 1].split()]
    moves = [f"{dx} {dy}" for dx, dy in zip(steps[::2], steps[1::2], strict=True)]
    return f"{start}m{'l'.join(moves)}z"
