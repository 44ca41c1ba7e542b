"""Files with matrices, loop nests and tensors: their contents, and a folder of them by the names
used in run logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from embeddb.core.errors import InputError, MatrixError
from embeddb.core.kinds import kind_of, kinds
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.core.workload import Workload
from embeddb.matrix_files import (
    matrix_files,
    matrix_name,
    matrix_names,
    plain_name,
    read_pattern,
)
from embeddb.matrix_files.source import plain_text


def contents(file: str, kind: str = "") -> list[Workload]:
    """Return the workloads of one kind in a file; without `kind`, of the kind whose files have its
    ending.

    Raises: MatrixError, NestError or TensorError.
    """
    path = Path(file)
    ending = path.suffix.lower()
    own = next((one for one in kinds() if ending in one.endings), kinds()[0])
    wanted = kind_of(kind) if kind else own
    if own.endings and wanted.sparse:
        what = f"a program with loop {own.many}, not a {wanted.one}"
        hint = f"--op {own.operations[0].name} selects its {own.many}"
        raise MatrixError(what, where=file, hint=hint)
    return list(wanted.read_file(path, alone=True))


def every_content(file: str) -> list[Workload]:
    """Return the workloads in a file; of HLO both its kernel and its program. Raises: as
    `contents`."""
    able = [kind.name for kind in kinds() if kind.recognises(Path(file))]
    if not able:
        return contents(file)
    contents_of_kinds: list[Workload] = []
    for kind in able:
        with suppress(InputError):  # a list of the other kind alone
            contents_of_kinds += contents(file, kind)
    return contents_of_kinds or contents(file, able[0])  # raises the error


def _triangle(pattern: Pattern, nnz: int) -> str:
    """Text for a number of entries that is that of the lower triangle, as symmetric files store."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return ": its lower triangle" if nnz == np.count_nonzero(pattern.indices <= rows) else ""


