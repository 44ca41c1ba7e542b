"""Charts as files: SVG with its style, PNG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embeddb.core.errors import MissingDependency, UsageError
from embeddb.core.extras import install_hint
from embeddb.core.files.safe_write import check_place, whole_file
from embeddb.ui.draw.element import label, literal, number, picture, width_of, wrapped

_SUFFIXES = (".svg", ".png")
_MARGIN = 16.0
#: Height and number of the lines of a heading, and the width to which it may extend a chart.
_LINE = 20.0
_MOST_LINES = 3
_NARROW = 420.0
_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" class="draw" width="40" height="20">{}</svg>'
_SIZE = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>")


def stack(drawings: Sequence[str], *, title: str) -> str:
    """Several charts below each other as one."""
    parts, y, wide = [], 0.0, 0.0
    for drawing in drawings:
        width, height = _size(drawing)
        parts.append(_placed(drawing, 0, y))
        y, wide = y + height + _MARGIN, max(wide, width)
    size = (max(wide, 1.0), max(y - _MARGIN, 1.0))
    return picture(parts, title=title, key="stack", size=size, group=True)


def standalone(svg: str) -> str:
    """A chart as an SVG file: with margins, its title and its style."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _framed(svg, literal()) + "\n"


def png(svg: str) -> bytes:
    """A chart as PNG on white, with two pixels for each of its own. Raises: MissingDependency
    without resvg_py, or without a font on this machine."""
    whole = _framed(svg, literal(dark=False))
    return bytes(_resvg().svg_to_bytes(svg_string=whole, zoom=2.0, font_files=list(_fonts())))


def check_target(out: Path) -> None:
    """Check that a chart can be written to a path, before drawing it.

    Raises: UsageError for another suffix than .svg and .png, and for a missing folder;
    MissingDependency if no PNG can be written.
    """
    suffix = out.suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"{out}: the file name must end in {' or '.join(_SUFFIXES)}")
    check_place(out)
    if suffix == ".png":
        _fonts()


def write(svg: str, out: Path) -> None:
    """Write a chart atomically, .svg or .png by its suffix. Raises: as `check_target`."""
    check_target(out)
    data = png(svg) if out.suffix.lower() == ".png" else standalone(svg).encode()
    with whole_file(out) as file:
        file.write(data)


def _framed(svg: str, css: str) -> str:
    width, height = _size(svg)
    match = _TITLE.search(svg)
    title = unescape(match.group(1)) if match else ""
    look = "draw-head"
    room = max(width, min(width_of(title, look), _NARROW))
    lines = wrapped(title, room, _MOST_LINES, look)
    top = _MARGIN + _LINE * len(lines) + 10
    heading = [
        label(_MARGIN, _MARGIN + 14 + _LINE * at, line, look=look, room=room)
        for at, line in enumerate(lines)
    ]
    parts = [
        f"<style>{css}</style>",
        '<rect class="draw-paper" width="100%" height="100%"/>',
        *heading,
        _placed(svg, _MARGIN, top),
    ]
    size = (room + 2 * _MARGIN, top + height + _MARGIN)
    return picture(parts, title=title, key="standalone", size=size, group=True)


def _placed(svg: str, x: float, y: float) -> str:
    return svg.replace("<svg ", f'<svg x="{number(x)}" y="{number(y)}" ', 1)


def _size(svg: str) -> tuple[float, float]:
    match = _SIZE.search(svg)
    if match is None:
        raise UsageError("not a chart of embeddb: no viewBox")
    return float(match.group(1)), float(match.group(2))


def _resvg() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise MissingDependency(
            "a PNG needs resvg_py",
            hint=f"{install_hint('plot')}, or write .svg",
        ) from None
    return resvg_py


@cache
def _fonts() -> tuple[str, ...]:
    """Font files to add to those of the system: none if these suffice; else the one in matplotlib.
    Raises: MissingDependency if no text can be rendered, which resvg does not report."""
    if _writes(()):
        return ()
    package = find_spec("matplotlib")
    if package is not None and package.origin:
        font = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if font.is_file() and _writes((str(font),)):
            return (str(font),)
    raise MissingDependency(
        "a PNG needs a font, and this machine has none that resvg finds",
        hint="install DejaVu Sans or Noto Sans (Debian: fonts-dejavu-core), or write .svg",
    )


def _writes(fonts: tuple[str, ...]) -> bool:
    """True if text is rendered with these fonts."""
    draw = _resvg().svg_to_bytes
    style = f"<style>{literal(dark=False)}</style>"
    text = draw(
        svg_string=_PROBE.format(style + '<text x="2" y="14">Mg</text>'), font_files=list(fonts)
    )
    return bytes(text) != bytes(draw(svg_string=_PROBE.format(style), font_files=list(fonts)))
