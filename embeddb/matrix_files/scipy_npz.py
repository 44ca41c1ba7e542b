"""Archives of `scipy.sparse.save_npz`: csr, csc, coo, bsr and dia; and graphs of graph-network data
sets, in CSR as `adj_indptr`, `adj_indices`, `adj_data` and `adj_shape`.

Most queries read this format, so only the index arrays are unpacked where values do not matter.
Archives are untrusted: no member is unpacked before its size and the matrix's shape agree.
"""

from __future__ import annotations

import zipfile
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.files.safe_read import open_regular
from embeddb.core.pattern import Pattern
from embeddb.matrix_files.npz_archive import Member, NpzArchive
from embeddb.matrix_files.source import Source

#: Peak memory per pointer, per entry, and per value of a padded layout, in bytes.
_POINTER_BYTES, _ENTRY_BYTES, _VALUE_BYTES = 16, 6, 64


def read(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError, and exceptions of zipfile and numpy for a damaged
    archive."""
    with open_regular(source.path) as file, zipfile.ZipFile(file) as archive:
        return _read(source, NpzArchive(source, archive, "scipy.sparse.save_npz"))


def _read(source: Source, archive: NpzArchive) -> Pattern:
    if archive.has("adj_indptr") and not archive.has("format"):
        return _compressed(source, archive, "csr", _shape(source, archive, "adj_"), "adj_")
    layout = archive.small("format").reshape(-1)[:1].tolist()
    kind = layout[0] if layout else b""
    kind = kind.decode("latin-1") if isinstance(kind, bytes) else str(kind)
    shape = _shape(source, archive)
    if kind in ("csr", "csc"):
        return _compressed(source, archive, kind, shape)
    if kind == "coo":
        data = archive.member("data").shape
        rows, cols = (archive.vector(name, prod(data)) for name in ("row", "col"))
        _check_count(source, rows, 2)
        entries = archive.array(rows), archive.array(cols)
    elif kind == "bsr":
        entries = _blocks(source, archive, shape)
    elif kind == "dia":
        entries = _diagonals(source, archive, shape)
    else:
        raise archive.error(f"unknown sparse format {kind!r}")
    return Pattern.from_coo(shape, *entries, name=source.name, group=source.group)


def _shape(source: Source, archive: NpzArchive, prefix: str = "") -> tuple[int, int]:
    sizes = archive.small(prefix + "shape")
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise archive.error(f"'{prefix}shape' is {sizes.tolist()}, not rows and columns")
    shape = (int(sizes[0]), int(sizes[1]))
    source.check_sizes(shape, 0, entry_bytes=1)
    return shape


def _check_count(source: Source, member: Member, times: int = 1) -> None:
    """Check the number of entries, held `times` in arrays of that type. Raises: MatrixError if
    there are too many."""
    count = member.shape[0]
    if count > source.max_nnz:
        raise source.error(f"{count} entries are more than the limit of {source.max_nnz}")
    taken = times * (_ENTRY_BYTES + max(member.dtype.itemsize, 4))
    source.check_memory(taken * count, f"{count} entries")


def _check_values(source: Source, member: Member) -> None:
    """Check the number of values to scan, zeros included. Raises: MatrixError if there are too
    many."""
    count = prod(member.shape)
    source.check_memory(_VALUE_BYTES * count, f"{count} values")


def _compressed(
    source: Source, archive: NpzArchive, kind: str, shape: tuple[int, int], prefix: str = ""
) -> Pattern:
    """CSR or CSC. Entries beyond the last pointer are ignored: scipy keeps such space until it is
    pruned."""
    lines = shape[0 if kind == "csr" else 1]
    source.check_memory(_POINTER_BYTES * lines, f"{lines} lines")
    pointers = archive.vector(prefix + "indptr", lines + 1)
    indices = archive.vector(prefix + "indices")
    _check_count(source, indices)
    data = archive.member(prefix + "data").shape
    if data != indices.shape:
        raise archive.error(f"'data' has shape {data}, 'indices' {indices.shape}")
    build = Pattern.from_csr if kind == "csr" else Pattern.from_csc
    ptr, idx = archive.array(pointers), archive.array(indices)
    used = min(max(int(ptr[-1]), 0), idx.size)
    return build(shape, ptr, idx[:used], name=source.name, group=source.group)


def _blocks(
    source: Source, archive: NpzArchive, shape: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """BSR. Blocks are padded with zeros, so a zero in a block is no entry."""
    member = archive.member("data")
    if len(member.shape) != 3:
        raise archive.error(f"'data' of a bsr matrix has three dimensions, not {member.shape}")
    _check_values(source, member)
    count, r, c = member.shape
    if min(r, c) < 1 or shape[0] % r or shape[1] % c:
        raise archive.error(f"blocks of {r} x {c} do not tile {shape[0]} x {shape[1]}")
    ptr = archive.array(archive.vector("indptr", shape[0] // r + 1))
    idx = archive.array(archive.vector("indices", count))
    # Checks the block structure; the result is not used.
    Pattern.from_csr((shape[0] // r, shape[1] // c), ptr, idx)
    block, row, col = np.nonzero(archive.array(member))
    block_row = np.repeat(np.arange(shape[0] // r), np.diff(ptr))
    rows = block_row[block] * r + row
    return rows, idx.astype(np.int64)[block] * c + col


def _diagonals(
    source: Source, archive: NpzArchive, shape: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """DIA. Whole diagonals are stored, so a zero is padding; data[d, j] is entry (j - offset[d],
    j)."""
    member = archive.member("data")
    if len(member.shape) != 2:
        raise archive.error(f"'data' of a dia matrix has two dimensions, not {member.shape}")
    _check_values(source, member)
    offsets = archive.array(archive.vector("offsets", member.shape[0])).astype(np.int64)
    diagonal, cols = np.nonzero(archive.array(member))
    rows = cols - offsets[diagonal]
    inside = (rows >= 0) & (rows < shape[0]) & (cols < shape[1])
    return rows[inside], cols[inside]
