"""WACO's binary `.csr`: little-endian int32 rows, columns, nnz, offsets[m+1], columns[nnz].

Source: Won, Mendis, Emer, Amarasinghe, "WACO", ASPLOS 2023, its artifact's data set.
"""

from __future__ import annotations

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import Source, read_all


def read(source: Source) -> Pattern:
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
    return Pattern.from_csr((m, n), ptr, idx, name=source.name, group=source.group)
