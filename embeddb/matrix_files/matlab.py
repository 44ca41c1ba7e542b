"""MATLAB version 5 files (`save -v6` and `-v7`): the only sparse variable, or SuiteSparse's
Problem.

Source: MathWorks, "MAT-File Format" (R2021b), chapter 1. Only structure is read: just the index
arrays of sparse variables are decoded, so memory is bounded by the unpacked length of the file,
which is limited too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.core.sizes import MAX_DIM
from embeddb.matrix_files.source import HELD, Source, read_all

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _SPARSE = 2, 5
#: Limits on the fields of a struct (SuiteSparse has twelve), the bytes of a name (MATLAB allows
#: 63), sparse variables, and all variables: each costs more memory than its bytes.
_MOST_FIELDS, _MOST_NAME, _MOST_SPARSE = 1024, 256, 1024
_MOST_VARIABLES = 1 << 17
#: Peak memory per column and per entry while reading, in bytes.
_COLUMN_BYTES, _ENTRY_BYTES = 32, 40
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 12: "i8", 13: "u8"}


@dataclass(frozen=True, slots=True)
class _Sparse:
    """Column pointers int64[n+1] and row indices int64[nnz], not yet checked."""

    shape: tuple[int, int]
    ptr: NDArray[np.int64]
    idx: NDArray[np.int64]


class _Elements:
    """Sequential reader of the tagged data elements of one buffer."""

    def __init__(self, source: Source, data: memoryview, order: str) -> None:
        self._source, self._data, self._order, self._at = source, data, order, 0
        self._tag = Struct(order + "II")

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def next(self) -> tuple[int, memoryview]:
        """(type, bytes) of the next element."""
        word, size = self._tag.unpack(self._take(8))
        if word >> 16:  # small element: the size in the upper half, up to 4 bytes in the tag
            size = word >> 16
            if size > 4:
                raise self._source.error("damaged MATLAB file: a small element is too large")
            return word & 0xFFFF, self._data[self._at - 4 : self._at - 4 + size]
        content = self._take(size)
        if word != _COMPRESSED:
            self._at += -size % 8
        return word, content

    def sub(self, data: memoryview) -> _Elements:
        return _Elements(self._source, data, self._order)

    def numbers(self, most: int = MAX_DIM) -> NDArray[np.int64]:
        """Integers of the next element, at most `most`."""
        kind, data = self.next()
        code = _TYPES.get(kind)
        if code is None or len(data) % int(code[1]):
            raise self._source.error(f"damaged MATLAB file: element type {kind} is not an integer")
        values = np.frombuffer(data, self._order + code)
        if values.size > most:
            raise self._source.error("damaged MATLAB file: too many numbers")
        self._source.check_memory(values.size * 8, f"{values.size} numbers")
        return values.astype(np.int64)

    def text(self) -> str:
        """The next element as text, at most as long as a name can be."""
        return bytes(self.next()[1][:_MOST_NAME]).decode("latin-1")

    def _take(self, size: int) -> memoryview:
        content = self._data[self._at : self._at + size]
        if len(content) < size:
            raise self._source.error("truncated MATLAB file")
        self._at += size
        return content


def read(source: Source) -> Pattern:
    """Read the only sparse variable. Raises: MatrixError, listing the sparse variables if there is
    not exactly one."""
    data = read_all(source)
    if data[:10] == b"MATLAB 7.3" or data[:4] == b"\x89HDF":
        raise source.error("MATLAB 7.3 files are not read", hint="save it again with -v7")
    marks = {b"IM": "<", b"MI": ">"}
    order = marks.get(data[126:128], "")
    if not order:
        raise source.error("not a MATLAB version 5 file", hint="save it again with -v7")
    variables = dict(islice(_variables(source, data, order), _MOST_SPARSE))
    matrix = _chosen(source, variables)
    return Pattern.from_csc(matrix.shape, matrix.ptr, matrix.idx)


def _chosen(source: Source, variables: dict[str, _Sparse]) -> _Sparse:
    # SuiteSparse keeps explicit zeros, which MATLAB cannot store, in Problem.Zeros.
    matrix, zeros = variables.get("Problem.A"), variables.pop("Problem.Zeros", None)
    if matrix is None:
        if len(variables) != 1:
            names = sorted(variables)[:8]
            raise source.error(f"exactly one sparse variable is needed, the file has: {names}")
        (matrix,) = variables.values()
    if zeros is None or zeros.shape != matrix.shape or not zeros.idx.size:
        return matrix
    n = matrix.shape[1]
    cols = [np.repeat(np.arange(n), np.diff(part.ptr)) for part in (matrix, zeros)]
    order = np.argsort(np.concatenate(cols), kind="stable")
    return _Sparse(
        matrix.shape, matrix.ptr + zeros.ptr, np.concatenate([matrix.idx, zeros.idx])[order]
    )


def _variables(source: Source, data: bytes, order: str) -> Iterator[tuple[str, _Sparse]]:
    elements = _Elements(source, memoryview(data)[_HEADER_BYTES:], order)
    left = most = source.most(HELD)
    for _ in range(_MOST_VARIABLES):
        if not elements:
            return
        kind, content = elements.next()
        if kind == _COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content, left + 1)
            left -= len(unpacked)
            source.check_unpacked(most - left, HELD)
            kind, content = elements.sub(memoryview(unpacked)).next()
        if kind == _MATRIX:
            yield from _sparse_in(source, elements.sub(content), depth=0)
    raise source.error(f"more than {_MOST_VARIABLES} variables")


def _sparse_in(source: Source, element: _Elements, *, depth: int) -> Iterator[tuple[str, _Sparse]]:
    """The sparse matrix of one variable, or those in the fields of a 1 x 1 struct."""
    if not element:  # an empty element is MATLAB's []
        return
    flags = element.numbers(2)
    if flags.size != 2:
        raise source.error("damaged MATLAB file: array flags")
    kind = int(flags[0]) & 0xFF
    if kind not in (_SPARSE, _STRUCT):
        return
    shape = element.numbers()
    name = element.text()
    if kind == _SPARSE:
        yield name, _sparse(source, element, shape)
    elif depth == 0 and bool((shape == 1).all()):
        for field in _fields(source, element):
            _, content = element.next()
            for _, matrix in _sparse_in(source, element.sub(content), depth=1):
                yield f"{name}.{field}", matrix


def _fields(source: Source, element: _Elements) -> Iterator[str]:
    """Names of a struct's fields, each padded to one width."""
    width = element.numbers(1)
    names = element.next()[1]
    if width.size != 1 or width[0] < 1 or len(names) > int(width[0]) * _MOST_FIELDS:
        raise source.error("damaged MATLAB file: names of fields")
    for at in range(0, len(names), int(width[0])):
        name = bytes(names[at : at + min(int(width[0]), _MOST_NAME)])
        yield name.partition(b"\0")[0].decode("latin-1")


def _sparse(source: Source, element: _Elements, sizes: NDArray[np.int64]) -> _Sparse:
    if sizes.size != 2:
        raise source.error(f"damaged MATLAB file: a sparse matrix of {sizes.size} dimensions")
    m, n = (int(size) for size in sizes)
    idx, ptr = element.numbers(), element.numbers()
    source.check_sizes((m, n), idx.size, entry_bytes=0, taken=_ENTRY_BYTES)
    source.check_memory(_COLUMN_BYTES * n, f"{n} columns")
    ascends = ptr.size == n + 1 and ptr[0] == 0 and not bool((ptr[1:] < ptr[:-1]).any())
    if not ascends or ptr[-1] > idx.size:
        raise source.error(f"column pointers do not ascend from 0 over {n} columns")
    element.next()  # the values: not decoded, but they must exist
    return _Sparse((m, n), ptr, idx[: int(ptr[-1])])
