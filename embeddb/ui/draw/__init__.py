"""Charts as SVG: a pattern, curves, dots on a map, bars, boxes and arrows. Light, dark, on paper,
without colour.

Every function returns one `<svg>` for a page that has `style()`; `standalone`, `png` and `write`
make files of it. `key` is the prefix of the ids inside: two charts on a page need two keys. Texts
are untrusted: they are escaped and truncated here.
"""

from embeddb.ui.draw.element import style
from embeddb.ui.draw.files import check_target, png, stack, standalone, write
from embeddb.ui.draw.lines import Line, curves
from embeddb.ui.draw.points import Dot, dots
from embeddb.ui.draw.rows import Bar, bars
from embeddb.ui.draw.workload import Node, boxes, graph, spy

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
