"""`boxes`: a loop nest, each loop a box around what runs in it."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.ui.draw.element import label, number, picture

__all__ = ["boxes"]

#: Pixels from a box to the one in it, and of a line of text.
_INSET, _LINE = 12.0, 22.0
#: Lines beyond these are counted, not drawn.
_MOST_LOOPS, _MOST_LINES = 16, 12


def boxes(
    loops: Sequence[str],
    body: Sequence[str],
    *,
    title: str,
    strong: Sequence[int] = (),
    width: float = 360,
    key: str = "boxes",
) -> str:
    """A box for each loop from the outermost, with its line at the top, and the lines of the body
    in the innermost; those of `strong` (positions) have a thick frame: they run in parallel."""
    loops, lines = loops[:_MOST_LOOPS], list(body[:_MOST_LINES])
    if len(body) > _MOST_LINES:
        lines.append(f"and {len(body) - _MOST_LINES} more")
    depth = len(loops)
    height = depth * (_LINE + _INSET) + len(lines) * _LINE + _INSET
    parts = [f"<desc>{depth} loops, {len(body)} statements</desc>"]
    for at, text in enumerate(loops):
        side, top = at * _INSET, at * _LINE
        room = width - 2 * side
        thick = " draw-thick" if at in strong else ""
        parts.append(
            f'<rect class="draw-axis{thick}" fill="none" x="{number(side + 1)}" '
            f'y="{number(top + 1)}" '
            f'width="{number(room - 2)}" height="{number(height - top - at * _INSET - 2)}" '
            f'rx="4"/>'
        )
        look = "draw-strong" if at in strong else ""
        parts.append(label(side + 8, top + 16, text, look=look, room=room - 16))
    side, top = depth * _INSET, depth * _LINE
    for at, text in enumerate(lines):
        parts.append(label(side, top + 16 + at * _LINE, text, room=width - 2 * side))
    return picture(parts, title=title, key=key, size=(width, height))
