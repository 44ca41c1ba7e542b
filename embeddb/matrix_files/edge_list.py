"""Edge lists in the forms of SNAP, KONECT, the Network Repository and networkx.

One edge per line: two vertex ids, anything after them (weight, time, attributes) is ignored;
blanks, commas or semicolons between; `#` and `%` start comments. The matrix is square and has
exactly the edges of the file: an undirected graph listed once is not mirrored, unless its header
states it.

Mapping of ids to row and column numbers: if the smallest id is 1 the file counts from 1 and 1 is
subtracted. Then, if the largest id is below max(1024, 4 x distinct ids), ids are kept and n =
largest + 1 (vertices without edges are empty rows). Otherwise ids are labels and are numbered in
ascending order.

Headers that are read:

- `# Nodes: N Edges: E` (SNAP): n is at least N, so that trailing vertices without edges are kept;
  fewer than E edges, or more distinct ids than N, are an error.
- `% bip WEIGHTS`, `% sym …`, `% asym …`, then `% EDGES ROWS COLUMNS` or nothing (KONECT): ids count
  from 1. A bipartite network is a matrix of ROWS x COLUMNS; a symmetric one is mirrored.
- a first row `source,target,…` or the like.

Refused as ambiguous: rows of numbers that differ in length (adjacency lists, METIS) or have more
than four, and a first row that is the number of vertices and edges.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import (
    LONGEST_LINE,
    Source,
    line_starts,
    mirrored,
    read_text,
    words_by_line,
)

_COMMENTS = b"#%"
_COMMENT = re.compile(rb"[#%][^\n]*")
#: Any number of whole lines without an edge.
_EMPTY_LINES = re.compile(rb"^(?:[ \t\r]*(?:[#%][^\n]*)?\n)+", re.MULTILINE)
_HEADER_BYTES = 65536
#: A line that is neither blank nor a comment, up to its first character.
_FIRST_ROW = re.compile(rb"^[^\S\n]*[^\s#%]", re.MULTILINE)
#: A count, perhaps with separators of thousands.
_COUNT = rb"(\d{1,3}(?:[,.'_]\d{3}){1,5}|\d{1,18})\b"
_SNAP_NODES = re.compile(rb"\b(?:Nodes|Vertices):\s*" + _COUNT, re.IGNORECASE)
_SNAP_EDGES = re.compile(rb"\bEdges:?\s+" + _COUNT, re.IGNORECASE)
_KONECT = re.compile(rb"[#%]\s*(bip|sym|asym)(?:\s+(\w+))?", re.IGNORECASE)
_KONECT_SIZES = re.compile(rb"[#%]\s*(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})")
#: Column names of the ends of an edge in a first row of words.
HEADINGS = re.compile(
    rb"\s*\"?(source|src|from|fromnodeid|from_node|u|node_?1|id_?1)\"?\s*[\s,;]\s*"
    rb"\"?(target|dst|dest|to|tonodeid|to_node|v|node_?2|id_?2)\"?"
    rb"\s*([\s,;].*)?",
    re.IGNORECASE,
)
#: Length of the header row that is examined, in bytes.
MOST_HEADING = 256
_SEMICOLON = re.compile(rb"\s*\d+[ \t]*;")
#: Peak memory per edge while reading, in bytes.
_EDGE_BYTES = 64
_ROW = re.compile(r" at row (\d+)")
_KEPT_BELOW, _KEPT_RATIO = 1024, 4
#: Largest number of columns without a header: two ids, a weight and a time.
_MOST_COLUMNS = 4
#: Table of the bytes of purely numeric rows.
_NUMERIC = np.zeros(256, bool)
_NUMERIC[list(b"0123456789+-.eEdDnNaAiIfF \t\r\n\v\f")] = True
_OTHER = "a METIS graph is named .graph, a hypergraph .hgr; an edge list has two to four columns"


@dataclass(frozen=True, slots=True)
class _Header:
    """`kind`: bip, sym, asym or nothing; `edges` 0 and `shape` (0, 0) where unstated."""

    kind: str = ""
    edges: int = 0
    shape: tuple[int, int] = (0, 0)


def read(source: Source) -> Pattern:
    """Read the edges. Raises: MatrixError, with the line for ids that are not numbers or are
    negative, and for rows that are not edges."""
    text = read_text(source)
    header = _header(source, text)
    text, named = _without_headings(text)
    edges = pairs(source, text, named=named)
    if edges.size and edges.min() < 0:
        row = int(np.argmax((edges < 0).any(axis=1)))
        raise source.error("negative vertex id", line=line_of(text, row))
    if not (named or header.kind):
        _check_first(source, text, edges)
    if header.edges > len(edges):
        raise source.error(f"the header states {header.edges} edges, the file has {len(edges)}")
    source.check_sizes((0, 0), len(edges), entry_bytes=3)
    if header.kind == "bip":
        shape = _bipartite(source, text, edges, header.shape)
        rows, cols = edges[:, 0] - 1, edges[:, 1] - 1
    else:
        numbered, n = _numbered(source, edges, header)
        rows, cols, shape = numbered[:, 0], numbered[:, 1], (n, n)
    del text
    source.check_sizes(shape, len(edges), entry_bytes=3)
    if header.kind == "sym":
        rows, cols = mirrored(rows, cols)
    return Pattern.from_coo(shape, rows, cols)


def _header(source: Source, text: bytes) -> _Header:
    """Header of the network, from its comments."""
    lines = [
        line.strip()
        for line in text[:_HEADER_BYTES].split(b"\n")
        if line.lstrip()[:1] in (b"#", b"%")
    ]
    at, konect = next(
        ((at, one) for at, one in enumerate(map(_KONECT.fullmatch, lines)) if one), (0, None)
    )
    if konect is None:
        edges, nodes = (
            next((int(re.sub(rb"\D", b"", one[1])) for one in map(stated.search, lines) if one), 0)
            for stated in (_SNAP_EDGES, _SNAP_NODES)
        )
        return _Header("", edges, (nodes, nodes))
    if konect[2] == b"dynamic":
        raise source.error(
            "a dynamic network, whose edges change over time, is not a single matrix"
        )
    sizes = next(filter(None, map(_KONECT_SIZES.fullmatch, lines[at:])), None)
    edges, m, n = map(int, sizes.groups()) if sizes is not None else (0, 0, 0)
    return _Header(konect[1].decode().lower(), edges, (m, n))


def _without_headings(text: bytes) -> tuple[bytes, bool]:
    """The text with a header row turned into a comment, and true if it had one."""
    row = _FIRST_ROW.search(text, 0, _HEADER_BYTES)
    at = row.start() if row else 0
    heading = text[at : at + MOST_HEADING].partition(b"\n")[0]  # may end behind `_HEADER_BYTES`
    if row is None or HEADINGS.fullmatch(heading) is None:
        return text, False
    return text[:at] + b"#" + text[at:], True


def pairs(source: Source, text: bytes, *, named: bool = False) -> NDArray[np.int64]:
    """int64[e, 2]: the first two integers of each row; comments are skipped. Unless its columns are
    `named`, rows of numbers have equally many. Raises: MatrixError, with the line."""
    _check_lines(source, text)
    # Comments are removed here: numpy handles two kinds of comments line by line in Python.
    bare = _without_comments(text) if any(mark in text for mark in _COMMENTS) else text
    # Where semicolons separate, a comma may be that of a decimal fraction.
    separator = b";" if _SEMICOLON.match(bare) else b","
    if separator in bare:
        bare = bare.replace(separator, b" ")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            edges = np.loadtxt(
                io.BytesIO(bare),
                dtype=np.int64,
                comments=None,
                usecols=(0, 1),
                ndmin=2,
                encoding="latin-1",
            )
    except ValueError as error:
        match = _ROW.search(str(error))
        # numpy counts rows from 0 in one message and from 1 in the other
        back = 1 if "invalid column index" in str(error) else 0
        line = line_of(text, int(match[1]) - back) if match else None
        raise source.error(
            "an edge must begin with two whole numbers below 2^63", line=line
        ) from error
    if not named:
        _check_columns(source, text, bare)
    return edges


def _check_lines(source: Source, text: bytes) -> None:
    """Check number and length of the lines against the memory limits. Raises: MatrixError."""
    edges = text.count(b"\n") + 1
    source.check_memory(_EDGE_BYTES * edges, f"{edges} lines")
    at = 0
    while len(text) - at > LONGEST_LINE:
        end = text.rfind(b"\n", at, at + LONGEST_LINE)
        if end < 0:
            raise source.error(f"a line of more than {LONGEST_LINE} bytes")
        at = end + 1


def _without_comments(text: bytes) -> bytes:
    """Remove comments, in chunks of lines: a match takes a hundred bytes."""
    bare = io.BytesIO()
    for block in _blocks(text):
        bare.write(_COMMENT.sub(b"", _EMPTY_LINES.sub(b"", block)))
    return bare.getvalue()


def _blocks(text: bytes) -> Iterator[bytes]:
    """Chunks of whole lines."""
    at = 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + 2 * LONGEST_LINE) + 1 or len(text)
        yield text[at:end]
        at = end


def _check_columns(source: Source, text: bytes, bare: bytes) -> None:
    """Check rows of numbers. Raises: MatrixError for the first one with too many columns, or
    another number of columns than before."""
    width, row = 0, 0
    for block in _blocks(bare):
        data = np.frombuffer(block, np.uint8)
        starts = line_starts(data)
        counts = words_by_line(data, starts)
        plain = _NUMERIC[data]
        numeric = counts > 0
        if not plain.all():
            numeric &= np.logical_and.reduceat(plain, starts)
        numeric, counts = numeric[counts > 0], counts[counts > 0]
        if not width and numeric.any():
            width = int(counts[np.argmax(numeric)])
        wrong = numeric & ((counts != width) | (width > _MOST_COLUMNS))
        if wrong.any():
            at = int(np.argmax(wrong))
            reason = f"{counts[at]} numbers in a row"
            reason += f" after rows of {width}" if counts[at] != width else ""
            line = line_of(text, row + at)
            raise source.error(f"{reason}: not an edge list", line=line, hint=_OTHER)
        row += counts.size


def _check_first(source: Source, text: bytes, edges: NDArray[np.int64]) -> None:
    """Check the first row. Raises: MatrixError if it may be the number of vertices and edges, in
    any order, or rows, columns and entries."""
    rest = edges[1:]
    if len(rest) < 2:
        return
    line = line_of(text, 0) or 1
    words = text.split(b"\n", line)[line - 1].replace(b",", b" ").replace(b";", b" ").split()
    third = int(words[2]) if words[2:] and words[2].isdigit() and len(words[2]) < 19 else -1
    (one, two), count, largest = edges[0].tolist(), len(rest), int(rest.max())
    if (
        (count in (two, 2 * two) and largest <= one)
        or (count == one and largest <= two)
        or (count == third and rest[:, 0].max() <= one and rest[:, 1].max() <= two)
    ):
        raise source.error(
            f"{b' '.join(words[:3]).decode('latin-1')!r} may be the sizes of the {count} rows that "
            "follow, or an edge",
            line=line,
            hint=f"if sizes, begin the line with #; if an edge, move it behind another; {_OTHER}",
        )


def line_of(text: bytes, row: int) -> int | None:
    """Line (from 1) of a data row (from 0); comments and blank lines are not rows."""
    for number, line in enumerate(io.BytesIO(text), 1):
        bare = line.strip()
        if not bare or bare[0] in _COMMENTS:
            continue
        if row == 0:
            return number
        row -= 1
    return None


def _bipartite(
    source: Source, text: bytes, edges: NDArray[np.int64], sizes: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns: those of the header, else the largest ids."""
    if not edges.size:
        return sizes
    largest = edges.max(axis=0)
    shape = sizes if any(sizes) else (int(largest[0]), int(largest[1]))
    wrong = ((edges < 1) | (edges > np.array(shape))).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        one, two = edges[row]
        raise source.error(
            f"edge {one} {two} lies outside 1..{shape[0]} x 1..{shape[1]} of a bipartite network",
            line=line_of(text, row),
        )
    return shape


