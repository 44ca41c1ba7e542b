"""From what stands on the command line to a database, a pattern, a platform or an answer."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from embeddb import database
from embeddb.core.config import Op
from embeddb.core.errors import InputError, MatrixError, NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.wording import many_of, one_of
from embeddb.database import Database
from embeddb.platforms.of_subject import Content
from embeddb.platforms.platform import Platform, this_machine
from embeddb.query import answers
from embeddb.query.recommendation import Recommendation
from embeddb.ui.cli.output import Progress, note
from indexer.starter import STARTER

__all__ = [
    "contents",
    "defined",
    "families",
    "is_file",
    "known_answer",
    "known_pattern",
    "known_subjects",
    "matrices_held",
    "open_database",
    "program_options",
    "runner_here",
]

#: Names offered where none matches are looked for among at most so many patterns.
_MOST_NAMES = 20_000
#: Endings of files with loop nests.
_PROGRAMS = (".json", ".c", ".sdfg", ".py")
#: What is a subject's file, by kind.
_FILES = {"matrix": "matrix file", "kernel": "file with HLO", "program": "file with HLO"}


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


def open_database(place: str, *, readonly: bool = False, create: bool = False) -> Database:
    """The database at a path, or the shipped one; with `create`, made if there is none.

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    if place != STARTER:
        return database.open_database(place, readonly=readonly, create=create)
    with Progress() as progress:
        return database.open_database(place, readonly=readonly, note=note, progress=progress)


def known_pattern(db: Database, text: str, *, kind: str = "") -> Content | PatternInfo:
    """The matrix or nest a user means: a file, else the name or id of a pattern in the database;
    with `kind`, it is one of such patterns.

    Raises: MatrixError or NestError for a file that cannot be read, MatrixError for a name nobody
    has; UsageError for a name that several patterns have, and for a file of several nests.
    """
    if is_file(text):
        held = contents(text, kind)
        if len(held) != 1:
            what = f"{text} holds {len(held)} {many_of(held[0].kind if held else kind)}"
            raise UsageError(what, hint="import it, and give the name of one")
        return held[0]
    named = [info for info in db.store.find(text) if kind in ("", info.kind)]
    known = [info for info in named if not info.stub] or named
    if len(known) > 1:
        ids = ", ".join(f"{i.id} ({_sizes(i)})" for i in known[:5])
        raise UsageError(f"{len(known)} patterns are called {text}", hint=f"give an id: {ids}")
    found = known[0] if known else _by_id(db, text)
    if found is None:
        raise MatrixError(
            "no such file, and no pattern of that name in the database",
            where=text,
            hint=_similar(db, text, kind or "matrix"),
        )
    return found


def contents(file: str, kind: str = "") -> list[Content]:
    """The matrix in a file, the nests of a program, or tensor kernels or programs; matrix or nests,
    without `kind`, by its name.

    Raises: MatrixError, NestError or TensorError.
    """
    if kind in ("kernel", "program"):
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(file, kind=kind).tensors)
    program = Path(file).suffix.lower() in _PROGRAMS
    if kind == "nest" or (program and not kind):
        from indexer.frontends import read_nests

        return list(read_nests(file))
    if program:
        what, hint = "a program with loop nests, not a matrix", "--op nest asks about its nests"
        raise MatrixError(what, where=file, hint=hint)
    from embeddb.matrix_files import read_pattern

    return [read_pattern(file)]


def known_subjects(
    db: Database, text: str, op: Op, defines: Sequence[str] = (), matrix: str = ""
) -> list[Content | PatternInfo]:
    """What a user means by the text beside an operation: a matrix, a nest, the nests of a file,
    whose names `defines` give other values (`N=64`) and whose index arrays hold a matrix file, or
    the kernels or the program of one.

    Raises: as `known_pattern`; NestError, TensorError for a file that cannot be read; UsageError
    for a define that is none.
    """
    if op.kind in ("kernel", "program") and is_file(text) and not (defines or matrix):
        return list(contents(text, op.kind))
    if op.kind != "nest" or not is_file(text):
        if defines or matrix:
            option = "--define" if defines else "--matrix"
            raise UsageError(f"{option} is for a program with loop nests", hint="see docs/nests.md")
        return [known_pattern(db, text, kind=op.kind)]
    from indexer.frontends import read_nests

    (held,) = matrices_held([matrix] if matrix else [])
    return list(read_nests(text, defines=defined(defines), matrix=held))


def matrices_held(files: Sequence[str]) -> Sequence[Pattern | None]:
    """What the arrays of a program are to hold, one after the other: matrices, or once none.

    Raises: MatrixError.
    """
    from embeddb.matrix_files import read_pattern

    return [read_pattern(file) for file in files] or [None]


def defined(texts: Sequence[str]) -> dict[str, int]:
    """The numbers of `-D N=64` by name. Raises: UsageError for what defines nothing."""
    return dict(map(_define, texts))


def _sizes(info: PatternInfo) -> str:
    return f"{info.m} x {info.n}, {info.nnz}" if info.kind == "matrix" else str(info.sizes)


def _define(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name.isidentifier() or not value.isdecimal() or len(value) > 12:
        raise UsageError(f"{text!r} defines nothing", hint="write NAME=NUMBER, as N=1024")
    return name, int(value)


def _by_id(db: Database, text: str) -> PatternInfo | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return db.store.pattern(db.store.resolve(text.lower())) if len(key) == 16 else None


def _similar(db: Database, text: str, kind: str) -> str:
    from difflib import get_close_matches
    from itertools import islice

    known = islice(db.store.patterns(), _MOST_NAMES)
    names = {info.name: None for info in known if info.name and info.kind == kind}
    close = get_close_matches(Path(text).name, names, 3, 0.7)
    if close:
        return f"did you mean {', '.join(close)}?"
    nothing = "" if names else f"the database has no {one_of(kind)}: `embeddb index` fills it; "
    return f"{nothing}give the path of a {_FILES.get(kind, 'program')}"


def known_answer(db: Database, text: str) -> Recommendation:
    """The answer a user means: its id, `last`, or the last about a file, name or id.

    Raises: NothingFound if there is no such answer.
    """
    if db.store.recommendations.get(text) is not None:
        return db.recommendation(text)
    made = db.recommendations()
    for line in answers.problems(db):
        note(f"warning: {line}")
    if text != "last":
        named = db.store.find(text)
        if not (is_file(text) or named or any(r.pattern_id == text for r in made)):
            return db.recommendation(text)  # raises, and names those there are
        ids = {i.id for i in named} | {text}
        if is_file(text):
            ids = {one.id for one in contents(text)}
        made = [r for r in made if r.pattern_id in ids]
    if not made:
        what = (
            "no answer was ever given here" if text == "last" else f"{text} was never asked about"
        )
        raise NothingFound(what, hint="run `embeddb query` first")
    return made[-1]


def is_file(text: str) -> bool:
    """Whether a user means a file: a name from a file may be longer than a path can be."""
    try:
        return Path(text).exists()
    except OSError:
        return False


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
