"""CSR arrays in one file: the text format of the Deep Learning Matrix Collection (DLMC), `.smtx`.

Line 1 `rows, columns, nnz`, line 2 row offsets, line 3 column indices.
Source: Gale, Zaharia, Young, Elsen, "Sparse GPU Kernels for Deep Learning", SC 2020, its artifact.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, read_all, read_text

_SIZES = re.compile(rb"\s*(-?\d{1,30})\s*,\s*(-?\d{1,30})\s*,\s*(-?\d{1,30})\s*")


def read(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError."""
    first, _, rest = read_text(source).partition(b"\n")
    match = _SIZES.fullmatch(first)
    if match is None:
        raise source.error("expected three whole numbers: rows, columns, entries", line=1)
    m, n, nnz = (int(text) for text in match.groups())
    source.check_sizes((m, n), nnz, entry_bytes=2, line=1)
    offsets, _, columns = rest.partition(b"\n")
    columns, _, more = columns.partition(b"\n")
    del rest
    if more.strip():
        raise source.error("more than three lines", line=4)
    ptr = _numbers(source, offsets, m + 1, "row offsets", 2)
    idx = _numbers(source, columns, nnz, "column indices", 3)
    if ptr[0] != 0 or ptr[-1] != nnz or bool((ptr[1:] < ptr[:-1]).any()):
        raise source.error(f"row offsets do not ascend from 0 to {nnz}", line=2)
    if nnz and (idx.min() < 0 or idx.max() >= n):
        raise source.error(f"a column index lies outside 0..{n - 1}", line=3)
    return Pattern.from_csr((m, n), ptr, idx)


def _numbers(source: Source, text: bytes, count: int, what: str, line: int) -> NDArray[np.int64]:
    try:
        # An overflowing number saturates, so the range checks above still reject it.
        values = np.fromstring(text, dtype=np.int64, sep=" ") if text.strip() else np.empty(0, "i8")
    except ValueError:
        raise source.error(f"{what} are not all whole numbers", line=line) from None
    if values.size != count:
        raise source.error(f"{count} {what} expected, the line has {values.size}", line=line)
    return values.astype(np.int64, copy=False)


# WACO's binary `.csr`: little-endian int32 rows, columns, nnz, offsets[m+1], columns[nnz].
#
# Source: Won, Mendis, Emer, Amarasinghe, "WACO", ASPLOS 2023, its artifact's data set.


def read_waco(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError."""
    data = read_all(source)
    if len(data) < 12:
        raise source.error("too short to hold the three sizes of a CSR file")
    m, n, nnz = (int(size) for size in np.frombuffer(data, "<i4", 3))
    source.check_sizes((m, n), nnz, entry_bytes=4)
    if len(data) != 4 * (4 + m + nnz):
        raise source.error(
            f"{m} x {n} with {nnz} entries takes {4 * (4 + m + nnz)} bytes, not {len(data)}"
        )
    ptr = np.frombuffer(data, "<i4", m + 1, 12)
    idx = np.frombuffer(data, "<i4", nnz, 16 + 4 * m)
    return Pattern.from_csr((m, n), ptr, idx)
