"""Marked points of curves, with labels that keep clear of the curves and of each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.ui.draw.element import escaped, label, shown, width_of
from embeddb.ui.draw.theme import MARKS, path_of

__all__ = ["Box", "Mark", "marked"]

#: Where a label may stand: pixels from the mark to its anchor, best first.
_PLACES = (
    (8.0, -9.0, "start"),
    (-8.0, -9.0, "end"),
    (8.0, 19.0, "start"),
    (-8.0, 19.0, "end"),
    (12.0, 4.0, "start"),
    (-12.0, 4.0, "end"),
    (0.0, -13.0, "middle"),
    (0.0, 23.0, "middle"),
    (8.0, -26.0, "start"),
    (-8.0, -26.0, "end"),
    (8.0, 36.0, "start"),
    (-8.0, 36.0, "end"),
)
#: Labels are no longer than this.
_LONGEST = 150.0


class Box(NamedTuple):
    """A rectangle that a mark or a text covers, in the drawing's units."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Shared area."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(wide, 0.0) * max(high, 0.0)

    def outside(self, frame: Box) -> float:
        """Pixels by which it sticks out of a frame."""
        return (
            max(frame.left - self.left, 0.0)
            + max(self.right - frame.right, 0.0)
            + max(frame.top - self.top, 0.0)
            + max(self.bottom - frame.bottom, 0.0)
        )


class Mark(NamedTuple):
    """One point and everything it is; `title` is what hovering shows."""

    x: float
    y: float
    names: tuple[str, ...]
    value: str
    title: str


def marked(
    marks: Sequence[Mark], strokes: Iterable[Sequence[tuple[float, float]]], frame: Box
) -> list[str]:
    """Shapes, then labels, for marks in pixels beside strokes in pixels; marks with the same label
    at the same place, as the best of several curves that start together, are one."""
    marks = _together(marks)
    shapes = [_shape(mark) for mark in marks]
    curve = _sampled(strokes)
    taken = [Box(m.x - 7, m.y - 7, m.x + 7, m.y + 7) for m in marks]
    labels = []
    look = "draw-halo draw-strong draw-small"
    for mark in marks:
        text = shown(f"{', '.join(mark.names)} {mark.value}", 60)
        wide = min(width_of(text, look), _LONGEST)
        places = [(_box(mark, place, wide), place) for place in _PLACES]
        costs = [
            _cost(box, taken, curve, frame) + 0.5 * rank for rank, (box, _) in enumerate(places)
        ]
        box, (dx, dy, anchor) = places[costs.index(min(costs))]
        taken.append(box)
        x, y = mark.x + dx, mark.y + dy
        labels.append(label(x, y, text, look=look, anchor=anchor, room=_LONGEST))
    return shapes + labels


def _together(marks: Sequence[Mark]) -> list[Mark]:
    """One mark for each place and label, with the titles of all."""
    by_label: dict[object, list[Mark]] = {}
    for mark in marks:
        place = (round(mark.x), round(mark.y), mark.names, mark.value)
        by_label.setdefault(place, []).append(mark)
    return [
        each[0]._replace(title="; ".join(mark.title for mark in each)) for each in by_label.values()
    ]


def _shape(mark: Mark) -> str:
    """One shape in the other where a point is several things."""
    rings = [
        f'<path class="draw-mark" d="{path_of(MARKS.get(name, 0), mark.x, mark.y, 4.5 + 3 * at)}"/>'
        for at, name in enumerate(mark.names)
    ]
    return f"<g><title>{escaped(mark.title)}</title>{''.join(reversed(rings))}</g>"


def _box(mark: Mark, place: tuple[float, float, str], wide: float) -> Box:
    dx, dy, anchor = place
    left = mark.x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return Box(left, mark.y + dy - 10, left + wide, mark.y + dy + 3)


def _cost(box: Box, taken: Sequence[Box], curve: NDArray[np.float64], frame: Box) -> float:
    crossed = 0.0
    if curve.size:
        x, y = curve
        inside = (x > box.left) & (x < box.right) & (y > box.top - 2) & (y < box.bottom + 2)
        crossed = float(inside.sum())
    return 4 * crossed + sum(box.overlap(other) for other in taken) + 50 * box.outside(frame)


def _sampled(strokes: Iterable[Sequence[tuple[float, float]]]) -> NDArray[np.float64]:
    """float64[2,p]: points every 3 pixels along the strokes."""
    parts = [np.zeros((2, 0))]
    for stroke in strokes:
        points = np.array(stroke, dtype=np.float64).T
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points)))])
        if along[-1] > 0:
            at = np.arange(0.0, along[-1], 3.0)
            parts.append(np.array([np.interp(at, along, axis) for axis in points]))
    return np.concatenate(parts, axis=1)
