"""Reading text files a line at a time in bounded memory, the rows of a log, and which readers know
its format: from regular files alone, with errors that name the log and the reader.
"""

from __future__ import annotations

import codecs
import gzip
import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from json import loads
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec

from embeddb.core import plugins
from embeddb.core.errors import EmbeddbError, PluginWarning, ReaderError
from embeddb.core.files.safe_read import open_regular, reason_of
from embeddb.matrix_files.source import STREAMED
from indexer.readers.base.row import Reader, ReadOptions, Reject, RunRow, checked_row

_decode = msgspec.json.Decoder().decode

#: Longest line that is read; a longer one becomes a reject, whatever it holds.
LINE_BYTES = 1 << 20
#: Largest file (decompressed) of a format that is one JSON document.
DOCUMENT_BYTES = 1 << 29
_BLOCK = 1 << 18
_ZIP = "a zip archive"
#: Beginnings of files in forms that are not read.
_PACKED = {
    b"\xfd7zXZ\0": "xz-compressed",
    b"BZh": "bzip2-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"PK\x03\x04": _ZIP,
    b"PAR1": "a Parquet file",
}
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
#: Marks that texts of two and four bytes a character begin with; the longer ones first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Bytes that are no printable characters of Latin-1.
_NOT_LATIN = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_NESTED = frozenset((dict, list))
#: Ends of keys that have space before their colon.
_SPACED_END = re.compile(r'"\s+:')
#: Numbers that JSON lacks, though Python's `json` writes them.
_NOT_JSON = re.compile(r"\b(?:NaN|Infinity)\b")


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed if it is gzip (recognised by content, not by name).

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
    """Gzip file that also closes the compressed file."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file)
        self._packed = file

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._packed.close()


def head_of(path: Path, size: int = 4096) -> bytes:
    """The first decompressed bytes, of a text as `numbered` reads it: in UTF-8 without its mark.
    Fewer or none if the file is short or damaged."""
    with open_bytes(path) as file:
        try:
            head = file.read(size)
        except (OSError, *_DAMAGED):
            return b""
    encoding = _marked(head)
    if encoding:
        head = head.decode(encoding, "ignore").encode()
    head = head.removeprefix(codecs.BOM_UTF8)
    return head.replace(b"\r", b"\n") if _ends_in_cr(head) else head


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
    """Every line without its end (LF, CR LF, or CR alone in the whole file).

    A line that is not text is yielded as "" so that counting stays right, and its reject goes into
    `bad` under its number. UTF-16 and UTF-32 are recognised by their marks, Latin-1 by a beginning
    that is no UTF-8.

    Raises: ReaderError if compressed data is damaged or cut off.
    """
    number, rest, skipping = 0, b"", False
    for block in _utf8_blocks(path):
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
    """Decompressed blocks of a file, none of them empty. Raises: ReaderError, also for a packed
    file that unpacks to more than any real log of its size."""
    size = 0
    with open_bytes(path) as file:
        packed = path.stat().st_size if isinstance(cast(object, file), _Unpacked) else 0
        most = max(STREAMED[0], STREAMED[1] * packed) if packed else math.inf
        # `read` loses what it has decompressed before the place where the data is cut off.
        read = cast(Callable[[int], bytes], getattr(file, "read1", file.read))
        while True:
            try:
                block = read(_BLOCK)
            except _DAMAGED as error:
                cut = isinstance(error, EOFError)
                why = f"cut off after {size} bytes: its end is missing"
                raise ReaderError(
                    f"the compressed data is {why if cut else f'damaged after {size} bytes'}",
                    where=str(path),
                    hint="get the file again; the rows before this point are good",
                ) from None
            except OSError as error:
                raise ReaderError(error.strerror or "cannot be read", where=str(path)) from None
            if not block:
                return
            size += len(block)
            if size > most:
                raise ReaderError(
                    f"{packed} bytes unpack to more than {most / 2**20:.0f} MiB",
                    where=str(path),
                    hint="if the log is real, decompress it first",
                )
            yield block


def refuse_packed(path: Path, *, zipped: bool = True) -> None:
    """Raises: ReaderError for a file in a compressed or binary form that is not read, `zipped` or
    not: some readers read zip archives."""
    with open_bytes(path) as file, suppress(OSError, *_DAMAGED):
        head = file.read(8)
        for mark, form in _PACKED.items():
            if head.startswith(mark) and (zipped or form != _ZIP):
                how = "write it as CSV" if form == "a Parquet file" else "decompress it first"
                if form == _ZIP:
                    how += ", a spreadsheet: write it as CSV"
                raise ReaderError(f"{form}: {how}", where=str(path))


def _utf8_blocks(path: Path) -> Iterator[bytes]:
    """Blocks of a text in UTF-8, its lines ending in LF or CR LF."""
    refuse_packed(path, zipped=False)
    blocks = _blocks(path)
    first = next(blocks, b"")
    encoding = _marked(first) or ("latin-1" if _is_latin(first) else "")
    blocks = chain((first,), blocks)
    if encoding:
        blocks = _recoded(blocks, encoding, path)
        first = next(blocks, b"")
        blocks = chain((first,), blocks)
    if _ends_in_cr(first):
        blocks = (block.replace(b"\r", b"\n") for block in blocks)
    yield from blocks


def _recoded(blocks: Iterator[bytes], encoding: str, path: Path) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for block in blocks:
            yield decoder.decode(block).encode()
        decoder.decode(b"", final=True)
    except UnicodeError:
        why = f"the {encoding.upper()} text is damaged or cut off"
        raise ReaderError(why, where=str(path)) from None


def _marked(head: bytes) -> str:
    return next((name for mark, name in _MARKS if head.startswith(mark)), "")


def _is_latin(head: bytes) -> bool:
    """True if a beginning has characters of Latin-1, and none of UTF-8."""
    if head.isascii() or _NOT_LATIN.search(head):
        return False
    lines = [line for line in head.split(b"\n")[:-1] or [head] if not line.isascii()]
    return bool(lines) and not any(map(_is_text, lines))


def _ends_in_cr(head: bytes) -> bool:
    return b"\r" in head and b"\n" not in head


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
    is a `Reject` where the line is not JSON (numbers beyond 1e308 are not) or an object of it has
    a key twice. Python's NaN and Infinity are read."""
    bad: dict[int, Reject] = {}
    for number, line in enumerate(numbered(path, bad), 1):
        if not line or line.isspace() or line[0] == "#":
            if number in bad:
                yield number, bad.pop(number)
            continue
        try:
            value = decode(line)
            _refuse_repeated_keys(line, value)
        except RepeatedKey as repeated:
            value = Reject(number, str(repeated)[:200], line[:200])
        except (msgspec.DecodeError, RecursionError) as error:
            value = _with_nan(line, number) if decode is _decode else None
            if value is None:
                value = Reject(number, f"not JSON: {error}"[:200], line[:200])
        yield number, value


