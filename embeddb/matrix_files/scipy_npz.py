"""Archives of `scipy.sparse.save_npz`: csr, csc, coo, bsr and dia; and graphs of graph-network data
sets, in CSR as `adj_indptr`, `adj_indices`, `adj_data` and `adj_shape`.

Most queries read this format, so only the index arrays are unpacked where values do not matter.
Archives are untrusted: no member is unpacked before its size and the matrix's shape agree.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from math import prod
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import open_regular
from embeddb.core.pattern import Pattern
from embeddb.matrix_files.source import DEFLATE_RATIO, Source

#: Peak memory per pointer, per entry, and per value of a padded layout, in bytes.
_POINTER_BYTES, _ENTRY_BYTES, _VALUE_BYTES = 16, 6, 64


def read(source: Source) -> Pattern:
    """Read the structure. Raises: MatrixError, and exceptions of zipfile and numpy."""
    with open_regular(source.path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            hint = "write it again, by scipy.sparse.save_npz"
            raise source.error("no archive of NumPy, or one that is cut off", hint=hint) from None
        with archive:
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
    return Pattern.from_coo(shape, *entries)


def _shape(source: Source, archive: NpzArchive, prefix: str = "") -> tuple[int, int]:
    sizes = archive.small(prefix + "shape")
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise archive.error(f"'{prefix}shape' is {sizes.tolist()}, not rows and columns")
    shape = (int(sizes[0]), int(sizes[1]))
    source.check_sizes(shape, 0, entry_bytes=1)
    return shape


def _check_count(source: Source, member: Member, times: int = 1) -> None:
    """Check the number of entries, which are in memory `times`. Raises: MatrixError."""
    count = member.shape[0]
    if count > source.max_nnz:
        raise source.error(f"{count} entries are more than the limit of {source.max_nnz}")
    taken = times * (_ENTRY_BYTES + max(member.dtype.itemsize, 4))
    source.check_memory(taken * count, f"{count} entries")


def _padded(source: Source, archive: NpzArchive, kind: str, rank: int) -> Member:
    """The values of a padded layout, all of which are scanned for zeros. Raises: MatrixError."""
    member = archive.member("data")
    if len(member.shape) != rank:
        dimensions = {2: "two", 3: "three"}[rank]
        raise archive.error(
            f"'data' of a {kind} matrix has {dimensions} dimensions, not {member.shape}"
        )
    count = prod(member.shape)
    source.check_memory(_VALUE_BYTES * count, f"{count} values")
    return member


def _compressed(
    source: Source, archive: NpzArchive, kind: str, shape: tuple[int, int], prefix: str = ""
) -> Pattern:
    """CSR or CSC. Entries beyond the last pointer, which scipy keeps, are ignored."""
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
    return build(shape, ptr, idx[:used])


def _blocks(
    source: Source, archive: NpzArchive, shape: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """BSR. Blocks are padded with zeros, so a zero in a block is no entry."""
    member = _padded(source, archive, "bsr", 3)
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
    """DIA. A zero is padding; data[d, j] is entry (j - offset[d], j)."""
    member = _padded(source, archive, "dia", 2)
    offsets = archive.array(archive.vector("offsets", member.shape[0])).astype(np.int64)
    diagonal, cols = np.nonzero(archive.array(member))
    rows = cols - offsets[diagonal]
    inside = (rows >= 0) & (rows < shape[0]) & (cols < shape[1])
    return rows[inside], cols[inside]


# Arrays of an untrusted `.npz`, each checked before it is unpacked: the size in its `.npy` header,
# the size in the zip directory and the limit for a file of this size must agree. Pickles are
# refused.

_SMALL_BYTES = 4096
#: Longest header of an array in bytes; numpy writes 128.
_MOST_HEADER = 1 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """One `.npy` in the archive, of which only the header was read."""

    info: zipfile.ZipInfo
    header: NpyHeader

    @property
    def name(self) -> str:
        return self.info.filename.removesuffix(".npy")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.header.dtype


class NpzArchive:
    """Members of an archive, checked before they are unpacked; `kind` names it in errors."""

    def __init__(self, source: Source, file: zipfile.ZipFile, kind: str) -> None:
        self._source, self._file, self._kind = source, file, kind

    def error(self, message: str) -> MatrixError:
        return self._source.error(message)

    def has(self, name: str) -> bool:
        return f"{name}.npy" in self._file.NameToInfo

    def member(self, name: str) -> Member:
        try:
            info = self._file.getinfo(name + ".npy")
        except KeyError:
            names = [i.filename.removesuffix(".npy") for i in self._file.infolist()[:8]]
            raise self.error(
                f"not an archive of {self._kind}: no '{name}' (it has {names})"
            ) from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.error(f"'{name}' is packed with a method other than deflate")
        with self._file.open(info) as file:
            member = Member(info, npy_header(io.BytesIO(file.read(_MOST_HEADER))))
        if member.dtype.hasobject or member.dtype.kind not in "biufcSU":
            raise self.error(f"'{name}' holds {member.dtype}, not numbers")
        return member

    def array(self, member: Member) -> NDArray[Any]:
        info = member.info
        stated = member.header.whole_bytes
        if stated != info.file_size:
            raise self.error(
                f"'{member.name}' states {stated} bytes, the archive has {info.file_size}"
            )
        if info.compress_size > self._source.size or stated > DEFLATE_RATIO * info.compress_size:
            raise self.error(f"'{member.name}' cannot expand to {stated} bytes")
        self._source.check_memory(stated, f"'{member.name}'")
        with self._file.open(info) as stream:
            # With a length, zipfile stops there even if the stream continues; it also checks the
            # CRC when the last byte is read.
            data = stream.read(info.file_size)
        if len(data) != stated:
            raise self.error(f"'{member.name}' is truncated")
        flat = np.frombuffer(data, member.dtype, offset=member.header.header_bytes)
        return flat.reshape(member.shape, order="F" if member.header.fortran else "C")

    def small(self, name: str) -> NDArray[Any]:
        member = self.member(name)
        if prod(member.shape) * member.dtype.itemsize > _SMALL_BYTES:
            raise self.error(f"'{name}' is too large to be right")
        return self.array(member)

    def vector(self, name: str, count: int | None = None) -> Member:
        """A member that must be one-dimensional, of whole numbers and `count` long."""
        member = self.member(name)
        if len(member.shape) != 1 or member.dtype.kind not in "iu":
            raise self.error(f"'{name}' is not a vector of whole numbers")
        if count is not None and member.shape[0] != count:
            raise self.error(f"'{name}' should have {count} entries, it has {member.shape[0]}")
        return member


class NpyHeader(NamedTuple):
    """Shape, type and order of an array; `header_bytes` precede its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Size of header and data; Python integers do not overflow."""
        return self.header_bytes + prod(self.shape) * self.dtype.itemsize


def npy_header(stream: IO[bytes]) -> NpyHeader:
    """Read the header at the beginning of a stream, which is then positioned at the data. Raises:
    ValueError, and any exception of Python's own parser; call it inside `refusing`."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"is of an unknown .npy version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return NpyHeader(shape, dtype, fortran, stream.tell())
