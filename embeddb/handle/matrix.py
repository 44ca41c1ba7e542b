"""Conversion of the caller's matrices and operands to arrays that kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.kernels.forms import Form, aligned_copy, sorted_copy

#: Largest number of non-zeros.
MAX_NNZ = (1 << 31) - 1
_FORMATS = ("csr", "csc", "coo")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A copy of a matrix as canonical CSR: its `pattern`, and `values` dtype[nnz] in that order.
    `plain`: the caller's matrix had the same order, so that its values alone can be updated."""

    pattern: Pattern
    values: NDArray[Any]
    plain: bool

    def __reduce__(self) -> tuple[Any, ...]:
        p = self.pattern
        return _read_back, (p.shape, p.indptr, p.indices, self.values, self.plain)

    def form(self) -> Form:
        """The matrix as a plain CSR form."""
        return Form(self.pattern.shape, self.pattern.indptr, self.pattern.indices, self.values)


def matrix_of(matrix: Any, dtype: Any = None) -> Matrix:
    """A scipy sparse array or matrix (CSR, CSC or COO) as a `Matrix`: duplicates are summed,
    indices sorted, explicit zeros stay. Without a `dtype`, the type is that of `value_type`.

    Raises: UsageError for another object or type; MatrixError for more than 2^31 - 1 non-zeros, an
    index outside the matrix, or invalid pointers.
    """
    layout = getattr(matrix, "format", "")
    sparse = hasattr(matrix, "tocsr")
    if layout not in _FORMATS or not sparse:
        raise UsageError(
            f"A is a {type(matrix).__name__}: a scipy sparse matrix in CSR, CSC or COO is needed",
            hint=f"{'A.tocsr()' if sparse else 'scipy.sparse.csr_array(A)'} makes one",
        )
    if len(matrix.shape) != 2:  # of scipy's formats COO may have any number
        raise UsageError(f"A has {len(matrix.shape)} dimensions: a matrix of numbers is needed")
    if matrix.data.size > MAX_NNZ:
        raise MatrixError(f"A has {matrix.data.size} non-zeros, of at most {MAX_NNZ}")
    values = value_type(matrix.data, dtype)
    if layout == "coo":
        return _of_coordinates(matrix, values)
    if layout == "csr":
        copied = sorted_copy(matrix.shape, matrix.indptr, matrix.indices, values)
        if copied is not None:
            return Matrix(Pattern("", copied.shape, copied.ptr, copied.idx), copied.val, True)
    # Copied before the check, so that another thread cannot change checked data.
    pointers = np.asarray(matrix.indptr)
    wide = np.int64 if pointers.dtype.kind == "i" else None  # as a pattern has them
    ptr, idx = np.array(pointers, dtype=wide), np.array(matrix.indices)
    if idx.ndim == 1 and values.shape != idx.shape:
        raise MatrixError(f"A has {values.size} values for {idx.size} indices")
    if layout == "csc":
        pattern = Pattern.from_csc(matrix.shape, ptr, idx)
        return Matrix(pattern, _sorted(matrix.shape, (values, idx, ptr), "csc"), False)
    pattern = Pattern.from_csr(matrix.shape, ptr, idx)
    sorted_already = pattern.indices is idx  # by far the usual case
    plain = sorted_already or (pattern.nnz == idx.size and bool((pattern.indices == idx).all()))
    if plain:
        return Matrix(pattern, aligned_copy(values), True)
    parts = (values.copy(), idx, ptr)  # scipy sorts them in place
    return Matrix(pattern, _sorted(matrix.shape, parts, "csr"), False)


def _read_back(
    shape: tuple[int, int],
    indptr: NDArray[Any],
    indices: NDArray[Any],
    values: NDArray[Any],
    plain: bool,
) -> Matrix:
    """A pickled matrix, its arrays checked, copied and aligned again.

    Raises: MatrixError for arrays that are no sorted CSR.
    """
    pattern = Pattern.from_csr(shape, np.array(indptr), np.array(indices))
    if values.shape != (pattern.nnz,):
        raise MatrixError(f"A has {values.size} values for {pattern.nnz} non-zeros")
    return Matrix(pattern, aligned_copy(values), plain)


