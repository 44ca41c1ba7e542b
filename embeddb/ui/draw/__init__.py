"""Drawings as SVG: a pattern, curves, dots on a map, bars, boxes and arrows. Light, dark, on paper,
without colour.

Every function returns one `<svg>` to set into a page that has `style()`; `standalone`, `png` and
`write` make files of it. `key` starts the ids inside: two drawings of one page need two keys. Texts
may come from anywhere: they are escaped and bounded here.
"""

from embeddb.ui.draw.element import style
from embeddb.ui.draw.files import check_target, png, stack, standalone, write
from embeddb.ui.draw.graph import Node, boxes, graph
from embeddb.ui.draw.lines import Line, curves
from embeddb.ui.draw.matrix import spy
from embeddb.ui.draw.points import Dot, dots
from embeddb.ui.draw.rows import Bar, bars

__all__ = [
    "Bar",
    "Dot",
    "Line",
    "Node",
    "bars",
    "boxes",
    "check_target",
    "curves",
    "dots",
    "graph",
    "png",
    "spy",
    "stack",
    "standalone",
    "style",
    "write",
]
