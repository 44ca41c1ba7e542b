"""The bytes of a gzipped file.

Python's own reader looks at members and at the zeros that may follow them byte by byte, so that a
few megabytes of either take a minute.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import BinaryIO

__all__ = ["Unzipped"]

_GZIP = 16 + zlib.MAX_WBITS
#: Bytes read at once; what follows a member is copied, so few.
_CHUNK = 1 << 14


class Unzipped(io.RawIOBase):
    """Of an open file, which is closed with this; `check` is told how many bytes came so far.

    Reading raises what `check` raises, EOFError for a truncated file and zlib.error for a damaged
    one.
    """

    def __init__(self, file: BinaryIO, check: Callable[[int], None]) -> None:
        super().__init__()
        self._file, self._check, self._given = file, check, 0
        self._member, self._packed = zlib.decompressobj(_GZIP), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # typeshed: Buffer
        data = b""
        while not data:
            if self._member.eof and not self._next_member():
                return 0
            packed = self._packed or self._file.read(_CHUNK)
            data = self._member.decompress(packed, len(buffer))
            self._packed = self._member.unconsumed_tail
            if not (packed or data or self._member.eof):
                raise EOFError("the packed file is truncated")
        buffer[: len(data)] = data
        self._given += len(data)
        self._check(self._given)
        return len(data)

    def _next_member(self) -> bool:
        """Whether another one follows, after any zeros."""
        packed = self._member.unused_data.lstrip(b"\0")
        while not packed:
            packed = self._file.read(_CHUNK)
            if not packed:
                return False
            packed = packed.lstrip(b"\0")
        self._member, self._packed = zlib.decompressobj(_GZIP), packed
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
