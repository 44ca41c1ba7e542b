"""Dense operands and results: used as they are where kernels can, else copied, else refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError

__all__ = ["Buffers", "address", "operand", "result_of"]


def operand(given: Any, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The array as dtype[shape], row-major: itself if it is that, else a copy.

    Raises: UsageError for another shape, for a type that the kernel's cannot hold, and for what is
    no array of numbers.
    """
    if type(given) is np.ndarray and given.dtype == dtype and given.shape == shape:
        flags = given.flags
        if flags.c_contiguous and flags.aligned:
            return given
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no dense array: {error}") from None
    if array.ndim == 2 and array.shape[:1] == shape[:1] and array.shape != shape:
        width, own = array.shape[1], shape[1] if len(shape) > 1 else 1
        raise UsageError(
            f"{name} has {width} columns; this handle was compiled for k={own}",
            hint=f"compile another with k={width}",
        )
    if array.shape != shape:
        raise UsageError(f"{name} has the shape {array.shape}, the kernel's is {shape}")
    if not np.can_cast(array.dtype, dtype, "safe"):
        raise UsageError(
            f"{name} holds {array.dtype}, which {np.dtype(dtype)} does not",
            hint=f"convert it, or compile with dtype={array.dtype}"
            if array.dtype == np.float64
            else "convert it",
        )
    return np.require(array, dtype, ("C", "A"))


def result_of(out: Any, shape: tuple[int, ...], dtype: Any, inputs: tuple[Any, ...]) -> bool:
    """Whether a kernel may write into `out`; if not, it writes beside and the result is copied:
    where `out` is strided, or may share memory with an input.

    Raises: UsageError for an `out` that cannot take the result.
    """
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out is a {type(out).__name__}, not an array of numpy")
    if out.shape != shape or out.dtype != dtype:
        raise UsageError(
            f"out is {out.dtype} of shape {out.shape}, the result {np.dtype(dtype)} of {shape}"
        )
    flags = out.flags
    if not flags.writeable:
        raise UsageError("out is read-only")
    if not (flags.c_contiguous and flags.aligned):
        return False
    return not any(np.may_share_memory(out, one) for one in inputs if one is not None)


def address(array: NDArray[Any]) -> int:
    """Of the first element."""
    at: int = array.__array_interface__["data"][0]
    return at


class Buffers:
    """Operands with rows of zeros behind, of one shape; kept, since making them costs more than
    filling them. Several threads may take one at a time each."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        self._free: list[NDArray[Any]] = []

    def filled(self, array: NDArray[Any]) -> NDArray[Any]:
        """A buffer that begins with the array's rows."""
        try:
            made = self._free.pop()
        except IndexError:
            made = np.zeros(self._shape, dtype=self._dtype)
        made[: array.shape[0]] = array
        return made

    def give_back(self, buffer: NDArray[Any]) -> None:
        """For the next call."""
        self._free.append(buffer)
