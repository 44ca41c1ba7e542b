"""Files with loop nests or tensors in a folder, found by the names that run logs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from embeddb.core.errors import InputError
from embeddb.core.subject import Subject
from embeddb.matrix_files.source import plain_text

__all__ = ["CodedFiles"]

T = TypeVar("T", bound=Subject)


class CodedFiles(Generic[T]):
    """What `read` finds in `files`, all read when a name is asked for first: a file may hold
    several, and its own name need not be theirs.

    `problems` gets one line for every file that cannot be read, and for names of several subjects.
    """

    def __init__(
        self, files: Iterable[Path], read: Callable[[Path], Sequence[T]], problems: list[str]
    ) -> None:
        self._files = sorted(files)
        self._read_one = read
        self._problems = problems
        self._named: dict[tuple[str, str], dict[str, tuple[Path, T]]] | None = None

    def __len__(self) -> int:
        return len(self._files)

    def find(self, kind: str, name: str) -> T | None:
        """The subject of that kind and name; None too where some that differ go by it."""
        if self._named is None:
            self._named = self._read()
        held = self._named.get((kind, name), {})
        if len(held) > 1:
            files = ", ".join(dict.fromkeys(plain_text(file) for file, _ in held.values()))
            self._problems.append(
                f"{name} may be any of {len(held)} {kind}s, which differ: {files}"
            )
        return next(iter(held.values()))[1] if len(held) == 1 else None

    def _read(self) -> dict[tuple[str, str], dict[str, tuple[Path, T]]]:
        named: dict[tuple[str, str], dict[str, tuple[Path, T]]] = {}
        for file in self._files:
            try:
                found = self._read_one(file)
            except InputError as e:
                self._problems.append(str(e))
                continue
            for one in found:
                named.setdefault((one.kind, one.name), {}).setdefault(one.id, (file, one))
        return named
