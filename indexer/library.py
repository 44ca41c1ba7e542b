"""Matrix files in a folder, found by the names that run logs use."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.thumbnail import thumbnail
from embeddb.matrix_files import matrix_files, read_pattern
from embeddb.matrix_files.source import plain_text

__all__ = ["Library", "info_of"]


class Library:
    """The matrix files below `folder`, read when a name is asked for.

    `problems` collects one line for every file that could not be read or did not fit its name.
    """

    def __init__(self, folder: Path | None, *, groups: dict[str, str] | None = None) -> None:
        self._files: dict[str, list[Path]] = {}
        self._groups = groups or {}
        self.problems: list[str] = []
        for file in matrix_files(folder) if folder is not None else ():
            self._files.setdefault(matrix_name(file), []).append(file)

    def __len__(self) -> int:
        return len(self._files)

    def names(self) -> list[str]:
        return sorted(self._files)

    def find(self, name: str, *, m: int = -1, n: int = -1, nnz: int = -1) -> Pattern | None:
        """The pattern of that name and those sizes (-1: any), or None."""
        for file in self._files.get(name, ()):
            try:
                pattern = read_pattern(file, name=name, group=self._groups.get(name, ""))
            except MatrixError as e:
                self.problems.append(str(e))
                continue
            if all(w in (-1, g) for w, g in zip((m, n, nnz), sizes(pattern), strict=True)):
                return pattern
            self.problems.append(
                f"{plain_text(file)}: {pattern.shape[0]} x {pattern.shape[1]} with {pattern.nnz} "
                f"entries is not the {name} of the runs ({m} x {n}, {nnz})"
            )
        return None


def sizes(pattern: Pattern) -> tuple[int, int, int]:
    return (*pattern.shape, pattern.nnz)


def matrix_name(file: Path) -> str:
    """The name of a matrix file without any of its endings; bytes that are no text are escaped."""
    name = plain_text(file.name).removesuffix(".gz")
    return name.rsplit(".", 1)[0] if "." in name else name


def info_of(pattern: Pattern) -> PatternInfo:
    """What the store keeps about a pattern beside its structure."""
    m, n = pattern.shape
    return PatternInfo(
        id=pattern.id,
        m=m,
        n=n,
        nnz=pattern.nnz,
        name=pattern.name,
        group=pattern.group,
        thumbnail=thumbnail(pattern),
    )
