"""METIS graphs (`.graph`): a line for each vertex, with its neighbours counted from 1.

The first line is `vertices edges [fmt [ncon]]`; an edge is listed by both of its vertices and
counted once. The digits of `fmt` are flags: vertex sizes, `ncon` vertex weights, edge weights. A
blank line is a vertex without neighbours; lines that begin with % are comments.
Source: Karypis, "METIS 5.1.0, A Software Package for Partitioning Unstructured Graphs", manual
(2013), section 4.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import NumberLines, Source, number_lines, read_text

#: Peak memory per entry and per vertex while reading, in bytes.
_ENTRY_BYTES, _VERTEX_BYTES = 96, 48
_NO_GRAPH = "a file of another format needs another ending (an edge list: .edges)"


def read(source: Source) -> Pattern:
    """Read the graph. Raises: MatrixError, with the line, also for an asymmetric graph."""
    text = read_text(source)
    lines = number_lines(source, text)
    n, edges, *rest = header(source, lines, range(2, 5), "vertices, edges, fmt and ncon")
    top = lines.place(0)
    sizes, weighted, edge_weights = flags(source, rest[0] if rest else 0, 3, top)
    if rest[1:] and not weighted:
        raise source.error("ncon is given, but no vertex weights are (fmt 010)", line=top)
    skipped = sizes + (weighted and (rest[1] if rest[1:] else 1))
    source.check_sizes((n, n), 2 * edges, entry_bytes=2, taken=_ENTRY_BYTES, line=top)
    source.check_memory(_VERTEX_BYTES * n, f"{n} vertices", line=top)
    body = _body(source, lines.after(1), n, skipped)
    counts, neighbours = members(source, body, n, skipped=skipped, step=1 + edge_weights)
    if neighbours.size != 2 * edges:
        raise source.error(
            f"the header states {edges} edges, that is {2 * edges} entries, "
            f"but the file has {neighbours.size}",
            line=top,
            hint=_NO_GRAPH,
        )
    counts = np.concatenate([counts, np.zeros(n - counts.size, np.int64)])
    rows = np.repeat(np.arange(n), counts)
    _check_symmetry(source, n, rows, neighbours, body)
    ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Pattern.from_csr((n, n), ptr, neighbours)


def header(source: Source, lines: NumberLines, counts: range, names: str) -> list[int]:
    """Numbers of the first line; their count must be in `counts`."""
    if not len(lines) or int(lines.counts[0]) not in counts:
        raise source.error(
            f"the first line is not {names}",
            line=lines.place(0) if len(lines) else 1,
            hint=_NO_GRAPH,
        )
    return [int(number) for number in lines.numbers[: int(lines.counts[0])]]


def flags(source: Source, fmt: int, count: int, line: int) -> list[int]:
    """Digits of `fmt`, each 0 or 1, most significant first."""
    digits = f"{fmt:0{count}d}"
    if len(digits) != count or not set(digits) <= {"0", "1"}:
        raise source.error(f"fmt {fmt} is none of {count} flags 0 or 1", line=line)
    return [int(digit) for digit in digits]


def members(
    source: Source, body: NumberLines, most: int, *, skipped: int, step: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(counts, members) int64[l], int64[k]: number of vertices that each line names after `skipped`
    numbers, every `step`-th of them, and these vertices counted from 0. Raises: MatrixError, with
    the line of a vertex beyond `most` or a line of another length."""
    wrong = (body.counts < skipped) | ((body.counts - skipped) % step != 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise source.error(
            f"{body.counts[at]} numbers do not fit fmt of the first line: {skipped} before the "
            f"vertices, {step} for each",
            line=body.place(at),
        )
    starts = np.cumsum(body.counts) - body.counts
    within = np.arange(body.numbers.size) - np.repeat(starts, body.counts)
    chosen = (within >= skipped) & ((within - skipped) % step == 0)
    vertices = body.numbers[chosen] - 1
    counts = (body.counts - skipped) // step
    outside = (vertices < 0) | (vertices >= most)
    if outside.any():
        at = int(np.argmax(outside))
        line = body.place(int(np.searchsorted(np.cumsum(counts), at, side="right")))
        raise source.error(f"vertex {vertices[at] + 1} lies outside 1..{most}", line=line)
    return counts, vertices


def _body(source: Source, lines: NumberLines, n: int, skipped: int) -> NumberLines:
    """Lines of the vertices. Blank ones at the end may be missing."""
    more = lines.counts[n:] > 0
    if more.any():
        line = lines.place(n + int(np.argmax(more)))
        raise source.error(f"more lines than {n} vertices", line=line, hint=_NO_GRAPH)
    if len(lines) < n and skipped:
        raise source.error(
            f"truncated: the header states {n} vertices, there are {len(lines)} lines"
        )
    return lines.first(n)


def _check_symmetry(
    source: Source, n: int, rows: NDArray[np.int64], cols: NDArray[np.int64], body: NumberLines
) -> None:
    there, back = np.sort(rows * n + cols), np.sort(cols * n + rows)
    if np.array_equal(there, back):
        return
    at = int(np.argmax(there != back))
    row, col = divmod(int(there[at]), n) if there[at] < back[at] else divmod(int(back[at]), n)[::-1]
    raise source.error(
        f"vertex {row + 1} names {col + 1}, which does not name it as often",
        line=body.place(row),
        hint=_NO_GRAPH,
    )


# hMETIS hypergraphs (`.hgr`) as incidence matrices: rows are hyperedges, columns vertices.
#
# The first line is `hyperedges vertices [fmt]`; then each hyperedge has a line with its vertices,
# counted from 1, after a weight if `fmt` is 1 or 11; then, if it is 10 or 11, each vertex has a
# line with its weight. Lines that begin with % are comments. Source: Karypis, Kumar, "hMETIS, A
# Hypergraph Partitioning Package", manual (1998), section 3.1.


def read_hypergraph(source: Source) -> Pattern:
    """Read the hyperedges. Raises: MatrixError, with the line."""
    lines = number_lines(source, read_text(source))
    edges, vertices, *rest = header(source, lines, range(2, 4), "hyperedges, vertices and fmt")
    top = lines.place(0)
    vertex_weights, edge_weights = flags(source, rest[0] if rest else 0, 2, top)
    source.check_sizes((edges, vertices), 0, entry_bytes=1, line=top)
    body = lines.after(1)
    weights = vertices if vertex_weights else 0
    _check_lines(source, body, edges, weights)
    counts, columns = members(source, body.first(edges), vertices, skipped=edge_weights, step=1)
    if not counts.all():
        raise source.error("a hyperedge without vertices", line=body.place(int(np.argmin(counts))))
    ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Pattern.from_csr((edges, vertices), ptr, columns)


def _check_lines(source: Source, body: NumberLines, edges: int, weights: int) -> None:
    """Check that `weights` lines of one number follow those of edges. Raises: MatrixError."""
    line_count = int(np.flatnonzero(body.counts)[-1]) + 1 if body.counts.any() else 0
    if line_count < edges + weights:
        raise source.error(
            f"truncated: {line_count} lines for {edges} hyperedges and {weights} vertex weights"
        )
    if line_count > edges + weights:
        raise source.error(
            f"more lines than {edges} hyperedges and {weights} vertex weights",
            line=body.place(edges + weights),
        )
    other = body.counts[edges:line_count] != 1
    if other.any():
        raise source.error("not one vertex weight", line=body.place(edges + int(np.argmax(other))))
