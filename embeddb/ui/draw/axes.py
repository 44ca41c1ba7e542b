"""Scales from values to pixels, ticks, axes and marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.ui.draw.element import MARKS, escaped, label, path_of, shown, width_of

#: Values beyond are not drawn: their differences and ratios overflow.
LARGEST = 1e100


def drawable(value: float, *, log: bool = False) -> bool:
    return math.isfinite(value) and abs(value) < LARGEST and (not log or value > 1 / LARGEST)


class Scale(NamedTuple):
    """Mapping of values to pixels: `low` to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, end: float, *, log: bool = False, pad: bool
    ) -> Scale:
        """Scale over the drawable values; `pad` leaves room on both sides."""
        finite = [v for v in values if drawable(v, log=log)] or [1.0]
        low, high = min(finite), max(finite)
        size = max(abs(low), abs(high))
        if high - low <= max(1e-12 * size, 1 / LARGEST):
            by = 0.2 * size if size > 1 / LARGEST else 0.5
            return cls(low - by, high + by, start, end, log)
        if not pad:
            return cls(low, high, start, end, log)
        if log:
            by = (high / low) ** 0.05
            return cls(low / by, high * by, start, end, True)
        by = 0.05 * (high - low)
        return cls(low - by, high + by, start, end)

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        share = (
            math.log(value / low) / math.log(high / low)
            if self.log
            else (value - low) / (high - low)
        )
        return self.start + share * (self.end - self.start)

    def ticks(self, spacing: float) -> list[tuple[float, str]]:
        """Values with their labels, about `spacing` pixels apart: 1, 2 or 5 times powers of ten."""
        most = max(2.0, abs(self.end - self.start) / spacing)
        values = self._log_ticks(most) if self.log else []
        if len(values) < 2:
            values = self._linear_ticks(most)
        return list(zip(values, _labels(values), strict=True))

    def _linear_ticks(self, most: float) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1) if at * step > 0 or not self.log]

    def _log_ticks(self, most: float) -> list[float]:
        decades = math.log10(self.high / self.low)
        for parts in ((1, 2, 5), (1, 3), (1,)):
            if len(parts) * decades <= most:
                return list(self._powers(parts, 1))
        return list(self._powers((1,), math.ceil(decades / most)))

    def _powers(self, parts: Sequence[int], every: int) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for power in range(first, last + 1):
            for part in parts if power % every == 0 else ():
                value = float(f"{part}e{power}")
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    yield value


def _labels(values: Sequence[float]) -> list[str]:
    """Labels with as many decimals as needed to differ."""
    largest = max((abs(v) for v in values), default=0.0)
    gap = min((abs(b - a) for a, b in pairwise(values)), default=largest or 1)
    if largest >= 1e7 or 0 < largest < 1e-4:
        return [_scientific(v, gap) for v in values]
    return [_plain(v, gap) for v in values]


def _plain(value: float, gap: float) -> str:
    of = min(gap, abs(value)) if value else gap
    decimals = max(0, -math.floor(math.log10(of) + 1e-9)) if of > 0 else 0
    text = f"{value:,.{min(decimals, 8)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scientific(value: float, gap: float) -> str:
    if not value:
        return "0"
    figures = max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(gap) + 1e-9))
    mantissa, power = f"{value:.{min(figures, 12)}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if figures else mantissa}e{int(power)}"


#: Candidate places of a label: pixels from the mark to its anchor, best first.
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
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(wide, 0.0) * max(high, 0.0)

    def outside(self, frame: Box) -> float:
        """Pixels outside of a frame, summed over the sides."""
        return (
            max(frame.left - self.left, 0.0)
            + max(self.right - frame.right, 0.0)
            + max(frame.top - self.top, 0.0)
            + max(self.bottom - frame.bottom, 0.0)
        )


class Mark(NamedTuple):
    """A point with all its names; `title` is its tooltip."""

    x: float
    y: float
    names: tuple[str, ...]
    value: str
    title: str


def marked(
    marks: Sequence[Mark], strokes: Iterable[Sequence[tuple[float, float]]], frame: Box
) -> list[str]:
    """Shapes, then labels, of marks beside strokes, all in pixels; marks with the same label at the
    same place, such as the best of several curves that start together, are merged."""
    by_label: dict[object, list[Mark]] = {}
    for mark in marks:
        place = (round(mark.x), round(mark.y), mark.names, mark.value)
        by_label.setdefault(place, []).append(mark)
    marks = [
        each[0]._replace(title="; ".join(mark.title for mark in each)) for each in by_label.values()
    ]
    shapes = []
    for mark in marks:  # nested shapes, one for each name
        rings = []
        for at, name in enumerate(mark.names):
            ring = path_of(MARKS.get(name, 0), mark.x, mark.y, 4.5 + 3 * at)
            rings.append(f'<path class="draw-mark" d="{ring}"/>')
        shapes.append(f"<g><title>{escaped(mark.title)}</title>{''.join(reversed(rings))}</g>")
    curve = _sampled(strokes)
    taken = [Box(m.x - 7, m.y - 7, m.x + 7, m.y + 7) for m in marks]
    labels = []
    look = "draw-halo draw-strong draw-small"
    for mark in marks:
        text = shown(f"{', '.join(mark.names)} {mark.value}", 60)
        wide = min(width_of(text, look), _LONGEST)
        places = []
        for dx, dy, anchor in _PLACES:
            left = mark.x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
            box = Box(left, mark.y + dy - 10, left + wide, mark.y + dy + 3)
            places.append((box, (dx, dy, anchor)))
        costs = [
            _cost(box, taken, curve, frame) + 0.5 * rank for rank, (box, _) in enumerate(places)
        ]
        box, (dx, dy, anchor) = places[costs.index(min(costs))]
        taken.append(box)
        x, y = mark.x + dx, mark.y + dy
        labels.append(label(x, y, text, look=look, anchor=anchor, room=_LONGEST))
    return shapes + labels


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
