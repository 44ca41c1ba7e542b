"""Arrays of an untrusted `.npz`, each checked before it is unpacked: the size in its `.npy` header,
the size in the zip directory and the limit for a file of this size must agree. Pickles are refused.
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
from embeddb.matrix_files.source import DEFLATE_RATIO, Source

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
    """Members of one archive; `kind` names it in errors. Every array is checked before it is
    unpacked."""

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
    """Read the header at the beginning of a stream, which is then positioned at the data.

    Raises: ValueError, and any exception of Python's own parser; call it inside `refusing`.
    """
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"is of an unknown .npy version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return NpyHeader(shape, dtype, fortran, stream.tell())