class Library:
    """The files with matrices, nests and tensors below `folder`, read when a name is first looked
    up.

    A run log may name a matrix with or without folders and endings (`HB/bcspwr10.mtx`,
    `bcspwr10.mtx.gz`, `bcspwr10`); so may the folder. `problems` collects one line for every file
    that could not be read or did not fit its name, and for names of several files.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._files: dict[str, list[Path]] = {}
        self._named: dict[Path, str] = {}
        self.problems: list[str] = []
        files = matrix_files(folder, note=self.problems.append) if folder is not None else []
        self._names = matrix_names(files, folder) if folder is not None else {}
        for file in files:
            self._files.setdefault(matrix_name(file), []).append(file)
        self._coded = {
            kind.name: _CodedFiles(kind.files(folder), kind.read_file, self.problems)
            for kind in kinds()
            if folder is not None and kind.files_of in ("", kind.name)
        }

    def __len__(self) -> int:
        return len(self._files) + sum(map(len, self._coded.values()))

    def subject(self, kind: str, name: str, sizes: Sizes = UNKNOWN) -> Workload | None:
        """The matrix (`find`), nest, kernel or program of that name, or None."""
        if kind_of(kind).sparse:
            m, n, nnz = sizes
            return self.find(name, m=m, n=n, nnz=nnz)
        coded = self._coded.get(kind_of(kind).files_of or kind)
        return coded.find(kind, name) if coded is not None else None

    def find(self, name: str, *, m: int = -1, n: int = -1, nnz: int = -1) -> Pattern | None:
        """The pattern of that name and those sizes (-1: any); None without one, or if several
        differ."""
        fits: dict[str, tuple[Path, Pattern]] = {}
        for file in self._candidates(name):
            if any(file.parent == other.parent for other, _ in fits.values()):
                continue  # the same matrix in another format
            pattern = self._read(file, name)
            if pattern is None:
                continue
            sizes, wanted = (*pattern.shape, pattern.nnz), (m, n, nnz)
            if all(w in (-1, g) for w, g in zip(wanted, sizes, strict=True)):
                fits.setdefault(pattern.id, (file, pattern))
            else:
                rows, columns, entries = ("?" if size < 0 else size for size in wanted)
                self.problems.append(
                    f"{plain_text(file)}: {pattern.shape[0]} x {pattern.shape[1]} with "
                    f"{pattern.nnz} entries is not the {name} of the runs "
                    f"({rows} x {columns}, {entries}{_triangle(pattern, nnz)})"
                )
        if len(fits) > 1:
            files = ", ".join(plain_text(file) for file, _ in fits.values())
            self.problems.append(
                f"{name} may be any of {files}, which differ: name its folder in the log"
            )
        if len(fits) != 1:
            return None
        file, pattern = next(iter(fits.values()))
        if nnz < 0 and not self._one_name(file, name):
            return None
        return self._qualified(file, name, pattern)

    def _candidates(self, name: str) -> list[Path]:
        """Files of a name: those that share most of its folders, and of these the one with the same
        spelling, if any."""
        files = self._files.get(name) or self._files.get(plain_name(name), [])
        *folders, last = name.replace("\\", "/").split("/")

        def alike(file: Path) -> tuple[int, bool]:
            return len(set(folders) & set(self._folders(file))), file.name == last

        best = max(map(alike, files), default=None)
        return [file for file in files if alike(file) == best]

    def _folders(self, file: Path) -> tuple[str, ...]:
        return file.relative_to(self.folder).parts[:-1] if self.folder is not None else ()

    def _read(self, file: Path, name: str) -> Pattern | None:
        own = name if name in self._files else plain_name(name)
        try:
            return read_pattern(file, name=own)
        except MatrixError as e:
            self.problems.append(str(e))
            return None

    def _qualified(self, file: Path, name: str, pattern: Pattern) -> Pattern:
        """The pattern; if another folder has another matrix of its name, named and grouped with its
        folders."""
        others = [o for o in self._files[matrix_name(file)] if o.parent != file.parent]
        if all(other == pattern for o in others if (other := self._read(o, name)) is not None):
            return pattern
        own = self._names[file]
        group = own if pattern.group == pattern.name else pattern.group
        return dataclasses.replace(pattern, name=own, group=group)

    def _one_name(self, file: Path, name: str) -> bool:
        """True if the file was looked up by no other name: `a/1.mtx` and `b/1.mtx` are two
        matrices."""
        first = self._named.setdefault(file, name)
        if "/" not in first or "/" not in name or first == name:
            return True
        self.problems.append(f"{plain_text(file)} was taken for {first}, and may be {name} as well")
        return False


class _CodedFiles:
    """The workloads that `read` returns for `files`, all read at the first lookup: a file may hold
    several, and its own name need not be theirs.

    `problems` gets one line for every file that cannot be read, and for names of several workloads.
    """

    def __init__(
        self,
        files: Iterable[Path],
        read: Callable[[Path], Sequence[Workload]],
        problems: list[str],
    ) -> None:
        self._files = sorted(files)
        self._read_one = read
        self._problems = problems

    def __len__(self) -> int:
        return len(self._files)

    def find(self, kind: str, name: str) -> Workload | None:
        """The workload of that kind and name; None without one, or if several differ."""
        candidates = self._named.get((kind, name), {})
        if len(candidates) > 1:
            files = ", ".join(dict.fromkeys(plain_text(file) for file, _ in candidates.values()))
            self._problems.append(
                f"{name} may be any of {len(candidates)} {kind}s, which differ: {files}"
            )
        return next(iter(candidates.values()))[1] if len(candidates) == 1 else None

    @cached_property
    def _named(self) -> dict[tuple[str, str], dict[str, tuple[Path, Workload]]]:
        named: dict[tuple[str, str], dict[str, tuple[Path, Workload]]] = {}
        for file in self._files:
            try:
                workloads = self._read_one(file)
            except InputError as e:
                self._problems.append(str(e))
                continue
            for one in workloads:
                named.setdefault((one.kind, one.name), {}).setdefault(one.id, (file, one))
        return named
