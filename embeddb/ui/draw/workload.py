"""Pictures of a workload: `spy` of non-zeros, `graph` of operations, `boxes` of nested loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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


# -- graphs and loops ------------------------------------------------------------------------------

#: Largest number of boxes; further ones are counted, not drawn.
MOST_NODES = 64
_HIGH, _GAP, _BETWEEN = 38.0, 8.0, 26.0
#: Boxes in a row; a larger layer is broken into several rows.
_ACROSS = 4
_HEAD = 3.5


class Node(NamedTuple):
    """A box with two lines of text; `sources` are positions of earlier boxes with arrows to it.
    `strong`: with a thick frame; `marked`: with a bar at its side."""

    text: str
    below: str = ""
    sources: tuple[int, ...] = ()
    strong: bool = False
    marked: bool = False


def graph(nodes: Sequence[Node], *, title: str, width: float = 540, key: str = "graph") -> str:
    """A box for each node below all its sources, in at least as many rows as the longest path has
    nodes; the height follows. Sources that are not before a node are ignored."""
    drawn = list(nodes[:MOST_NODES])
    sources = [[s for s in dict.fromkeys(n.sources) if 0 <= s < at] for at, n in enumerate(drawn)]
    rows = _rows(sources)
    height = max(len(rows) * (_HIGH + _BETWEEN) - _BETWEEN, 0) + 4
    places = _places(rows, sources, width)
    arrows = sum(map(len, sources))
    parts = [f"<desc>{len(nodes):,} operations, {arrows:,} arrows</desc>"]
    # Arrows first: where one must cross a box, the box lies over it.
    parts += [_arrow(places[s], places[at]) for at in range(len(drawn)) for s in sources[at]]
    parts += [_box(node, *places[at]) for at, node in enumerate(drawn)]
    if len(nodes) > len(drawn):
        more = f"and {len(nodes) - len(drawn):,} more"
        parts.append(label(2, height + 14, more, look="draw-quiet"))
        height += 22
    return picture(parts, title=title, key=key, size=(width, height))


def _rows(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Nodes by row. A node without sources is right above its first user."""
    depth = [0] * len(sources)
    for at, some in enumerate(sources):
        depth[at] = max((depth[s] + 1 for s in some), default=0)
    first = [len(sources)] * len(sources)
    for at, some in enumerate(sources):
        for s in some:
            first[s] = min(first[s], depth[at])
    for at, some in enumerate(sources):
        if not some and first[at] < len(sources):
            depth[at] = max(first[at] - 1, 0)
    layers: dict[int, list[int]] = {}
    for at, layer in enumerate(depth):
        layers.setdefault(layer, []).append(at)
    return [
        layers[layer][start : start + _ACROSS]
        for layer in sorted(layers)
        for start in range(0, len(layers[layer]), _ACROSS)
    ]


def _places(
    rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]], width: float
) -> dict[int, tuple[float, float, float]]:
    """Left, top and width of each box. Boxes of a row are ordered by the mean position of their
    sources, and placed as near to it as there is room."""
    wide = (width - 4 - (_ACROSS - 1) * _GAP) / _ACROSS
    placed: dict[int, tuple[float, float, float]] = {}
    for at, row in enumerate(rows):
        wanted = {}
        for node in row:
            centres = [placed[s][0] + placed[s][2] / 2 for s in sources[node] if s in placed]
            wanted[node] = sum(centres) / len(centres) if centres else width / 2
        order = sorted(row, key=lambda node: (wanted[node], node))
        span = len(row) * (wide + _GAP) - _GAP
        middle = sum(wanted.values()) / len(row)
        left = min(max(middle - span / 2, 2.0), width - 2 - span)
        for place, node in enumerate(order):
            top = 2 + at * (_HIGH + _BETWEEN)
            placed[node] = (left + place * (wide + _GAP), top, wide)
    return placed


def _box(node: Node, x: float, y: float, wide: float) -> str:
    thick = " draw-thick" if node.strong else ""
    look = "draw-strong" if node.strong or node.marked else ""
    mark = (
        f'<rect class="draw-chosen" x="{number(x)}" y="{number(y)}" width="4" '
        f'height="{number(_HIGH)}"/>'
        if node.marked
        else ""
    )
    return (
        f'<rect class="draw-axis draw-box{thick}" x="{number(x)}" y="{number(y)}" '
        f'width="{number(wide)}" height="{number(_HIGH)}" rx="4"/>{mark}'
        + label(x + 8, y + 16, node.text, look=look, room=wide - 14)
        + label(x + 8, y + 31, node.below, look="draw-quiet draw-small", room=wide - 14)
    )


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    x, y = start[0] + start[2] / 2, start[1] + _HIGH
    to, tip = end[0] + end[2] / 2, end[1]
    bend = max((tip - y) / 2, 8.0)
    line = (
        f"M{number(x)} {number(y)}C{number(x)} {number(y + bend)} {number(to)} "
        f"{number(tip - bend)} {number(to)} {number(tip - 1)}"
    )
    head = f"M{number(to - _HEAD)} {number(tip - 6)}L{number(to)} {number(tip - 1)}"
    return f'<path class="draw-axis" d="{line}{head}L{number(to + _HEAD)} {number(tip - 6)}"/>'


#: Pixels from a box to the inner one, and of a line of text.
_INSET, _LINE = 12.0, 22.0
#: Largest numbers of loops and lines; further ones are counted, not drawn.
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
    """A box for each loop from the outermost, with its text at the top, and the lines of the body
    in the innermost; `strong` are positions of parallel loops, drawn with a thick frame."""
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
