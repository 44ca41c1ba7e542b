"""Readers of loop nests: nest files, C with `#pragma scop`, and the inputs of DaCe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from embeddb.core.errors import NestError
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.core.pattern import Pattern
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text
from indexer.frontends.c.scop import CFile, read_c
from indexer.frontends.dace.control import sdfg_program
from indexer.frontends.dace.python_program import sdfg_files
from indexer.frontends.distribute import nests_of
from indexer.frontends.hlo.files import holds_tensors, visible_files
from indexer.frontends.tree import Extraction

__all__ = ["extract", "nest_files", "read_c_file", "read_nests"]

_MOST_BYTES = {".json": 16 << 20, ".c": 1 << 20, ".sdfg": 64 << 20}
_MOST_NESTS = 10_000
_WITH_MATRIX = (".c", ".json")


def read_nests(
    path: str | Path,
    *,
    defines: Mapping[str, int | float] | None = None,
    dace_python: str | None = None,
    matrix: Pattern | None = None,
) -> list[Nest]:
    """Loop nests of a file.

    `.json` has one nest or a list of them, `.c` scops, `.sdfg` a graph of DaCe; Python (`.py`) is
    read by DaCe with the interpreter `dace_python` or the one in `EMBEDDB_DACE_PYTHON`. `defines`
    are values of macros, parameters and symbols, which override the file's; `matrix` is the content
    of the arrays of a `.c` or `.json` file that name a matrix (docs/howto/loop-nests.md).

    Raises: NestError, one line that names the file; MissingDependency without DaCe.
    """
    extraction = extract(path, defines=defines, dace_python=dace_python, matrix=matrix)
    return list(extraction.nests)


def nest_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that may hold nests. Hidden files and folders are left out, as among
    matrices, and JSON with tensors."""
    for path in visible_files(folder):
        if path.suffix.lower() in _MOST_BYTES and path.is_file() and not holds_tensors(path):
            yield path


def extract(
    path: str | Path,
    *,
    defines: Mapping[str, int | float] | None = None,
    dace_python: str | None = None,
    matrix: Pattern | None = None,
) -> Extraction:
    """Loop nests as by `read_nests`, with notes on the parts that were left out or cut off.

    Raises: NestError; MissingDependency.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    with refusing(NestError, where=str(path)):
        if matrix is not None and suffix not in _WITH_MATRIX:
            raise NestError(
                f"only {' and '.join(_WITH_MATRIX)} files can have arrays with a matrix"
            )
        if suffix == ".py":
            return _nests_of_python(path, defines, dace_python)
        if suffix not in _MOST_BYTES:
            kinds = ", ".join((*_MOST_BYTES, ".py"))
            raise NestError(f"a program is one of {kinds}, not {suffix or path.name}")
        if suffix == ".c":
            return read_c_file(path, defines=defines, matrix=matrix)[2]
        data = read_bounded(path, _MOST_BYTES[suffix])
        if suffix == ".sdfg":
            program, notes = sdfg_program(data, name=path.stem, defines=defines)
            return nests_of(program, notes)
        return _holding(_nests_of_json(data), matrix, rename=False)


def read_c_file(
    path: str | Path,
    *,
    defines: Mapping[str, int | float] | None = None,
    matrix: Pattern | None = None,
) -> tuple[str, CFile, Extraction]:
    """A C file: its text, its declarations and scops, and its nests as in `extract`.

    Raises: NestError.
    """
    path = Path(path)
    with refusing(NestError, where=str(path)):
        source = read_bounded(path, _MOST_BYTES[".c"]).decode()
        read = read_c(source, name=path.stem, defines=defines, matrix=matrix)
        return source, read, _holding(nests_of(read.program), matrix, rename=True)


def _nests_of_python(
    path: Path, defines: Mapping[str, int | float] | None, dace_python: str | None
) -> Extraction:
    """The nests of every program in a Python file; programs without a nest are noted."""
    nests: list[Nest] = []
    with sdfg_files(path, python=dace_python) as (files, notes):
        for file in files:
            try:
                extraction = extract(file, defines=defines)
            except NestError as error:
                notes.append(f"{file.stem}: {error.reason}")
                continue
            for nest in extraction.nests:
                # Named after the file too, since functions of many files are called `kernel`.
                own = nest.name == path.stem or nest.name.startswith(f"{path.stem}_")
                name = nest.name if own else f"{path.stem}_{nest.name}"
                nests.append(replace(nest, name=name, group=path.stem))
            notes += [f"{file.stem}: {note}" for note in extraction.notes]
    if not nests:
        raise NestError(f"has no loop nest; {notes[0]}")
    return Extraction(tuple(nests), tuple(notes))


def _nests_of_json(data: bytes) -> Extraction:
    documents = json.loads(data)
    documents = documents if isinstance(documents, list) else [documents]
    if len(documents) > _MOST_NESTS:
        raise NestError(f"{len(documents)} nests, at most {_MOST_NESTS} are read")
    return Extraction(tuple(nest_from_text(json.dumps(one)) for one in documents))


def _holding(extraction: Extraction, matrix: Pattern | None, *, rename: bool) -> Extraction:
    """The nests with the matrix in the arrays declared for it; then only the matrix's family is
    held out with the program.

    Raises: NestError if there is no such array.
    """
    if matrix is None:
        return extraction
    nests = [nest.with_matrices([matrix]) for nest in extraction.nests]
    if not any(nest.matrices for nest in nests):
        raise NestError(f"has no nest with an array for matrix {matrix.id}")
    if rename:
        nests = [_named_after(nest, matrix) if nest.matrices else nest for nest in nests]
    return replace(extraction, nests=tuple(nests))


def _named_after(nest: Nest, matrix: Pattern) -> Nest:
    name, group = (
        f"{of}-{by}"[:200] for of, by in ((nest.name, matrix.name), (nest.group, matrix.group))
    )
    return replace(nest, name=name, group=group)
