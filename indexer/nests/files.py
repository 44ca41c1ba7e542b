"""Files with loop nests in a folder, found by the names that run logs use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from embeddb.core.errors import NestError
from embeddb.matrix_files.source import plain_text
from embeddb.nests.nest import Nest
from indexer.frontends import read_nests

__all__ = ["NestFiles"]

_SUFFIXES = (".json", ".c", ".sdfg")


class NestFiles:
    """The nests in the files below `folder`, all read when a name is asked for first: a file may
    hold several, and its own name need not be theirs.

    `problems` gets one line for every file that cannot be read, and for names of several nests.
    """

    def __init__(self, folder: Path, problems: list[str]) -> None:
        self._files = sorted(_found(folder))
        self._problems = problems
        self._named: dict[str, dict[str, tuple[Path, Nest]]] | None = None

    def __len__(self) -> int:
        return len(self._files)

    def find(self, name: str) -> Nest | None:
        """The nest of that name; None too where nests that differ go by it."""
        if self._named is None:
            self._named = self._read()
        held = self._named.get(name, {})
        if len(held) > 1:
            files = ", ".join(dict.fromkeys(plain_text(file) for file, _ in held.values()))
            self._problems.append(f"{name} may be any of {len(held)} nests, which differ: {files}")
        return next(iter(held.values()))[1] if len(held) == 1 else None

    def _read(self) -> dict[str, dict[str, tuple[Path, Nest]]]:
        named: dict[str, dict[str, tuple[Path, Nest]]] = {}
        for file in self._files:
            try:
                nests = read_nests(file)
            except NestError as e:
                self._problems.append(str(e))
                continue
            for nest in nests:
                named.setdefault(nest.name, {}).setdefault(nest.id, (file, nest))
        return named


def _found(folder: Path) -> Iterator[Path]:
    """Hidden files and folders are left out, as among matrices."""
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if not name.startswith(".") and path.suffix.lower() in _SUFFIXES and path.is_file():
                yield path