def _numbered(
    source: Source, edges: NDArray[np.int64], header: _Header
) -> tuple[NDArray[np.int64], int]:
    """Edges as row and column numbers, and the number of rows; see the module's docstring."""
    nodes = max(header.shape)
    if not edges.size:
        return edges, nodes
    least, largest = int(edges.min()), int(edges.max())
    if least == 1 or (least > 1 and (header.kind or largest == nodes)):
        edges -= 1
        largest -= 1
    if header.kind and nodes and largest >= nodes:
        raise source.error(f"an id exceeds the {nodes} vertices of the header")
    if largest < nodes:
        return edges, nodes
    if largest < _KEPT_BELOW and not nodes:
        return edges, largest + 1
    distinct = np.unique(edges)
    if nodes and distinct.size > nodes:
        raise source.error(f"the header states {nodes} vertices, the file has {distinct.size}")
    if largest < max(_KEPT_BELOW, _KEPT_RATIO * distinct.size):
        return edges, largest + 1
    return np.searchsorted(distinct, edges), max(nodes, int(distinct.size))


# Graphs of the 9th DIMACS implementation challenge (`.gr`), arcs as listed.
#
# `c` begins a comment, `p sp NODES ARCS` is the only header, `a TAIL HEAD LENGTH` an arc; nodes
# count from 1. Source: Demetrescu, Goldberg, Johnson, "9th DIMACS Implementation Challenge,
# Shortest Paths" (2006), file formats.

_HEADER = re.compile(rb"\np[ \t]+(\w+)[ \t]+(\d{1,18})[ \t]+(\d{1,18})[ \t\r]*(?=\n)")


def read_dimacs(source: Source) -> Pattern:
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
    return Pattern.from_coo((n, n), *(edges.T - 1))
