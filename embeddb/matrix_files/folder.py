"""The matrix files below a folder, and names that tell them apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.files.gate import refusing
from embeddb.matrix_files.matrix_market import is_right_hand_side
from embeddb.matrix_files.recognise import has_ending, is_matrix_text, matrix_name, stem
from embeddb.matrix_files.source import plain_text

__all__ = ["matrix_files", "matrix_names", "name_beside"]


#: Files left out that are named, and folders beside a file's own that are looked into.
_MOST_NAMED, _MOST_BESIDE = 3, 100


def matrix_files(folder: str | Path, *, note: Callable[[str], None] = lambda _: None) -> list[Path]:
    """All matrix files below a folder, sorted; hidden ones and other files are left out.

    Text (`.txt`, KONECT's `out.NAME`) counts only if its content is a matrix. What SuiteSparse's
    archives have beside `NAME.mtx` is left out: in a folder `NAME` every `NAME_*` and all text,
    elsewhere text `NAME_*` and what is called so and is a column or a few dense ones; `note` gets
    a line about those. Folders that are links are not entered, and a link to a file counts as that
    file.

    Raises: MatrixError if it is not a folder or cannot be read.
    """
    root = Path(folder)
    with refusing(MatrixError, where=plain_text(folder)):
        if not root.is_dir():
            raise MatrixError("not a folder")
        files, beside = list[Path](), list[Path]()
        for path, goes_along in _below(root):
            (beside if goes_along else files).append(path)
    if beside:
        names = ", ".join(plain_text(path.name) for path in sorted(beside)[:_MOST_NAMED])
        more = ", …" if len(beside) > _MOST_NAMED else ""
        note(
            f"{plain_text(folder)}: not taken as matrices: {len(beside)} files that go with the "
            f"matrix whose name they begin with ({names}{more})"
        )
    return sorted(files)


def matrix_names(files: Iterable[Path], root: Path) -> dict[Path, str]:
    """A name for each matrix file below `root`: without folders and endings, or, where files of
    several folders would share it (`s1/matrix.mtx`, `s2/matrix.mtx`), with the folders below `root`
    (`s1/matrix`). Bytes that are no text are escaped."""
    bare = {file: matrix_name(file) for file in files}
    folders: dict[str, set[Path]] = {}
    for file, name in bare.items():
        folders.setdefault(name, set()).add(file.parent)
    return {
        file: name if len(folders[name]) == 1 else _with_folders(file, name, root)
        for file, name in bare.items()
    }


def name_beside(file: Path) -> str:
    """The name of one matrix file: with its folder (`s1/matrix`) where a folder beside that one has
    a file of the same name, as `matrix_names` tells them apart."""
    name, own = matrix_name(file), file.absolute().parent
    with suppress(OSError), os.scandir(own.parent) as beside:
        for folder in islice(beside, _MOST_BESIDE):
            if folder.name != own.name and Path(folder.path, file.name).is_file():
                return f"{plain_text(own.name)}/{name}"
    return name


def _with_folders(file: Path, name: str, root: Path) -> str:
    return "/".join([*map(plain_text, file.relative_to(root).parts[:-1]), name])


def _below(root: Path) -> Iterator[tuple[Path, bool]]:
    """Each file that may be a matrix, and whether it only goes with the matrix of another one."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        named = [Path(folder, name) for name in names if not name.startswith(".")]
        main = {stem(path) for path in named if has_ending(path)}
        for path in named:
            # Not `exists`: a pipe would be waited for, a device never ends.
            if path.is_file() and (has_ending(path) or _is_matrix(path)):
                yield path, _goes_along(path, main)


def _goes_along(path: Path, main: set[str]) -> bool:
    """`main` has the names of the files of the same folder that are matrices by their ending."""
    own, folder = stem(path), path.parent.name
    text = not has_ending(path)
    if folder in main and (text or own.startswith(f"{folder}_")):
        return True
    parts = own.split("_")
    if not any("_".join(parts[:count]) in main for count in range(1, len(parts))):
        return False
    return text or is_right_hand_side(path)


def _is_matrix(path: Path) -> bool:
    try:
        with refusing(MatrixError):
            return is_matrix_text(path)
    except MatrixError:
        return False
