"""Recognition of a file's format, and the error for a file given to the wrong reader."""

from __future__ import annotations

from pathlib import Path

from embeddb.core import plugins
from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import refusing
from indexer.readers.base.lines import head_of, whole_bytes
from indexer.readers.base.row import Reader


def guess(path: Path) -> list[str]:
    """Names of the readers that recognise the file, the most specific first."""
    head = b"" if path.is_dir() else head_of(path)
    names = []
    for name in plugins.available("reader"):
        reader: Reader = plugins.load("reader", name)()
        with refusing(ReaderError, where=str(path), hint=f"the reader {name} failed to examine it"):
            fits = reader.sniff(path, head)
        if fits:
            names.append((reader.generic, name))
    return [name for _, name in sorted(names)]


def wrong_file(path: Path, reader: str, why: str) -> ReaderError:
    """The error for a file that another reader should read; names that reader."""
    others = [name for name in guess(path) if name != reader]
    hint = f"it looks like {others[0]}: use --format {others[0]}" if others else ""
    return ReaderError(f"not a {reader} file: {why}", where=str(path), hint=hint)


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
