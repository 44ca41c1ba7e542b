"""Graphs of the 9th DIMACS implementation challenge (`.gr`), arcs as listed.

`c` begins a comment, `p sp NODES ARCS` is the only header, `a TAIL HEAD LENGTH` an arc; nodes count
from 1. Source: Demetrescu, Goldberg, Johnson, "9th DIMACS Implementation Challenge, Shortest Paths"
(2006), file formats.
"""

from __future__ import annotations

import re

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.edge_list import line_of, pairs
from embeddb.matrix_files.source import Source, read_text

_HEADER = re.compile(rb"\np[ \t]+(\w+)[ \t]+(\d{1,18})[ \t]+(\d{1,18})[ \t\r]*(?=\n)")


def read(source: Source) -> Pattern:
    """Read the arcs. Raises: MatrixError, with the line."""
    text = b"\n" + read_text(source) + b"\n"
    sizes = _HEADER.search(text)
    if sizes is None:
        raise source.error(
            "no line 'p sp NODES ARCS'", hint="only .gr files with that header are read"
        )
    line = text.count(b"\n", 0, sizes.start()) + 1
    if sizes[1] != b"sp":
        shown = sizes[1].decode("latin-1")
        raise source.error(f"a DIMACS problem {shown!r}; only 'sp' is read", line=line)
    n, arcs = int(sizes[2]), int(sizes[3])
    source.check_sizes((n, n), arcs, entry_bytes=6, line=line)
    marked = text.count(b"\na ") + text.count(b"\na\t")
    if marked != arcs:
        raise source.error(
            f"the header states {arcs} arcs, {marked} lines begin with 'a'", line=line
        )
    text = text[: sizes.start() + 1] + b"#" + text[sizes.start() + 1 :]
    for mark, instead in ((b"\nc", b"\n#"), (b"\na ", b"\n"), (b"\na\t", b"\n")):
        text = text.replace(mark, instead)
    text = text[1:]
    edges = pairs(source, text)
    outside = (edges < 1) | (edges > n)
    if outside.any():
        row = int(np.argmax(outside.any(axis=1)))
        raise source.error(f"a node lies outside 1..{n}", line=line_of(text, row))
    if len(edges) != arcs:
        raise source.error(f"the header states {arcs} arcs, {len(edges)} lines are arcs", line=line)
    rows, cols = edges[:, 0] - 1, edges[:, 1] - 1
    return Pattern.from_coo((n, n), rows, cols, name=source.name, group=source.group)