def json_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Records of a file as `json_lines`, or of one that is a list of them, by their numbers in it.

    Raises: ReaderError for a list that is damaged, or an object of it that has a key twice.
    """
    if not json_list(head_of(path)):
        yield from json_lines(path)
        return
    try:
        records = loads(whole(path), object_pairs_hook=unique_keys)
    except RepeatedKey as repeated:
        raise ReaderError(str(repeated), where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise ReaderError(f"not JSON: {error}"[:200], where=str(path)) from None
    yield from enumerate(records, 1)


class RepeatedKey(Exception):
    """An object with this key twice, so that one of its values would be lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Hook of `json.loads` for objects. Raises: RepeatedKey."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return record


def json_list(head: bytes) -> bool:
    """True if a file begins as a JSON list of objects."""
    return re.match(rb"\s*\[\s*\{", head) is not None


def _refuse_repeated_keys(line: str, value: Any) -> None:
    """Parse a line once more if it may have more keys than its decoded value.

    Raises: RepeatedKey; DecodeError if the standard parser refuses the line.
    """
    most = line.count('":')
    if " :" in line or "\t:" in line:
        most += len(_SPACED_END.findall(line))
    if (isinstance(value, dict) and most == len(value)) or most == _key_count(value):
        return
    try:
        loads(line, object_pairs_hook=unique_keys)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _key_count(value: Any) -> int:
    """Number of keys of all objects in a decoded value."""
    if isinstance(value, dict):
        return len(value) + _key_count([*value.values()])
    if not isinstance(value, list) or _NESTED.isdisjoint(map(type, value)):
        return 0
    return sum(map(_key_count, value))


