"""From what stands on the command line to a database, a pattern, a platform or an answer."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from embeddb import database
from embeddb.core.config import Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.server_url import is_server_url
from embeddb.database import Database
from embeddb.platforms.of_subject import Content
from embeddb.platforms.platform import Platform, this_machine
from embeddb.store import is_database
from embeddb.tensors.computation import KINDS
from embeddb.ui.cli.output import Progress, note
from indexer.resolve import is_file
from indexer.starter import STARTER

__all__ = [
    "database_to_fill",
    "defined",
    "families",
    "known_subjects",
    "matrices_held",
    "open_database",
    "program_options",
    "runner_here",
]


def program_options(*, several: bool = False) -> Callable[[Any], Any]:
    """Of a verb that reads programs with loop nests: `-D N=64` as `defines`, `--matrix A.mtx` as
    `held`, a text, or with `several` a tuple of them."""
    words = ("-D", "--define", "defines")
    define = click.option(*words, multiple=True, metavar="N=64", help="Of a program.")
    told = "A matrix file, which its index arrays hold."
    absent = () if several else ""
    matrix = click.option(
        "--matrix", "held", multiple=several, default=absent, metavar="A.mtx", help=told
    )
    return lambda verb: define(matrix(verb))


def open_database(place: str, *, readonly: bool = False) -> Database:
    """The database at a path, or the shipped one.

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    if place != STARTER:
        return database.open_database(place, readonly=readonly)
    with Progress() as progress:
        return database.open_database(place, readonly=readonly, note=note, progress=progress)


@contextmanager
def database_to_fill(place: str) -> Iterator[Database]:
    """The database at a path, made if there is none. What was made is removed where the block
    raises before it has a run, a nest or a kernel; tables on a server stay.

    Raises: StoreError for what is no place of a database; InputError as `open_database`.
    """
    if place == STARTER or is_database(place):
        with open_database(place) as opened:
            yield opened
        return
    folder = Path(place)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    empty = False
    try:
        with database.open_database(place, create=True) as opened:
            try:
                yield opened
            except BaseException:
                empty = not is_server_url(place) and _holds_nothing(opened)
                raise
    finally:
        if empty:
            for part in folder.iterdir():
                shutil.rmtree(part) if part.is_dir() else part.unlink()
            for one in missing:
                one.rmdir()


def _holds_nothing(db: Database) -> bool:
    """Whether there are matrices at most, which rows that were rejected leave behind."""
    return not db.store.count_runs() and all(p.kind == "matrix" for p in db.store.patterns())


def known_subjects(
    db: Database, text: str, op: Op, defines: Sequence[str] = (), matrix: str = ""
) -> list[Content | PatternInfo]:
    """What a user means by the text beside an operation: a matrix, a nest, the nests of a file,
    whose names `defines` give other values (`N=64`) and whose index arrays hold a matrix file, or
    the kernels or the program of one; a program that is taken as a kernel is noted.

    Raises: as `Database.find`; NestError, TensorError for a file that cannot be read; UsageError
    for a define that is none.
    """
    if op.kind in KINDS and is_file(text) and not (defines or matrix):
        if op.kind == "kernel":
            _tell_of_program(text)
        from indexer.library import contents

        return list(contents(text, op.kind))
    if op.kind != "nest" or not is_file(text):
        if defines or matrix:
            option = "--define" if defines else "--matrix"
            raise UsageError(f"{option} is for a program with loop nests", hint="see docs/nests.md")
        return [db.find(text, kind=op.kind)]
    from indexer.frontends import read_nests

    (held,) = matrices_held([matrix] if matrix else [])
    return list(read_nests(text, defines=defined(defines), matrix=held))


def _tell_of_program(file: str) -> None:
    """That a file is a whole program and taken as one kernel, where it would be cut into several.

    Raises: TensorError.
    """
    from indexer.frontends.hlo.files import read_tensors
    from indexer.programs.tensors.cutting import distinct_kernels

    found = [one for one in read_tensors(file).tensors if one.kind == "program"]
    parts = len(distinct_kernels(found)) if len(found) == 1 else 0
    if parts > 1:
        note(
            f"{file} is a whole program, here taken as one kernel: `embeddb kernel import DB "
            f"{file} --cut` keeps the {parts} kernels that it is cut into, to be asked for by name"
        )


def matrices_held(files: Sequence[str]) -> Sequence[Pattern | None]:
    """What the arrays of a program are to hold, one after the other: matrices, or once none.

    Raises: MatrixError.
    """
    from embeddb.matrix_files import read_pattern

    return [read_pattern(file) for file in files] or [None]


def defined(texts: Sequence[str]) -> dict[str, int]:
    """The numbers of `-D N=64` by name. Raises: UsageError for what defines nothing."""
    return dict(map(_define, texts))


def _define(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name.isidentifier() or not value.isdecimal() or len(value) > 12:
        raise UsageError(f"{text!r} defines nothing", hint="write NAME=NUMBER, as N=1024")
    return name, int(value)


def runner_here(platform: Platform, threads: int) -> tuple[Any, Platform]:
    """`this_machine`, with a note where it is simulated. Raises: as that."""
    runner, here = this_machine(platform, threads=threads)
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    return runner, here


def families(manifest: str) -> dict[str, str]:
    """Family by matrix name. Raises: InputError if the file is none or lacks a column."""
    if not manifest:
        return {}
    try:
        with Path(manifest).open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            if not {"name", "family"} <= set(rows.fieldnames or ()):
                raise InputError("no columns name and family", where=manifest)
            return {row["name"]: row["family"] for row in rows if row["name"] and row["family"]}
    except (UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"not a CSV file in UTF-8: {e}", where=manifest) from None
