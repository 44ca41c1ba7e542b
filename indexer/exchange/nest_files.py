"""Nests beside an export that can only name them, as files that `--matrices FOLDER` finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from embeddb.core.files.own_files import whole_file
from embeddb.core.records import PatternInfo
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_text

__all__ = ["one_name_each", "write_nests"]

#: Bytes and nests of a file; `indexer.frontends` reads twice as much of one.
_MOST_BYTES, _MOST_NESTS = 8 << 20, 5000


def one_name_each(infos: Iterable[PatternInfo]) -> list[PatternInfo]:
    """With the id for a name where a nest has none, or several have the same."""
    infos = list(infos)
    count = Counter(info.name for info in infos if info.kind == "nest")
    return [
        msgspec.structs.replace(info, name=info.id)
        if info.kind == "nest" and (not info.name or count[info.name] > 1)
        else info
        for info in infos
    ]


def write_nests(nests: Iterable[tuple[str, Nest]], export: Path) -> list[str]:
    """Nests by the names they go by in an export, into as few files as can be read: of `runs.csv`
    beside it `runs.nests.json`, then `runs.nests-2.json`. The names of these files.

    Raises: OSError.
    """
    stem = export.name.removesuffix(".gz").rpartition(".")[0] or export.name
    written: list[str] = []
    for texts in _files(nest_text(replace(nest, name=name)) for name, nest in nests):
        number = f"-{len(written) + 1}" if written else ""
        path = export.with_name(f"{stem}.nests{number}.json")
        with whole_file(path) as out:
            out.write(b"[" + b",\n".join(texts) + b"]\n")
        written.append(str(path))
    return written


def _files(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    kept: list[bytes] = []
    size = 0
    for text in texts:
        if kept and (size + len(text) > _MOST_BYTES or len(kept) == _MOST_NESTS):
            yield kept
            kept, size = [], 0
        kept.append(text)
        size += len(text)
    if kept:
        yield kept