def _with_nan(line: str, number: int) -> Any:
    """A line of JSON that has NaN or Infinity, or its reject; None if it is not JSON."""
    if _NOT_JSON.search(line) is None:
        return None
    try:
        return loads(line, object_pairs_hook=unique_keys)
    except RepeatedKey as repeated:
        return Reject(number, str(repeated)[:200], line[:200])
    except (ValueError, RecursionError):
        return None


#: Most files examined below a folder that is given as a log.
MOST_FILES = 100_000


def read_rows(reader: Reader, path: Path, options: ReadOptions) -> Iterator[RunRow | Reject]:
    """Rows and rejects of a log by a reader, built-in or plug-in.

    Raises: ReaderError naming the log if it cannot be read, or if its format needs the width of an
    operation that was named without one; other EmbeddbErrors pass.
    """
    if options.op_name and not reader.generic:
        why = f"a log of {reader.name} has no column with the dense columns of {options.op_name}"
        raise ReaderError(why, where=str(path), hint=f"give --op {options.op_name}:128")
    try:
        rows = reader.rows(path, options=options)
        yield from rows if plugins.ships(reader) else map(checked_row, rows)
    except ReaderError as error:
        if error.where:
            raise
        raise ReaderError(error.reason, where=str(path), line=error.line, hint=error.hint) from None
    except EmbeddbError:
        raise
    except plugins.FAULTS as error:
        raise ReaderError(
            f"the reader {reader.name} failed: {reason_of(error)}",
            where=str(path),
            hint="the file is damaged or of another format, or the reader has a bug",
        ) from error


def files_below(folder: Path, ending: str) -> list[Path]:
    """Regular files with an ending in a folder that is given as a log, sorted. Links are not
    followed, since they may lead to any file of the reading user.

    Raises: ReaderError for too many files.
    """
    files: list[Path] = []
    seen = 0
    for place, _, names in os.walk(folder):
        seen += len(names)
        if seen > MOST_FILES:
            raise ReaderError(f"more than {MOST_FILES} files", where=str(folder))
        paths = (Path(place, name) for name in names if name.endswith(ending))
        files += (path for path in paths if path.is_file() and not path.is_symlink())
    return sorted(files)


def guess(path: Path) -> list[str]:
    """Names of the readers that recognise the file, the most specific first. One that fails to
    examine it is an error where no other recognises it, and else a `PluginWarning`."""
    head = b"" if path.is_dir() else head_of(path)
    names, faults = [], list[ReaderError]()
    for name in plugins.available("reader"):
        try:
            reader: Reader = plugins.created("reader", name)
            if reader.sniff(path, head):
                names.append((reader.generic, name))
        except plugins.FAULTS as error:
            hint = f"the reader {name} failed to examine it"
            faults.append(ReaderError(reason_of(error), where=str(path), hint=hint))
    if faults and not names:
        raise faults[0]
    for fault in faults:
        warnings.warn(f"{fault} ({fault.hint})", PluginWarning, stacklevel=2)
    return [name for _, name in sorted(names)]


def wrong_file(path: Path, reader: str, why: str, *, line: int | None = None) -> ReaderError:
    """The error for a file that another reader should read; names that reader."""
    others = [name for name in guess(path) if name != reader]
    hint = f"`embeddb index` with --format {others[0]} may read it" if others else ""
    one = "an" if reader[0] in "aeio" else "a"
    return ReaderError(f"not {one} {reader} file: {why}", where=str(path), line=line, hint=hint)


def document_of(path: Path, reader: str) -> str:
    """Text of a file. Raises: ReaderError if it is too large or not UTF-8."""
    try:
        return whole_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise wrong_file(path, reader, "not UTF-8 text") from None


def refuse_other(reader: Reader, path: Path) -> None:
    """Raises: ReaderError if the file is not of the reader's format but plainly of another."""
    names = guess(path)
    if names and reader.name not in names:
        raise wrong_file(path, reader.name, "its first line is of another format")
