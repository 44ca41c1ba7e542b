"""A matrix of a plan, brought from its file and found to be the one that was planned."""

from __future__ import annotations

from collections.abc import Callable

from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern
from indexer.campaign.plan import Matrix

__all__ = ["from_file", "planned_pattern"]


def from_file(matrix: Matrix) -> Pattern:
    """Raises: MatrixError if the file cannot be read."""
    return read_pattern(matrix.path, name=matrix.name, group=matrix.group)


def planned_pattern(matrix: Matrix, read: Callable[[Matrix], Pattern] = from_file) -> Pattern:
    """Raises: InputError if it is not the matrix that was planned, MatrixError."""
    pattern = read(matrix)
    if (*pattern.shape, pattern.nnz) != (matrix.m, matrix.n, matrix.nnz):
        raise InputError(
            f"not the matrix that was planned ({matrix.m} x {matrix.n}, {matrix.nnz})",
            where=matrix.path,
            hint="put that file back, or plan a campaign in another folder",
        )
    return pattern
