"""`dots`: scatter chart of points with a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from embeddb.ui.draw.axes import Scale, drawable
from embeddb.ui.draw.element import (
    KINDS,
    escaped,
    label,
    number,
    path_of,
    picture,
    width_of,
    wrapped,
)

#: Largest number of dots; more are thinned out evenly.
MOST_DOTS = 5000
#: Largest share of the width of the legend beside the map.
_LEGEND = 0.4
#: Height of an entry of the legend, of each further line, and the most lines of an entry.
_LINE = 20.0
_TIGHT = 15.0
_MOST_LINES = 3


class Dot(NamedTuple):
    """A point; `title` is its tooltip."""

    x: float
    y: float
    kind: str
    title: str


def dots(
    points: Sequence[Dot],
    *,
    title: str,
    width: float = 720,
    height: float = 480,
    key: str = "dots",
) -> str:
    """A map whose axes are stretched to fill their side and have no numbers. The eight most
    frequent kinds have a shape and a colour each, all others are small rings."""
    kinds = Counter(p.kind for p in points)
    ranked = sorted(kinds, key=lambda kind: (-kinds[kind], kind))[:KINDS]
    slots = {kind: at for at, kind in enumerate(ranked)}
    placed = [p for p in points if drawable(p.x) and drawable(p.y)]
    visible = _thinned(placed, slots)
    entries = _entries(kinds, slots, _LEGEND * width)
    foot = 18.0 if len(visible) < len(points) else 0.0
    right = width - max((e.wide for e in entries), default=0.0)
    bottom = max(height - foot, 60.0) if visible else 60.0
    parts = [
        f'<rect class="draw-axis" x=".5" y=".5" width="{number(right - 1)}" '
        f'height="{number(bottom - 1)}"/>',
        *_marks(visible, slots, right, bottom),
    ]
    if not visible:
        look = "draw-quiet"
        parts.append(label(right / 2, bottom / 2, "nothing to draw", look=look, anchor="middle"))
    left, top = right + 16, 14.0
    for entry in entries:
        parts.append(_entry(entry, left, top, width - left))
        top += entry.high
    if foot:
        notes = [f"{len(visible):,} of {len(points):,} are drawn"]
        notes += ["thinned evenly"] if len(visible) < len(placed) else []
        unplaced = len(points) - len(placed)
        notes += [f"{unplaced:,} without a place"] if unplaced else []
        look = "draw-quiet draw-small"
        parts.append(label(0, height - 4, "; ".join(notes), look=look, room=width))
    whole = max(height if visible else 0.0, bottom + foot, top)
    return picture(parts, title=title, key=key, size=(width, whole))


def _thinned(placed: list[Dot], slots: Mapping[str, int]) -> list[Dot]:
    """Dots thinned evenly within each kind; rare kinds last, so that they are on top."""
    order = sorted(placed, key=lambda p: slots.get(p.kind, -1))
    if len(order) <= MOST_DOTS:
        return order
    picks = np.linspace(0, len(order) - 1, MOST_DOTS).round().astype(int)
    return [order[at] for at in picks]


def _marks(visible: list[Dot], slots: Mapping[str, int], right: float, bottom: float) -> list[str]:
    r = 5.0 if len(visible) <= 150 else 4.0 if len(visible) <= 800 else 3.0
    across = Scale.over((p.x for p in visible), 12, right - 12, pad=False)
    down = Scale.over((p.y for p in visible), bottom - 12, 12, pad=False)
    parts: list[str] = []
    now: int | None = None
    for p in visible:
        slot = slots.get(p.kind, -1)
        if slot != now:
            parts.append(("</g>" if now is not None else "") + f'<g class="{_look(slot)}">')
            now = slot
        parts.append(_mark(slot, across.at(p.x), down.at(p.y), r, p.title))
    return [*parts, "</g>"] if visible else []


def _look(slot: int) -> str:
    return "draw-other draw-ring" if slot < 0 else f"draw-k{slot} draw-dot"


def _mark(slot: int, x: float, y: float, r: float, title: str) -> str:
    text = f"<title>{escaped(title)}</title>" if title else ""
    if slot <= 0:
        radius = r if slot == 0 else 0.65 * r
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{radius:g}">{text}</circle>'
    return f'<path d="{path_of(slot, x, y, r)}">{text}</path>'


class _Entry(NamedTuple):
    slot: int
    name: list[str]
    dots: str
    wide: float

    @property
    def high(self) -> float:
        return _LINE + _TIGHT * (len(self.name) - 1)


def _entries(kinds: Mapping[str, int], slots: Mapping[str, int], most: float) -> list[_Entry]:
    """Entries of the legend; none if all dots are of one kind without a name."""
    if set(kinds) <= {""}:
        return []
    counts = [(at, kind or "(none)", kinds[kind]) for kind, at in slots.items()]
    rest = [kind for kind in kinds if kind not in slots]
    if rest:
        others = f"other ({len(rest):,} kinds)" if len(rest) > 1 else rest[0] or "(none)"
        counts.append((-1, others, sum(kinds[kind] for kind in rest)))
    around = 46 + width_of(f"{max(count for _, _, count in counts):,}")
    entries = []
    for slot, kind, count in counts:
        name = wrapped(kind, most - around, _MOST_LINES)
        wide = around + min(max(width_of(line) for line in name), most - around)
        entries.append(_Entry(slot, name, f"{count:,}", wide))
    return entries


def _entry(entry: _Entry, x: float, y: float, room: float) -> str:
    mark = _mark(entry.slot, x, y - 4, 5.0, "")
    within = room - 20 - width_of(entry.dots)
    names = [
        label(x + 12, y + _TIGHT * at, line, room=within) for at, line in enumerate(entry.name)
    ]
    count = label(x + room - 2, y, entry.dots, look="draw-quiet", anchor="end")
    return f'<g class="{_look(entry.slot)}">{mark}</g>' + "".join(names) + count
