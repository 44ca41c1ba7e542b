"""hMETIS hypergraphs (`.hgr`) as incidence matrices: rows are hyperedges, columns vertices.

The first line is `hyperedges vertices [fmt]`; then each hyperedge has a line with its vertices,
counted from 1, after a weight if `fmt` is 1 or 11; then, if it is 10 or 11, each vertex has a line
with its weight. Lines that begin with % are comments. Source: Karypis, Kumar, "hMETIS, A Hypergraph
Partitioning Package", manual (1998), section 3.1.
"""

from __future__ import annotations

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.metis import flags, header, members
from embeddb.matrix_files.source import NumberLines, Source, number_lines, read_text


def read(source: Source) -> Pattern:
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
    return Pattern.from_csr((edges, vertices), ptr, columns, name=source.name, group=source.group)


def _check_lines(source: Source, body: NumberLines, edges: int, weights: int) -> None:
    """Check that the lines of the edges are followed by `weights` lines of one number. Raises:
    MatrixError."""
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
