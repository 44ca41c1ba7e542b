"""`spy`: picture of the non-zeros of a pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.ui.draw.element import figure, identifier, label, number, picture

#: Cells on a side of a thumbnail, and byte steps per halving of the density; 255 is full.
_SIDE = 32
_STEPS = 10.0
#: Darkness of the levels, thinnest first, and the smallest byte steps of each.
_DARKNESS = (0.2, 0.34, 0.48, 0.62, 0.76, 0.88, 1.0)
_SPAN = 2.0
#: Cells outlined by an occlusion map: at least this share of the largest value, and how many.
_ATTENDED = 0.25
_MOST_ATTENDED = 48
#: Smallest cell, in pixels, with its number written, and how many numbers, strongest first.
_READABLE = 24
_MOST_NUMBERS = 9


def spy(
    thumbnail: bytes,
    *,
    title: str,
    width: float = 128,
    attention: Sequence[float] = (),
    side: int = 0,
    key: str = "spy",
) -> str:
    """Picture of a thumbnail (uint8[1024], row-major, log density; 0 is empty), shaded from the
    thinnest to the densest cell that is not empty; if these hardly differ, in a middle shade. A
    thumbnail of another length is drawn as unknown.

    `attention` is the occlusion map, a number for each cell of a `side` x `side` grid, row by row:
    cells with at least a quarter of the largest are outlined, the strongest half hatched.

    Raises: UsageError if `attention` is not of `side` x `side`.
    """
    if len(attention) != side * side:
        raise UsageError(f"attention of {side} x {side} cells has {len(attention)} numbers")
    frame = f'<rect class="draw-axis" x=".5" y=".5" width="{number(width - 1)}" '
    frame += f'height="{number(width - 1)}"/>'
    size = (width, width)
    if len(thumbnail) != _SIDE * _SIDE:
        look = "draw-quiet draw-small"
        text = label(width / 2, width / 2 + 4, "no picture", look=look, anchor="middle", room=width)
        return picture([frame, text], title=f"{title}: no picture", key=key, size=size)
    steps = np.frombuffer(thumbnail, dtype=np.uint8).reshape(_SIDE, _SIDE)
    faint = ' opacity=".45"' if side else ""
    cells = f'<g class="draw-cells"{faint} transform="scale({width / _SIDE:.6g}) translate(0 .5)">'
    parts = [f"<desc>{_about(steps)}</desc>", cells, *_levels(steps), "</g>", frame]
    if side:
        parts += _attended(np.array(attention, dtype=np.float64), side, width, key)
    return picture(parts, title=title, key=key, size=size)


def _about(steps: NDArray[np.uint8]) -> str:
    if not steps.any():
        return "no non-zeros"
    least, most = (
        100 * 2 ** ((int(s) - 255) / _STEPS) for s in (steps[steps > 0].min(), steps.max())
    )
    return f"darker is denser (log scale): {figure(least)} to {figure(most)} % of a cell"


def _levels(steps: NDArray[np.uint8]) -> Iterable[str]:
    """One path for each darkness: runs of equal cells as horizontal strokes."""
    nonzero, count = steps[steps > 0].astype(np.float64), len(_DARKNESS)
    if not nonzero.size:
        return
    middle = (nonzero.min() + nonzero.max()) / 2
    span = max((nonzero.max() - nonzero.min() + 1) / count, _SPAN)
    level = np.floor(count / 2 + (steps - middle) / span).astype(np.int64)
    level = np.where(steps > 0, np.clip(level, 0, count - 1), -1)
    for at, darkness in enumerate(_DARKNESS):
        data = "".join(_row(y, row) for y, row in enumerate(level == at))
        if data:
            yield f'<path stroke-opacity="{darkness:g}" d="{data}"/>'


def _row(y: int, row: NDArray[np.bool_]) -> str:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    starts, ends = edges[::2].tolist(), edges[1::2].tolist()
    if not starts:
        return ""
    data, pen = f"M{starts[0]} {y}", starts[0]
    for start, end in zip(starts, ends, strict=True):
        if start != pen:
            data += f"m{start - pen} 0"
        data += f"h{end - start}"
        pen = end
    return data


def _attended(values: NDArray[np.float64], side: int, width: float, key: str) -> list[str]:
    values = np.where(np.isfinite(values), values, 0.0)
    most = float(values.max())
    if most <= 0:
        return []
    order = np.argsort(-values, kind="stable")[:_MOST_ATTENDED]
    chosen = [int(at) for at in order if values[at] >= _ATTENDED * most]
    cell = width / side
    hatch = f"{identifier(key)}-hatch"
    parts = [
        f'<pattern id="{hatch}" width="5" height="5" patternUnits="userSpaceOnUse">'
        '<path class="draw-hatch" d="M-1 6L6-1M-1 1L1-1M4 6L6 4"/></pattern>'
        '<g class="draw-attended">'
    ]
    for at in reversed(chosen):  # the strongest on top
        row, column = divmod(at, side)
        share = values[at] / most
        inset = 0.5 + share
        fill = f"url(#{hatch})" if share >= 0.5 else "none"
        events = ' pointer-events="all"' if fill == "none" else ""
        parts.append(
            f'<rect x="{number(column * cell + inset)}" y="{number(row * cell + inset)}" '
            f'width="{number(cell - 2 * inset)}" height="{number(cell - 2 * inset)}" '
            f'fill="{fill}" stroke-width="{number(0.6 + 2 * share)}"{events}><title>row '
            f"{row + 1}, column {column + 1} of {side}: {figure(float(values[at]))}</title></rect>"
        )
    if cell >= _READABLE:
        for at in chosen[:_MOST_NUMBERS]:
            row, column = divmod(at, side)
            x, y = (column + 0.5) * cell, (row + 0.5) * cell + 4
            text = figure(float(f"{values[at]:.2g}"))
            parts.append(
                label(x, y, text, look="draw-halo draw-small draw-strong", anchor="middle")
            )
    return [*parts, "</g>"]
