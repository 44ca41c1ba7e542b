"""Statistics of matrices that travel beside run logs, as ginkgo's collection has them: one row per
SuiteSparse matrix with its group, sizes, and moments of row and column lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embeddb.core.errors import ReaderError
from indexer.readers.base.row import MatrixRef, Reject, count, number
from indexer.readers.base.table import Table

_WHAT = "ginkgo features"


def matrix_features(path: Path) -> dict[tuple[str, str], MatrixRef]:
    """Matrices by (group, name) of `matrix_features.csv[.gz]`; numbers become features.

    Raises: ReaderError if the file is not such a table, naming file and line.
    """
    table = Table(path, _WHAT)
    group, name, m, n, nnz = table.need(("group", "name", "rows", "cols", "nnz"), _WHAT)
    words = [c for c in ("kind", "posdef", "2d3d") if c in table.at]
    numbers = [(c, i) for c, i in table.at.items() if c not in (*words, "group", "name", "id")]
    matrices: dict[tuple[str, str], MatrixRef] = {}
    for line, row in table.rows():
        if isinstance(row, Reject):
            raise ReaderError(row.reason, where=str(path), line=line)
        try:
            features = {c: number(row[i]) for c, i in numbers if row[i]}
            matrices[row[group], row[name]] = MatrixRef(
                row[name],
                count(row[m]),
                count(row[n]),
                count(row[nnz]),
                row[group],
                features,
                {c: row[table.at[c]] for c in words},
            )
        except ReaderError as error:
            raise ReaderError(error.reason, where=str(path), line=line) from None
    return matrices


def by_name(matrices: Mapping[tuple[str, str], MatrixRef]) -> dict[str, MatrixRef]:
    """Matrices by name, for logs that lack the group. Of a name in several groups, the first if all
    are of one size (the same pattern, collected twice), else none."""
    named: dict[str, MatrixRef] = {}
    differ: set[str] = set()
    for (_, name), matrix in matrices.items():
        other = named.setdefault(name, matrix)
        if (other.m, other.n, other.nnz) != (matrix.m, matrix.n, matrix.nnz):
            differ.add(name)
    return {name: matrix for name, matrix in named.items() if name not in differ}
