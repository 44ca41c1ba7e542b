"""Reading text files a line at a time in bounded memory, whatever the file holds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec

from embeddb.core.errors import ReaderError
from embeddb.core.files.gate import open_regular, reason_of
from indexer.readers.base.row import Reject

__all__ = ["LINE_BYTES", "head_of", "json_lines", "numbered", "open_bytes", "whole", "whole_bytes"]

_decode = msgspec.json.Decoder().decode

#: Longest line that is read; a longer one becomes a reject, whatever it holds.
LINE_BYTES = 1 << 20
#: Largest file (decompressed) of a format that is one JSON document.
DOCUMENT_BYTES = 1 << 29
_BLOCK = 1 << 18
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed if it is gzip (told by content, not by name).

    Raises: ReaderError if it cannot be opened, or is not a regular file.
    """
    try:
        file = open_regular(path)
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ReaderError(reason_of(error), where=str(path)) from None
    return cast(IO[bytes], _Unpacked(file)) if packed else file


class _Unpacked(gzip.GzipFile):
    """Closes what it unpacks, too."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file)
        self._packed = file

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._packed.close()


def head_of(path: Path, size: int = 4096) -> bytes:
    """The first decompressed bytes; fewer or none if the file is short or damaged."""
    with open_bytes(path) as file:
        try:
            return file.read(size)
        except (OSError, *_DAMAGED):
            return b""


def whole(path: Path) -> str:
    """A file that is one document. Raises: ReaderError if it is too large or not UTF-8."""
    try:
        return whole_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ReaderError("not UTF-8 text", where=str(path)) from None


def whole_bytes(path: Path, most: int = DOCUMENT_BYTES) -> bytes:
    """A file that is read at once. Raises: ReaderError if it has more than `most` bytes."""
    parts, size = [], 0
    for block in _blocks(path):
        parts.append(block)
        size += len(block)
        if size > most:
            raise ReaderError(f"more than {most >> 20} MiB in one piece", where=str(path))
    return b"".join(parts)


def numbered(path: Path, bad: dict[int, Reject]) -> Iterator[str]:
    """Every line without its end. A line that is not text is yielded as "" so that counting
    stays right, and its reject goes into `bad` under its number.

    Raises: ReaderError if compressed data is damaged or cut off.
    """
    number, rest, skipping = 0, b"", False
    for block in _blocks(path):
        if skipping:
            cut = block.find(b"\n")
            if cut < 0:
                continue
            block, skipping = block[cut + 1 :], False
        data = rest + block
        cut = data.rfind(b"\n")
        if cut >= 0:
            lines = _decoded(data[:cut], number, bad)
            yield from lines
            number += len(lines)
        rest = data[cut + 1 :]
        if len(rest) > LINE_BYTES:
            number += 1
            bad[number] = _too_long(number, rest)
            yield ""
            rest, skipping = b"", True
    if rest:
        yield from _decoded(rest, number, bad)


def _blocks(path: Path) -> Iterator[bytes]:
    size = 0
    with open_bytes(path) as file:
        while True:
            try:
                block = file.read(_BLOCK)
            except _DAMAGED:
                raise ReaderError(
                    f"the compressed data is damaged or cut off after {size} bytes",
                    where=str(path),
                    hint="get the file again; the rows before this point are good",
                ) from None
            except OSError as error:
                raise ReaderError(error.strerror or "cannot be read", where=str(path)) from None
            if not block:
                return
            size += len(block)
            yield block


def _decoded(chunk: bytes, number: int, bad: dict[int, Reject]) -> list[str]:
    """Lines of a chunk that ends at a line end; `number` lines came before it."""
    if chunk.isascii() or _is_text(chunk):
        text = chunk.decode("utf-8-sig" if number == 0 else "utf-8")
        if "\r" in text:
            text = text.replace("\r\n", "\n").removesuffix("\r")
        if "\0" not in text and "\r" not in text and len(chunk) <= LINE_BYTES:
            return text.split("\n")
    return [_one(line, number + i, bad) for i, line in enumerate(chunk.split(b"\n"), 1)]


def _is_text(chunk: bytes) -> bool:
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one(line: bytes, number: int, bad: dict[int, Reject]) -> str:
    line = line.removesuffix(b"\r")
    if len(line) > LINE_BYTES:
        bad[number] = _too_long(number, line)
    elif b"\0" in line or b"\r" in line:
        bad[number] = Reject(number, "a NUL or carriage return inside the line", _shown(line))
    else:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 text (byte {error.start + 1} of the line)"
            bad[number] = Reject(number, reason, _shown(line))
    return ""


def _too_long(number: int, line: bytes) -> Reject:
    return Reject(number, f"the line is longer than {LINE_BYTES >> 20} MiB", _shown(line))


def _shown(line: bytes) -> str:
    return line[:800].decode(errors="replace").replace("\0", "\\0")[:200]


def json_lines(path: Path, decode: Callable[[str], Any] = _decode) -> Iterator[tuple[int, Any]]:
    """Line number and decoded value of every line that is not blank or a `#` comment; the value
    is a `Reject` where the line is not JSON (NaN and numbers beyond 1e308 are not)."""
    bad: dict[int, Reject] = {}
    for number, line in enumerate(numbered(path, bad), 1):
        if not line or line.isspace() or line[0] == "#":
            if number in bad:
                yield number, bad.pop(number)
            continue
        try:
            yield number, decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            yield number, Reject(number, f"not JSON: {error}"[:200], line[:200])
