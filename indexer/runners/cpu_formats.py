"""Bringing CSR into BCSR: the fill is counted before anything of its size is allocated."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocked", "Converter", "Fill", "aligned"]

_SLACK = 4096
_MAX_FILL = 8


@dataclass(frozen=True, slots=True)
class Blocked:
    """A matrix in blocks of r x c; CSR is 1 x 1. `ptr` int64[m/r + 1], `idx` int32[blocks],
    `val` dtype[blocks * r * c], row-major inside a block."""

    ptr: NDArray[np.int64]
    idx: NDArray[np.int32]
    val: NDArray[Any]
    conversion_s: float

    @property
    def nbytes(self) -> int:
        return self.ptr.nbytes + self.idx.nbytes + self.val.nbytes


@dataclass(frozen=True, slots=True)
class Fill:
    """Why a conversion was not made: nothing of its size was allocated."""

    reason: str


class Converter:
    """Conversions by the compiled `cpu_formats.c.in`."""

    def __init__(self, library: str) -> None:
        self._lib = ctypes.CDLL(library)
        self._lib.bcsr_count.restype = ctypes.c_int64
        self._lib.bcsr_fill.restype = None

    def blocked(
        self, csr: Blocked, shape: tuple[int, int], block: tuple[int, int], *, max_bytes: int
    ) -> Blocked | Fill:
        """BCSR of a CSR matrix, or the fill that forbids it: more than 8 stored values per
        non-zero, or more than `max_bytes` bytes."""
        (m, n), (r, c) = shape, block
        start = time.perf_counter()
        rows, cols = -(-m // r), -(-n // c)
        nnz, size = csr.idx.size, csr.val.itemsize
        fixed = 8 * (rows + 1) + 12 * cols
        if fixed > max_bytes:
            return Fill(f"{fixed} bytes for block rows and columns exceed {max_bytes}")
        mark = np.full(cols, -1, dtype=np.int32)
        ptr = np.empty(rows + 1, dtype=np.int64)
        head = (ctypes.c_int64(m), ctypes.c_int32(r), ctypes.c_int32(c))
        source = (_at(csr.ptr), _at(csr.idx))
        blocks = int(self._lib.bcsr_count(*head, *source, _at(mark), _at(ptr)))
        stored = blocks * r * c
        if stored > _MAX_FILL * nnz + _SLACK:
            fill = f"fill {stored / max(nnz, 1):.1f}"
            return Fill(f"{r}x{c} blocks store {stored} values for {nnz}: {fill} > {_MAX_FILL}")
        need = fixed + blocks * 4 + stored * size
        if need > max_bytes:
            return Fill(f"{r}x{c} blocks need {need} bytes, {max_bytes} are left")
        mark.fill(-1)
        idx, val = np.empty(blocks, dtype=np.int32), aligned((stored,), csr.val.dtype)
        place = np.empty(cols, dtype=np.int64)
        tail = (_at(place), _at(idx), _at(val), ctypes.c_int32(size))
        self._lib.bcsr_fill(*head, *source, _at(csr.val), _at(ptr), _at(mark), *tail)
        return Blocked(ptr, idx, val, time.perf_counter() - start)


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros that start on a cache line, so that whole vectors do not straddle two."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    view: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return view


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
