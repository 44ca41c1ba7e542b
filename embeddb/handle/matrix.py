"""A sparse matrix of others, checked and copied, so that no change to it reaches compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.kernels.forms import Form, aligned

__all__ = ["MAX_NNZ", "Matrix", "matrix_of", "value_type"]

#: More non-zeros than this are refused.
MAX_NNZ = (1 << 31) - 1
_FORMATS = ("csr", "csc", "coo")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A copy of a matrix as canonical CSR: its `pattern`, and `values` dtype[nnz] in the order of
    that. `plain`: the matrix came in that very order, so its values can be given anew by
    themselves."""

    pattern: Pattern
    values: NDArray[Any]
    plain: bool

    def __reduce__(self) -> tuple[Any, ...]:
        p = self.pattern
        return _read_back, (p.shape, p.indptr, p.indices, self.values, self.plain)

    def form(self) -> Form:
        """Its arrays as kernels take them."""
        return Form(self.pattern.shape, self.pattern.indptr, self.pattern.indices, self.values)


def matrix_of(matrix: Any, dtype: Any = None) -> Matrix:
    """A scipy sparse array or matrix (CSR, CSC or COO) as a `Matrix`: duplicates are added up,
    indices sorted; entries that hold a zero stay. Without a `dtype`, `value_type` of its own.

    Raises: UsageError for another object or type; MatrixError for more than 2^31 - 1 non-zeros, an
    index outside the matrix, or pointers that are none.
    """
    layout = getattr(matrix, "format", "")
    if layout not in _FORMATS or not hasattr(matrix, "tocsr") or len(matrix.shape) != 2:
        raise UsageError(
            f"A is a {type(matrix).__name__}: a scipy sparse matrix in CSR, CSC or COO is needed",
            hint="A.tocsr() makes one of other scipy formats",
        )
    if matrix.data.size > MAX_NNZ:
        raise MatrixError(f"A has {matrix.data.size} non-zeros, of at most {MAX_NNZ}")
    values = value_type(matrix.data, dtype)
    if layout == "coo":
        return _of_coordinates(matrix, values)
    # Copied first and checked then: what another thread changes meanwhile is not looked at again.
    ptr, idx = np.array(matrix.indptr), np.array(matrix.indices)
    if idx.ndim == 1 and values.shape != idx.shape:
        raise MatrixError(f"A has {values.size} values for {idx.size} indices")
    if layout == "csc":
        pattern = Pattern.from_csc(matrix.shape, ptr, idx)
        return Matrix(pattern, _sorted(matrix.shape, (values, idx, ptr), "csc", pattern), False)
    pattern = Pattern.from_csr(matrix.shape, ptr, idx)
    plain = pattern.nnz == idx.size and bool((pattern.indices == idx).all())
    if plain:
        return Matrix(pattern, _aligned(values), True)
    parts = (values.copy(), idx, ptr)  # scipy sorts them in place
    return Matrix(pattern, _sorted(matrix.shape, parts, "csr", pattern), False)


def _read_back(
    shape: tuple[int, int],
    indptr: NDArray[Any],
    indices: NDArray[Any],
    values: NDArray[Any],
    plain: bool,
) -> Matrix:
    """A matrix that was pickled, its arrays checked, copied and aligned again.

    Raises: MatrixError for arrays that are none of a sorted CSR.
    """
    pattern = Pattern.from_csr(shape, np.array(indptr), np.array(indices))
    if values.shape != (pattern.nnz,):
        raise MatrixError(f"A has {values.size} values for {pattern.nnz} non-zeros")
    return Matrix(pattern, _aligned(values), plain)


def _aligned(values: NDArray[Any]) -> NDArray[Any]:
    made = aligned(values.shape, values.dtype)
    made[:] = values
    return made


def value_type(values: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Values as `dtype`, else float32 where that holds them all (float16, small whole numbers,
    truth values) and float64 where it does not.

    Raises: UsageError for complex numbers, extended precision, objects, and a `dtype` that is
    neither float32 nor float64.
    """
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        raise UsageError(f"A holds {values.dtype}: kernels compute in float32 and float64")
    wanted = np.dtype(dtype if dtype is not None else np.result_type(values.dtype, np.float32))
    if wanted not in (np.float32, np.float64):
        raise UsageError(f"dtype {wanted}: kernels compute in float32 and float64")
    return values.astype(wanted, copy=False)


def _of_coordinates(matrix: Any, values: NDArray[Any]) -> Matrix:
    rows, cols = (np.array(part) for part in (matrix.row, matrix.col))
    pattern = Pattern.from_coo(matrix.shape, rows, cols)
    if values.shape != rows.shape:
        raise MatrixError(f"A has {values.size} values for {rows.size} coordinates")
    where = (values, (rows.astype(np.int32, copy=False), cols.astype(np.int32, copy=False)))
    return Matrix(pattern, _sorted(matrix.shape, where, "coo", pattern), False)


def _sorted(shape: tuple[int, int], parts: Any, layout: str, pattern: Pattern) -> NDArray[Any]:
    """Values in the order of the pattern, which was made, and so checked, from the same indices."""
    from scipy import sparse

    kind = {"csr": sparse.csr_array, "csc": sparse.csc_array, "coo": sparse.coo_array}[layout]
    made = kind(parts, shape=shape).tocsr()
    made.sum_duplicates()
    return _aligned(made.data)
