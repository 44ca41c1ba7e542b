"""`curves`: lines over one pair of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from embeddb.ui.draw.axes import Box, Mark, Scale, drawable, marked
from embeddb.ui.draw.element import (
    DASHES,
    KINDS,
    escaped,
    figure,
    label,
    number,
    picture,
    shown,
    width_of,
)

#: Largest number of segments of a line; of each the lowest and highest point are drawn.
_STRETCHES = 400
#: Smallest distance of labels at the ends of lines, and how far they may be moved.
_APART = 14.0
_MOVED = 30.0
#: Height of a row of the legend.
_ROW = 18.0
#: Room beside the first and the last point, for marks on them.
_INSET = 8.0

Point = tuple[float, float]


class Line(NamedTuple):
    """Points in drawing order; a NaN breaks the line. `marks` names single points: `default`,
    `answer` and `best` have shapes of their own."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marks: Mapping[str, int] = {}


class _Stroke(NamedTuple):
    """A line with points; `kind` is -1 if there are more lines than kinds."""

    line: Line
    kind: int
    pieces: list[list[Point]]

    @property
    def end(self) -> Point:
        return self.pieces[-1][-1]

    @property
    def look(self) -> str:
        return "draw-other" if self.kind < 0 else f"draw-k{self.kind}"

    @property
    def dashes(self) -> str:
        dash = DASHES[self.kind] if self.kind >= 0 else ""
        return f' stroke-dasharray="{dash}"' if dash else ""


class _Plot(NamedTuple):
    across: Scale
    up: Scale

    @property
    def frame(self) -> Box:
        ends = self.across.start - _INSET, self.across.end + _INSET
        return Box(ends[0], self.up.end, ends[1], self.up.start)

    def at(self, point: Point) -> Point:
        return self.across.at(point[0]), self.up.at(point[1])


def curves(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    size: Point = (640, 320),
    key: str = "curves",
) -> str:
    """Lines with their names at their ends, or in a legend if there is no room. NaN values (with
    `log_y` also those not above zero) are dropped, and a note has their number.

    Of long lines the extremes of 400 segments are drawn. From the ninth on lines look the same.
    """
    width, height = size
    strokes, lost = _strokes(lines, log_y)
    note = f"{lost:,} of the values cannot be drawn" if lost else ""
    if not strokes:
        empty = [
            label(width / 2, height / 2 + 18 * at, text, look="draw-quiet", anchor="middle")
            for at, text in enumerate(["nothing to draw", *([note] if note else [])])
        ]
        return picture(empty, title=title, key=key, size=size)
    named = [s for s in strokes if s.line.name]
    foot = 16.0 if note else 0.0
    room = min(max((width_of(shown(s.line.name)) for s in named), default=0.0) + 10, 0.3 * width)
    below = height - 34 - foot
    plot = _plot(strokes, log_y, right=width - (room if named else 14), ends=(22, below))
    places = _end_places(named, plot) if named else None
    if named and places is None:
        rows = _legend_rows(named, width)
        ends = (24 + _ROW * (1 + rows[-1][2]), below)
        plot = _plot(strokes, log_y, right=width - 14, ends=ends)
        names = _legend(rows)
    else:
        names = _direct(named, places or [], plot, room)
    drawn = [[[plot.at(p) for p in piece] for piece in s.pieces] for s in strokes]
    parts = [*_axes(plot, x_label, y_label, width), *names]
    parts += [_path(s, pieces) for s, pieces in zip(strokes, drawn, strict=True)]
    marks = [mark for s in strokes for mark in _marks(s.line, plot, log_y)]
    parts += marked(marks, [piece for pieces in drawn for piece in pieces], plot.frame)
    if note:
        parts.append(label(0, height - 4, note, look="draw-quiet draw-small", room=width))
    return picture(parts, title=title, key=key, size=size)


# -- points ----------------------------------------------------------------------------------------


def _strokes(lines: Sequence[Line], log_y: bool) -> tuple[list[_Stroke], int]:
    """The lines with at least one point, and the number of dropped points."""
    strokes: list[_Stroke] = []
    lost = 0
    for line in lines:
        pieces: list[list[Point]] = [[]]
        for x, y in zip(line.x, line.y, strict=True):
            if _good(x, y, log_y):
                pieces[-1].append((float(x), float(y)))
            else:
                lost += 1
                pieces.append([])
        whole = [_thinned(piece) for piece in pieces if piece]
        if whole:
            strokes.append(_Stroke(line, len(strokes) if len(strokes) < KINDS else -1, whole))
    return strokes, lost


def _good(x: float, y: float, log_y: bool) -> bool:
    return drawable(x) and drawable(y, log=log_y)


def _thinned(piece: list[Point]) -> list[Point]:
    if len(piece) <= 2 * _STRETCHES:
        return piece
    y = np.array([p[1] for p in piece])
    chosen = {0, len(piece) - 1}
    for part in np.array_split(np.arange(len(piece)), _STRETCHES):
        chosen |= {int(part[y[part].argmin()]), int(part[y[part].argmax()])}
    return [piece[at] for at in sorted(chosen)]


def _marks(line: Line, plot: _Plot, log_y: bool) -> list[Mark]:
    by_point: dict[int, list[str]] = {}
    for name, at in line.marks.items():
        if _good(line.x[at], line.y[at], log_y):
            by_point.setdefault(at, []).append(name)
    marks = []
    for at, names in by_point.items():
        x, y = plot.at((float(line.x[at]), float(line.y[at])))
        value = figure(float(line.y[at]))
        whose = f"{line.name}: " if line.name else ""
        title = f"{whose}{', '.join(names)}: {value} at {figure(float(line.x[at]))}"
        marks.append(Mark(x, y, tuple(names), value, title))
    return marks


