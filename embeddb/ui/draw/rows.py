"""`bars`: horizontal bar chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from embeddb.core.wording import factor
from embeddb.ui.draw.axes import Scale, drawable
from embeddb.ui.draw.element import figure, label, number, path_of, picture, shown, width_of

#: Largest number of rows; further ones are counted, not drawn.
MOST_BARS = 120
_ROW = 24.0
_THICK = 13.0
#: Labels longer than this share of the width are above their bars, with this extra height.
_BESIDE = 0.4
_ABOVE = 14.0


class Bar(NamedTuple):
    """A row: value, optional interval, note after the value. `marked` rows are highlighted."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    marked: bool = False


def bars(
    rows: Sequence[Bar],
    *,
    title: str,
    unit: str = "",
    reference: float | None = None,
    width: float = 640,
    key: str = "bars",
) -> str:
    """Horizontal bars from zero in the order of `rows`, each with its value; `reference` is a
    dashed line across. The height follows from the rows."""
    shown_rows = rows[:MOST_BARS]
    if not shown_rows:
        text = label(width / 2, 36, "nothing to draw", look="draw-quiet", anchor="middle")
        return picture([text], title=title, key=key, size=(width, 60))
    columns = _Columns.of(shown_rows, unit, width)
    values = [x for row in shown_rows for x in (row.value, row.low, row.high) if x is not None]
    ends = [0.0, *values, *([] if reference is None else [reference])]
    finite = [x for x in ends if drawable(x)]
    low, high = min(finite), max(finite)
    scale = Scale(low, high if high > low else low + 1, columns.start, columns.end)
    top = 20.0 if reference is not None and drawable(reference) else 4.0
    bottom = top + columns.row * len(shown_rows)
    middles = [top + (at + 1) * columns.row - _ROW / 2 for at in range(len(shown_rows))]
    parts = [_shapes(row, y, scale, columns) for row, y in zip(shown_rows, middles, strict=True)]
    if not columns.above:
        parts.append(_upright(scale.at(0), top, bottom, "draw-axis"))
    if top > 4 and reference is not None:
        x, text = scale.at(reference), figure(reference) + shown(unit, 12)
        near = min(max(x, scale.start + width_of(text, "draw-small") / 2), scale.end)
        parts.append(_upright(x, top, bottom, "draw-reference"))
        parts.append(label(near, 13, text, look="draw-quiet draw-small", anchor="middle"))
    for row, y in zip(shown_rows, middles, strict=True):
        parts += _texts(row, y, scale, columns, unit)
    if len(rows) > MOST_BARS:
        text = f"and {len(rows) - MOST_BARS:,} more"
        parts.append(label(columns.start, bottom + 14, text, look="draw-quiet draw-small"))
        bottom += 18
    return picture(parts, title=title, key=key, size=(width, bottom + 4))


class _Columns(NamedTuple):
    """Right end of labels, start and end of bars, and width of the text behind them, in pixels.
    With `above` the labels are too long to be beside the bars."""

    labels: float
    start: float
    end: float
    behind: float
    above: bool

    @classmethod
    def of(cls, rows: Sequence[Bar], unit: str, width: float) -> _Columns:
        labels = max(width_of(shown(row.label), _label_look(row)) + 20 for row in rows)
        notes = [width_of(shown(r.note), "draw-small") + 8 if r.note else 0.0 for r in rows]
        values = [width_of(_value(row, unit), _label_look(row)) for row in rows]
        behind = max(map(sum, zip(values, notes, strict=True))) + 10
        above = labels > _BESIDE * width
        start = 2.0 if above else labels + 8
        behind = min(behind, 0.6 * (width - start))
        return cls(width if above else labels, start, width - behind, behind, above)

    @property
    def row(self) -> float:
        return _ROW + (_ABOVE if self.above else 0)


def _label_look(row: Bar) -> str:
    return "draw-strong" if row.marked else ""


def _value(row: Bar, unit: str) -> str:
    """Value with three significant figures, whole numbers unchanged; gains as in tables."""
    if unit == "×" and drawable(row.value):
        return factor(row.value, sign=unit)
    text = figure(row.value)
    if not math.isfinite(row.value):
        return text
    if "e" not in text and row.value != round(row.value) and abs(row.value) < 999.5:
        text = f"{row.value:#.3g}".rstrip(".")
    return text + shown(unit, 12)


def _shapes(row: Bar, y: float, scale: Scale, columns: _Columns) -> str:
    """Bar, interval, and a mark that does not need colour."""
    parts = []
    look = "draw-chosen" if row.marked else "draw-bar"
    if drawable(row.value):
        start, end = sorted((scale.at(0), scale.at(row.value)))
        parts.append(
            f'<rect class="{look}" x="{number(start)}" y="{number(y - _THICK / 2)}" '
            f'width="{number(end - start)}" height="{number(_THICK)}"/>'
        )
    if row.marked:
        wide = min(width_of(shown(row.label), "draw-strong"), columns.labels - 20)
        x = columns.start + 5 if columns.above else columns.labels - wide - 10
        parts.append(f'<path class="{look}" d="{path_of(3, x, _label_y(y, columns) - 4, 4)}"/>')
    span = _span_of(row)
    if span is not None:
        low, high = (scale.at(x) for x in span)
        data = f"M{number(low)} {number(y - 4)}v8m0-4H{number(high)}m0-4v8"
        parts += [f'<path class="{each}" d="{data}"/>' for each in ("draw-under", "draw-span")]
    return "".join(parts)


def _span_of(row: Bar) -> tuple[float, float] | None:
    if row.low is None or row.high is None or not drawable(row.low) or not drawable(row.high):
        return None
    return row.low, row.high


def _label_y(y: float, columns: _Columns) -> float:
    return y - _ROW / 2 - 1 if columns.above else y + 4


def _texts(row: Bar, y: float, scale: Scale, columns: _Columns, unit: str) -> list[str]:
    look = _label_look(row)
    x, anchor = (columns.labels, "end")
    if columns.above:
        x, anchor = columns.start + (12 if row.marked else 0), "start"
    beside = f"{look} draw-halo".strip()
    room = columns.labels - 20
    name = label(x, _label_y(y, columns), row.label, look=beside, anchor=anchor, room=room)
    right = max(x for x in (0.0, row.value, *(_span_of(row) or ())) if drawable(x))
    x, value = scale.at(right) + 6, _value(row, unit)
    parts = [name, label(x, y + 4, value, look=beside)]
    if row.note:
        x += width_of(value, look) + 8
        room = columns.end + columns.behind - x
        quiet = "draw-quiet draw-small draw-halo"
        parts.append(label(x, y + 4, row.note, look=quiet, room=room))
    return parts


def _upright(x: float, top: float, bottom: float, look: str) -> str:
    return f'<path class="{look}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'
