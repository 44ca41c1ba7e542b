"""What the header of a `.npy` says of its data, read before any of that."""

from __future__ import annotations

from math import prod
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

__all__ = ["NpyHeader", "npy_header"]


class NpyHeader(NamedTuple):
    """Shape, type and order of an array; `header_bytes` lie before its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Of header and data together; Python's whole numbers do not wrap."""
        return self.header_bytes + prod(self.shape) * self.dtype.itemsize


def npy_header(stream: IO[bytes]) -> NpyHeader:
    """The header at the beginning of a stream, which then stands before the data.

    Raises: ValueError, and of nonsense whatever Python's own parser raises; ask within `refusing`.
    """
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"is of an unknown .npy version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return NpyHeader(shape, dtype, fortran, stream.tell())