def value_type(values: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Values as `dtype`; by default float32 if it holds them all (float16, small integers,
    booleans), else float64.

    Raises: UsageError for complex numbers, extended precision, objects, and a `dtype` that is
    neither float32 nor float64.
    """
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        raise UsageError(f"A holds {values.dtype}: kernels compute in float32 and float64")
    try:
        wanted = np.dtype(dtype if dtype is not None else np.result_type(values.dtype, np.float32))
    except (TypeError, ValueError):
        raise UsageError(f"dtype {dtype!r}: kernels compute in float32 and float64") from None
    if wanted not in (np.float32, np.float64):
        raise UsageError(f"dtype {wanted}: kernels compute in float32 and float64")
    return values.astype(wanted, copy=False)


def _of_coordinates(matrix: Any, values: NDArray[Any]) -> Matrix:
    rows, cols = (np.array(part) for part in (matrix.row, matrix.col))
    pattern = Pattern.from_coo(matrix.shape, rows, cols)
    if values.shape != rows.shape:
        raise MatrixError(f"A has {values.size} values for {rows.size} coordinates")
    where = (values, (rows.astype(np.int32, copy=False), cols.astype(np.int32, copy=False)))
    return Matrix(pattern, _sorted(matrix.shape, where, "coo"), False)


def _sorted(shape: tuple[int, int], parts: Any, layout: str) -> NDArray[Any]:
    """Values in the order of the pattern, which was built, and so checked, from the same
    indices."""
    from scipy import sparse

    kind = {"csr": sparse.csr_array, "csc": sparse.csc_array, "coo": sparse.coo_array}[layout]
    csr = kind(parts, shape=shape).tocsr()
    csr.sum_duplicates()
    return aligned_copy(csr.data)


def operand(array_like: Any, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The array as dtype[shape], row-major; copied only if it is not.

    Raises: UsageError for another shape, for a type that the kernel's cannot hold, for an object
    that is no array of numbers, and for a masked array.
    """
    if type(array_like) is np.ndarray and array_like.dtype == dtype and array_like.shape == shape:
        flags = array_like.flags
        if flags.c_contiguous and flags.aligned:
            return array_like
    _refuse_masked(array_like, name)
    try:
        array = np.asarray(array_like)
    except (TypeError, ValueError, RuntimeError) as error:  # the last of torch's tensors
        raise UsageError(f"{name} is no dense array: {error}") from None
    columns = array.ndim == 2 and name != "values"
    if columns and array.shape[:1] == shape[:1] and array.shape != shape:
        width, own = array.shape[1], shape[1] if len(shape) > 1 else 1
        raise UsageError(
            f"{name} has {width} columns; this handle was compiled for k={own}",
            hint=f"compile another with k={width}",
        )
    if array.ndim == 0:
        kind = type(array_like).__name__
        raise UsageError(f"{name} is a {kind}, not an array of the shape {shape}")
    if array.shape != shape:
        raise UsageError(f"{name} has the shape {array.shape}, the kernel's is {shape}")
    if not np.can_cast(array.dtype, dtype, "safe"):
        raise UsageError(
            f"{name} holds {array.dtype}, which {np.dtype(dtype)} does not",
            hint=f"convert it, or compile A in {array.dtype}"  # tensors take no `dtype`
            if array.dtype == np.float64
            else "convert it",
        )
    return np.require(array, dtype, ("C", "A"))


def _refuse_masked(array_like: Any, name: str) -> None:
    """Raises: UsageError for a masked array, whose mask kernels do not read."""
    if type(array_like) is not np.ndarray and isinstance(array_like, np.ma.MaskedArray):
        raise UsageError(
            f"{name} is a masked array, and kernels read no mask",
            hint=f"give {name}.filled(0), or {name}.data",
        )


def result_of(out: Any, shape: tuple[int, ...], dtype: Any, inputs: tuple[Any, ...]) -> bool:
    """True if a kernel may write into `out`; otherwise the result is copied: if `out` is strided,
    or may share memory with an input.

    Raises: UsageError for an `out` that cannot take the result.
    """
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out is a {type(out).__name__}, not an array of numpy")
    _refuse_masked(out, "out")
    if out.shape != shape or out.dtype != dtype:
        raise UsageError(
            f"out is {out.dtype} of shape {out.shape}, the result {np.dtype(dtype)} of {shape}"
        )
    flags = out.flags
    if not flags.writeable:
        raise UsageError("out is read-only")
    if not (flags.c_contiguous and flags.aligned):
        if _overlaps_itself(out):
            raise UsageError("out has several elements at one address", hint="give a copy of it")
        return False
    return not any(np.may_share_memory(out, one) for one in inputs if one is not None)


def _overlaps_itself(out: NDArray[Any]) -> bool:
    """True if elements may share memory: steps along one axis are within the extent of others."""
    extent = 0
    for step, size in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True)):
        if size > 1 and step < extent + out.itemsize:
            return True
        extent += step * (size - 1)
    return False


class Buffers:
    """Pool of operand buffers of one shape with rows of zeros at the end; allocation costs more
    than filling. Thread-safe."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        self._free: list[NDArray[Any]] = []

    def filled(self, array: NDArray[Any]) -> NDArray[Any]:
        """A buffer with the array's rows at its start."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.zeros(self._shape, dtype=self._dtype)
        buffer[: array.shape[0]] = array
        return buffer

    def give_back(self, buffer: NDArray[Any]) -> None:
        """Return a buffer to the pool."""
        self._free.append(buffer)