# -- axes ------------------------------------------------------------------------------------------


def _plot(strokes: list[_Stroke], log_y: bool, *, right: float, ends: Point) -> _Plot:
    """Axes around all points; `ends` are the pixels of the top and the bottom."""
    ys = [y for s in strokes for piece in s.pieces for _, y in piece]
    up = Scale.over(ys, ends[1], ends[0], log=log_y, pad=True)
    if not log_y and up.low < 0 <= min(ys):
        up = up._replace(low=0.0)
    left = max((width_of(text, "draw-small") for _, text in up.ticks(28)), default=0.0) + 10
    xs = [x for s in strokes for piece in s.pieces for x, _ in piece]
    return _Plot(Scale.over(xs, left + _INSET, right - _INSET, pad=False), up)


def _axes(plot: _Plot, x_label: str, y_label: str, width: float) -> list[str]:
    left, _, right, bottom = plot.frame
    grid, parts = [], []
    for value, text in plot.up.ticks(28):
        y = plot.up.at(value)
        grid.append(f"M{number(left)} {number(y)}H{number(right)}")
        parts.append(label(left - 6, y + 4, text, look="draw-quiet draw-small", anchor="end"))
    for value, text in plot.across.ticks(64):
        x = plot.across.at(value)
        wide = width_of(text, "draw-small") / 2
        near = min(max(x, wide), width - wide)
        grid.append(f"M{number(x)} {number(bottom)}v4")
        parts.append(label(near, bottom + 15, text, look="draw-quiet draw-small", anchor="middle"))
    return [
        f'<path class="draw-grid" d="{"".join(grid)}"/>',
        f'<path class="draw-axis" d="M{number(left)} {number(bottom)}H{number(right)}"/>',
        *parts,
        label(0, 12, y_label, look="draw-quiet", room=width),
        label(right, bottom + 30, x_label, look="draw-quiet", anchor="end", room=right),
    ]


def _path(stroke: _Stroke, pieces: list[list[Point]]) -> str:
    """One path; a piece of a single point is a dot."""
    data = ""
    for piece in pieces:
        start, *steps = (f"{number(x)} {number(y)}" for x, y in piece)
        data += f"M{start}" + ("L" + " ".join(steps) if steps else "")
    title = f"<title>{escaped(stroke.line.name)}</title>" if stroke.line.name else ""
    path = f'<path class="draw-line {stroke.look}" stroke-linecap="round"{stroke.dashes} '
    path += f'd="{data}">{title}</path>'
    single = [piece[0] for piece in pieces if len(piece) == 1]
    dots = "".join(f'<circle cx="{number(x)}" cy="{number(y)}" r="2.5"/>' for x, y in single)
    return path + (f'<g class="draw-dot {stroke.look}">{dots}</g>' if dots else "")


# -- names -----------------------------------------------------------------------------------------


def _end_places(named: list[_Stroke], plot: _Plot) -> list[float] | None:
    """Heights of the labels beside the line ends, pushed apart; None if lines end too early or too
    close together, or are too many to distinguish."""
    ends = [plot.at(s.end) for s in named]
    frame = plot.frame
    early = frame.right - 0.08 * (frame.right - frame.left)
    if len(named) > KINDS or any(x < early for x, _ in ends):
        return None
    order = sorted(range(len(ends)), key=lambda at: ends[at][1])
    places = [0.0] * len(ends)
    floor = frame.top
    for at in order:
        floor = places[at] = max(ends[at][1], floor)
        floor += _APART
    ceiling = frame.bottom + 2
    for at in reversed(order):
        ceiling = places[at] = min(places[at], ceiling)
        ceiling -= _APART
    moved = max(abs(place - y) for place, (_, y) in zip(places, ends, strict=True))
    return places if moved <= _MOVED and min(places) >= 8 else None


def _direct(named: list[_Stroke], places: list[float], plot: _Plot, room: float) -> list[str]:
    parts = []
    for stroke, y in zip(named, places, strict=True):
        x, end = plot.at(stroke.end)
        if abs(y - end) > 3:
            data = f"M{number(x + 1)} {number(end)}L{number(plot.frame.right - 1)} {number(y)}"
            parts.append(f'<path class="draw-axis" d="{data}"/>')
        text = label(plot.frame.right + 1, y + 4, stroke.line.name, room=room - 1)
        parts.append(text)
    return parts


def _legend_rows(named: list[_Stroke], width: float) -> list[tuple[_Stroke, float, int]]:
    """Line, left end and row of each entry; lines beyond the kinds share one."""
    entries = [s for s in named if s.kind >= 0]
    beyond = [s for s in named if s.kind < 0]
    if beyond:
        name = f"{len(beyond):,} more" if len(beyond) > 1 else beyond[0].line.name
        entries.append(beyond[0]._replace(line=Line(name, (), ())))
    entries_placed, x, row = [], 0.0, 0
    for stroke in entries:
        wide = 34 + min(width_of(shown(stroke.line.name)), width / 2) + 14
        if x and x + wide > width:
            x, row = 0.0, row + 1
        entries_placed.append((stroke, x, row))
        x += wide
    return entries_placed


def _legend(rows: list[tuple[_Stroke, float, int]]) -> list[str]:
    parts = []
    for stroke, x, row in rows:
        y = 26 + _ROW * row
        path = f'<path class="draw-line {stroke.look}"{stroke.dashes} '
        parts.append(f'{path}d="M{number(x)} {number(y)}h26"/>')
        parts.append(label(x + 32, y + 4, stroke.line.name, room=320))
    return parts
