"""Tables for a terminal; imported only if there is one, since importing rich is slow."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: Smallest width of a text column, and the gap between columns, in characters.
_KEPT, _GAP = 16, 2


def draw(cells: Sequence[Sequence[str]], right: Sequence[bool], *, indent: int) -> bool:
    """Draw rows of text, the first of them the heads, on stdout, as wide as the terminal allows.

    Columns with `right` are numbers and are never broken; one that is `-` in every row is left out.
    Returns false, with nothing drawn, if the terminal is too narrow to show everything else.
    """
    filled = [at for at in range(len(right)) if {row[at] for row in cells[1:]} != {"-"}]
    cells, right = [[row[at] for at in filled] for row in cells], [right[at] for at in filled]
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    widths = _widths(cells, right, console.width - indent)
    if widths is None:
        return False
    # One space of padding and one of the box's make the gap.
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, width, numbers in zip(cells[0], widths, right, strict=True):
        drawn.add_column(
            Text(_broken(name, width), style="bold"),
            justify="right" if numbers else "left",
            width=width,
            overflow="fold",
        )
    for row in cells[1:]:
        drawn.add_row(*(Text(_broken(x, w)) for x, w in zip(row, widths, strict=True)))
    console.print(Padding(drawn, (0, 0, 0, indent)))
    return True


def _widths(cells: Sequence[Sequence[str]], right: Sequence[bool], room: int) -> list[int] | None:
    """Widths of columns that fit a room, the widest shrunk first; None if they cannot fit."""
    columns = list(zip(*cells, strict=True))
    widths = [max(map(_wide, column)) for column in columns]
    least = []
    for column, width, numbers in zip(columns, widths, right, strict=True):
        words = max(map(_wide, column[0].split()), default=0)
        body = max(map(_wide, column[1:]), default=0) if numbers else min(width, _KEPT)
        least.append(max(words, body))
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    while excess > 0:
        spare = [w - low for w, low in zip(widths, least, strict=True)]
        most = max(spare)
        if most <= 0:
            return None
        widths[spare.index(most)] -= 1
        excess -= 1
    return widths


def _wide(text: str) -> int:
    return Text(text).cell_len


def _broken(text: str, width: int) -> str:
    """Text broken after commas and spaces to fit a width; rich folds the rest."""
    lines = [""]
    for piece in re.findall(r"[^, ]*[, ]?", text):
        if lines[-1] and _wide(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)
