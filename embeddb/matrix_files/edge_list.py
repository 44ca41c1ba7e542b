"""Edge lists as SNAP, KONECT and the Network Repository publish them.

One edge per line: two vertex ids, anything after them (weight, time) is ignored; blanks or commas
between; `#` and `%` start comments. The matrix is square and has exactly the edges of the file: an
undirected graph listed once is not mirrored.

Ids become row and column numbers like this. If the smallest id is 1 the file counts from 1 and 1
is subtracted. Then, if the largest id is below max(1024, 4 x distinct ids), ids are kept and
n = largest + 1 (vertices without edges are empty rows). Otherwise ids are labels and are numbered
in ascending order. A SNAP comment `# Nodes: N Edges: E` is checked: fewer than E edges is an error.
"""

from __future__ import annotations

import io
import re
import warnings

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import LONGEST_LINE, Source, read_all

__all__ = ["read"]

_COMMENTS = b"#%"
_COMMENT = re.compile(rb"[#%][^\n]*")
#: Whole lines without an edge, any number of them.
_EMPTY_LINES = re.compile(rb"^(?:[ \t\r]*(?:[#%][^\n]*)?\n)+", re.MULTILINE)
_SNAP_SIZES = re.compile(rb"\bEdges:?\s+(\d{1,18})\b", re.IGNORECASE)
#: Bytes that an edge takes while it is read.
_EDGE_BYTES = 64
_ROW = re.compile(r" at row (\d+)")
_KEPT_BELOW, _KEPT_RATIO = 1024, 4


def read(source: Source) -> Pattern:
    """Raises: MatrixError, with the line for ids that are not numbers or are negative."""
    text = read_all(source)
    _check_lines(source, text)
    edges = _edges(source, text)
    if edges.size and edges.min() < 0:
        row = int(np.argmax((edges < 0).any(axis=1)))
        raise source.error("negative vertex id", line=_line_of(text, row))
    promised = _promised(text)
    if promised > len(edges):
        raise source.error(f"{promised} edges promised, {len(edges)} found")
    source.check_sizes((0, 0), len(edges), entry_bytes=3)
    del text
    numbered, n = _numbered(edges)
    rows, cols = numbered[:, 0], numbered[:, 1]
    return Pattern.from_coo((n, n), rows, cols, name=source.name, group=source.group)


def _check_lines(source: Source, text: bytes) -> None:
    """Raises: MatrixError for more lines, or longer ones, than may be held."""
    edges = text.count(b"\n") + 1
    source.check_memory(_EDGE_BYTES * edges, f"{edges} lines")
    at = 0
    while len(text) - at > LONGEST_LINE:
        end = text.rfind(b"\n", at, at + LONGEST_LINE)
        if end < 0:
            raise source.error(f"a line of more than {LONGEST_LINE} bytes")
        at = end + 1


def _promised(text: bytes) -> int:
    """The edges that SNAP's comment speaks of, 0 without one."""
    for line in text[:65536].split(b"\n"):
        found = _SNAP_SIZES.search(line) if line.lstrip().startswith(b"#") else None
        if found:
            return int(found[1])
    return 0


def _without_comments(text: bytes) -> bytes:
    """Some lines at a time: a match takes a hundred bytes."""
    bare, at = io.BytesIO(), 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + 2 * LONGEST_LINE) + 1 or len(text)
        bare.write(_COMMENT.sub(b"", _EMPTY_LINES.sub(b"", text[at:end])))
        at = end
    return bare.getvalue()


def _edges(source: Source, text: bytes) -> NDArray[np.int64]:
    # Taken off here: numpy looks for two kinds of comments line by line in Python.
    bare = _without_comments(text) if any(mark in text for mark in _COMMENTS) else text
    if b"," in bare:
        bare = bare.replace(b",", b" ")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            return np.loadtxt(
                io.BytesIO(bare),
                dtype=np.int64,
                comments=None,
                usecols=(0, 1),
                ndmin=2,
                encoding="latin-1",
            )
    except ValueError as error:
        found = _ROW.search(str(error))
        # numpy counts rows from 0 in one message and from 1 in the other
        back = 1 if "invalid column index" in str(error) else 0
        line = _line_of(text, int(found[1]) - back) if found else None
        raise source.error(
            "an edge is two whole numbers below 2^63, then anything", line=line
        ) from error


def _line_of(text: bytes, row: int) -> int | None:
    """The line (from 1) of a data row (from 0); comments and blank lines are no rows."""
    for number, line in enumerate(io.BytesIO(text), 1):
        bare = line.strip()
        if not bare or bare[0] in _COMMENTS:
            continue
        if row == 0:
            return number
        row -= 1
    return None


def _numbered(edges: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Edges as row and column numbers, and the number of rows; see the module's docstring."""
    if not edges.size:
        return edges, 0
    if edges.min() == 1:
        edges -= 1
    largest = int(edges.max())
    if largest < _KEPT_BELOW:
        return edges, largest + 1
    distinct = np.unique(edges)
    if largest < _KEPT_RATIO * distinct.size:
        return edges, largest + 1
    return np.searchsorted(distinct, edges), int(distinct.size)
