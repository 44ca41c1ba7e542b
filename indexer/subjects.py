"""What people mean: a matrix, a nest or a kernel, given as another library's matrix, a file, a name
or an id; and an answer, given by its id or by what it is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from embeddb.core.errors import MatrixError, NothingFound, TensorError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.subject import Subject
from embeddb.core.wording import many_of, one_of, plural
from embeddb.index.lookup import Lookup
from embeddb.nests.nest import Nest
from embeddb.ranking import answers
from embeddb.ranking.recommendation import Recommendation
from embeddb.tensors.analysis import work_of
from embeddb.tensors.computation import KINDS, Computation

__all__ = [
    "Asked",
    "contents",
    "every_content",
    "is_file",
    "known_answer",
    "known_pattern",
    "subject_of",
]

#: Names offered where none matches are looked for among at most so many patterns.
_MOST_NAMES = 20_000
#: So many of one name are told apart.
_MOST_IDS = 5
#: Endings of files with loop nests.
_PROGRAMS = (".json", ".c", ".sdfg", ".py")
#: What is a subject's file, by kind.
_FILES = {"matrix": "matrix file", "kernel": "file with HLO", "program": "file with HLO"}


class _Convertible(Protocol):
    """A sparse matrix that scipy understands."""

    def tocsr(self) -> Any: ...


class _Tensor(Protocol):
    """A torch tensor."""

    def crow_indices(self) -> Any: ...


#: What a question may be about: a pattern or other subject, one of the database, its name, id or
#: file, or a sparse matrix of scipy or torch.
Asked: TypeAlias = Subject | PatternInfo | str | os.PathLike[str] | _Convertible | _Tensor


def subject_of(db: Lookup, asked: Asked, *, kind: str = "") -> Subject | PatternInfo:
    """What is asked about; `kind` as in `known_pattern`.

    Raises: as `known_pattern`; MatrixError for what is none of the things a question may be about.
    """
    if isinstance(asked, Pattern | Nest | Computation | PatternInfo):
        return asked
    if isinstance(asked, str | os.PathLike):
        return known_pattern(db, os.fspath(asked), kind=kind)
    return Pattern.from_matrix(asked)


def known_pattern(db: Lookup, text: str, *, kind: str = "") -> Subject | PatternInfo:
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
        ids = ", ".join(f"{i.id} ({_told_apart(db, i)})" for i in known[:_MOST_IDS])
        more = f", and {len(known) - _MOST_IDS} more" if len(known) > _MOST_IDS else ""
        what = f"{len(known)} patterns are called {text}"
        raise UsageError(what, hint=f"give an id: {ids}{more}")
    found = known[0] if known else _by_id(db, text)
    if found is None and (others := db.store.find(text)):
        what = f"{text} is a {others[0].kind}, not a {kind}"
        raise UsageError(what, hint=_of_other_kind(db, text, others[0].kind, kind))
    if found is None:
        raise MatrixError(
            "no such file, and no pattern of that name in the database",
            where=text,
            hint=_similar(db, text, kind or "matrix"),
        )
    return found


def contents(file: str, kind: str = "") -> list[Subject]:
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


def every_content(file: str) -> list[Subject]:
    """The contents of a file; of HLO whatever it may have been taken for. Raises: as `contents`."""
    from indexer.frontends.hlo.files import holds_tensors

    if not holds_tensors(Path(file)):
        return contents(file)
    held: list[Subject] = []
    for kind in KINDS:
        with suppress(TensorError):  # a list of the other kind alone
            held += contents(file, kind)
    return held or contents(file, "kernel")  # raises what is wrong with it


def is_file(text: str) -> bool:
    """Whether a user means a file: a name from a file may be longer than a path can be."""
    try:
        return Path(text).exists()
    except OSError:
        return False


def known_answer(
    db: Lookup, text: str, *, told: Callable[[str], None] = lambda _: None
) -> Recommendation:
    """The answer a user means: its id, `last`, or the last about a file, name or id. `told` hears
    of stored answers that cannot be read.

    Raises: NothingFound if there is no such answer.
    """
    if db.store.recommendations.get(text) is not None:
        return answers.recommendation(db, text)
    made = answers.recommendations(db)
    for line in answers.problems(db):
        told(line)
    if text != "last":
        named = db.store.find(text)
        if not (is_file(text) or named or any(r.pattern_id == text for r in made)):
            return answers.recommendation(db, text)  # raises, and names those there are
        ids = {i.id for i in named} | {text}
        if is_file(text):
            ids = {one.id for one in every_content(text)}
        made = [r for r in made if r.pattern_id in ids]
    if not made:
        what = (
            "no answer was ever given here" if text == "last" else f"{text} was never asked about"
        )
        raise NothingFound(what, hint="run `embeddb query` first")
    return made[-1]


def _told_apart(db: Lookup, info: PatternInfo) -> str:
    """What one of several of a name is: programs of another batch have as many operations."""
    made = db.store.tensor(info.id) if info.kind in KINDS else None
    if made is not None:
        count = plural(len(made.operations), "operation")
        shape = made.operations[made.outputs[0]].shape
        return f"{info.kind} of {count}, {work_of(made).flops:,} flops, gives {shape}"
    return f"{info.m} x {info.n}, {info.nnz}" if info.kind == "matrix" else str(info.sizes)


def _of_other_kind(db: Lookup, name: str, is_a: str, asked: str) -> str:
    """What to do where a name is that of another kind."""
    if (is_a, asked) != ("program", "kernel"):
        return f"ask for an operation on a {is_a}"
    if db.store.find(f"{name}/0"):
        return f"its kernels are {name}/0 and on"
    return "`embeddb kernel import DB FILE --cut` keeps its kernels, each with a name"


def _by_id(db: Lookup, text: str) -> PatternInfo | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return db.store.pattern(db.store.resolve(text.lower())) if len(key) == 16 else None


def _similar(db: Lookup, text: str, kind: str) -> str:
    known = islice(db.store.patterns(), _MOST_NAMES)
    names = {info.name: None for info in known if info.name and info.kind == kind}
    close = get_close_matches(Path(text).name, names, 3, 0.7)
    if close:
        return f"did you mean {', '.join(close)}?"
    nothing = "" if names else f"the database has no {one_of(kind)}: `embeddb index` fills it; "
    return f"{nothing}give the path of a {_FILES.get(kind, 'program')}"
