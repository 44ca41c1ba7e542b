"""One matrix file being read: its limits, and bounded access to its bytes."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import MAX_DIM

__all__ = ["DEFLATE_RATIO", "Source", "head_bytes", "open_source", "open_stream", "read_all"]

#: No deflate stream expands further than this (zlib manual, "maximum compression factor").
DEFLATE_RATIO = 1032
_FREE_BYTES = 256 * 2**20
_FREE_RATIO = 200
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """A file on disk, `size` bytes long, and what its pattern shall be called."""

    path: Path
    name: str
    group: str
    max_nnz: int
    size: int
    gzipped: bool
    max_bytes: int = 0

    @property
    def budget(self) -> int:
        """Bytes that a file of this size may make us unpack or allocate, at most `max_bytes` if
        that is given."""
        own = max(_FREE_BYTES, _FREE_RATIO * self.size)
        return min(own, self.max_bytes) if self.max_bytes else own

    def error(self, message: str, *, line: int | None = None, hint: str = "") -> MatrixError:
        return MatrixError(message, where=str(self.path), line=line, hint=hint)

    def check_sizes(
        self,
        shape: tuple[int, int],
        nnz: int,
        *,
        entry_bytes: int,
        line: int | None = None,
        held: int | None = None,
    ) -> None:
        """Refuse sizes from a header that are impossible or that this file cannot hold.

        `entry_bytes`: the fewest bytes one of the `nnz` entries takes in the unpacked file;
        `held`: the unpacked file's length where it is known.
        Raises: MatrixError.
        """
        m, n = shape
        if min(m, n, nnz) < 0:
            raise self.error(f"negative size in the header: {m} x {n}, {nnz} entries", line=line)
        if max(m, n) > MAX_DIM:
            raise self.error(f"{m} x {n} is larger than 2^31-1", line=line)
        if nnz > self.max_nnz:
            raise self.error(f"{nnz} entries are more than the limit of {self.max_nnz}", line=line)
        if held is None:
            held = self.size * (DEFLATE_RATIO if self.gzipped else 1)
        if nnz * entry_bytes > held + entry_bytes:  # the last separator may be missing
            raise self.error(
                f"the header promises {nnz} entries, but {held} bytes cannot hold them",
                line=line,
                hint="the file is truncated or its header is wrong",
            )
        self.check_memory(8 * (m + nnz), f"{m} rows with {nnz} entries", line=line)

    def check_memory(self, needed: int, what: str, *, line: int | None = None) -> None:
        """Raises: MatrixError if `needed` bytes are out of proportion to the file."""
        if needed > self.budget:
            raise self.error(
                f"{what} would take {needed / 2**30:.1f} GiB, {needed // max(self.size, 1)} times "
                "the size of the file",
                line=line,
                hint="if the matrix is real, save it uncompressed",
            )


class _Bounded(io.RawIOBase):
    """A stream that refuses to hand out more than the source's budget."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, source: Source) -> None:
        super().__init__()
        self._stream, self._source, self._given = stream, source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # typeshed: Buffer
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._given += len(data)
        self._source.check_memory(self._given, "the unpacked file")
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_source(path: Path, *, name: str, group: str, max_nnz: int, max_bytes: int = 0) -> Source:
    """Raises: OSError."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
        size = file.seek(0, io.SEEK_END)
    return Source(path, name, group, max_nnz, size, gzipped, max_bytes)


def open_stream(source: Source) -> IO[bytes]:
    """The unpacked bytes, buffered; reading raises MatrixError beyond the source's budget."""
    if not source.gzipped:
        return source.path.open("rb")
    return io.BufferedReader(_Bounded(gzip.open(source.path, "rb"), source), _CHUNK)


def read_all(source: Source) -> bytes:
    """The whole unpacked file. Raises: MatrixError, OSError, EOFError, zlib.error."""
    with open_stream(source) as stream:
        return b"".join(iter(lambda: stream.read(_CHUNK), b"")) if source.gzipped else stream.read()


def head_bytes(path: Path, count: int = 4096) -> bytes:
    """The first bytes of a file, unpacked if it is gzipped."""
    with path.open("rb") as file:
        head = file.read(count)
    if head[:2] != b"\x1f\x8b":
        return head
    with gzip.open(path, "rb") as stream:
        return stream.read(count)
