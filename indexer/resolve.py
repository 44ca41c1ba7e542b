"""Workloads and stored answers by a path, an id or a name, in this order."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from embeddb.core.arguments import require
from embeddb.core.config import Op
from embeddb.core.errors import MatrixError, NothingFound, UsageError
from embeddb.core.kinds import kind_of, kinds
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import many_of, one_of
from embeddb.core.workload import Workload, is_workload
from embeddb.index.lookup import Lookup
from embeddb.matrix_files import plain_name
from embeddb.ranking import answers
from embeddb.ranking.recommendation import Recommendation

#: Most patterns that are searched for similar names.
_MOST_NAMES = 20_000
#: Most workloads of one name in a message.
_MOST_IDS = 5


class _Convertible(Protocol):
    """A sparse matrix that scipy understands."""

    def tocsr(self) -> Any: ...


class _Tensor(Protocol):
    """A torch tensor."""

    def crow_indices(self) -> Any: ...


#: A workload, one of the database, its file, id or name, or a sparse matrix of scipy or
#: torch.
WorkloadLike: TypeAlias = Workload | WorkloadInfo | str | os.PathLike[str] | _Convertible | _Tensor


def resolve_workload(
    lookup: Lookup, workload: WorkloadLike, *, kind: str = ""
) -> Workload | WorkloadInfo:
    """Return the workload itself, the one that a text names (`find_workload`), or the sparsity
    pattern of another library's matrix.

    Raises: as `find_workload`; MatrixError for an object that is no workload.
    """
    if isinstance(workload, WorkloadInfo) or is_workload(workload):
        return workload
    if isinstance(workload, str | os.PathLike):
        return find_workload(lookup, os.fspath(workload), kind=kind)
    return Pattern.from_matrix(workload)


def find_workload(lookup: Lookup, text: str, *, kind: str = "") -> Workload | WorkloadInfo:
    """Return the only workload in the file `text`, else the one with that id, else the only one
    with that name; `kind` restricts files and names. A folder counts as a file unless a stored
    workload has that id or name.

    Raises: MatrixError, NestError or TensorError for a file that cannot be read; MatrixError for an
    unknown name; UsageError for a name or file of several workloads, or of another kind.
    """
    if is_source(lookup, text):
        from indexer.library import contents

        workloads = contents(text, kind)
        if len(workloads) != 1:
            what = f"{len(workloads)} {many_of(workloads[0].kind if workloads else kind)}"
            raise UsageError(f"{text} holds {what}", hint="import it, and give the name of one")
        return workloads[0]
    return _by_id(lookup, text) or _by_name(lookup, text, kind)


def find_answer(
    lookup: Lookup, text: str, *, note: Callable[[str], None] = lambda _: None
) -> Recommendation:
    """Return the stored answer with that id, the `last` one, or the last about the workloads in
    the file, or with the id or name, `text`. `note` is called with one line for each stored answer
    that cannot be read.

    Raises: NothingFound if there is no such answer.
    """
    require("answer", text, str, "`last`, or an id, a name or a file as a text,")
    if lookup.store.recommendations.get(text) is not None:
        return answers.recommendation(lookup, text)
    about = answers.recommendations(lookup)
    for line in answers.problems(lookup):
        note(line)
    if text != "last":
        ids = _ids(lookup, text)
        about = [answer for answer in about if answer.pattern_id in ids]
        if not about and ids == {text}:
            return answers.recommendation(lookup, text)  # raises, and names the latest
    if not about:
        what = f"{text} was never queried"
        if text == "last":
            what = "the database has no stored answer"
        raise NothingFound(what, hint="run `embeddb query` first")
    return about[-1]


def resolve_structure(
    lookup: Lookup, answer: Recommendation, workload: WorkloadLike | None
) -> Workload:
    """Return the complete workload of an answer: `workload`, or the database's own.

    Raises: as `resolve_workload`; UsageError for another workload than the answer's; NothingFound
    if neither has the structure.
    """
    require("answer", answer, Recommendation, "a Recommendation, as `query` returns it,")
    if workload is not None:
        resolved = resolve_workload(lookup, workload, kind=Op.parse(answer.op).kind)
        _check_same(lookup, answer, resolved)
        if not isinstance(resolved, WorkloadInfo):
            return resolved
    structure = lookup.store.workload(answer.pattern_id)
    if structure is None:
        what = "its structure is not in the database, so it cannot be measured"
        raise NothingFound(f"{answer.pattern_name}: {what}", hint="give its file")
    return structure


def _check_same(lookup: Lookup, answer: Recommendation, workload: Workload | WorkloadInfo) -> None:
    """Raises: UsageError for another workload than the answer's; one known by name only may be any
    of its sizes."""
    if workload.id in (answer.pattern_id, lookup.store.resolve(answer.pattern_id)):
        return
    info = lookup.store.pattern(answer.pattern_id) or answer.pattern
    if info is not None and info.stub:
        each = zip(info.sizes[:3], workload.sizes[:3], strict=True)
        if all(of_name in (-1, size) for of_name, size in each):
            return
    kind, name = one_of(Op.parse(answer.op).kind), workload.name or workload.id
    raise UsageError(
        f"answer {answer.id} is of {kind} {answer.pattern_name or answer.pattern_id}, not {name}",
        hint=f"query {name}, and measure that answer",
    )


def is_file(text: str) -> bool:
    """True if `text` is an existing path; it may be longer than a path can be."""
    try:
        return bool(text) and Path(text).exists()  # an empty path is the current folder
    except OSError:
        return False


def is_source(lookup: Lookup, text: str) -> bool:
    """True if workloads are read from the path `text`: a file, or a folder that is no stored
    workload's id or name."""
    if not is_file(text):
        return False
    return not (Path(text).is_dir() and (_by_id(lookup, text) or any(lookup.store.find(text))))


def _ids(lookup: Lookup, text: str) -> set[str]:
    """Ids of all workloads in the file `text`, else of those with that name, and `text`."""
    if is_source(lookup, text):
        from indexer.library import every_content

        return {one.id for one in every_content(text)}
    return {text, *(info.id for info in lookup.store.find(text))}


def _by_id(lookup: Lookup, text: str) -> WorkloadInfo | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return lookup.store.pattern(lookup.store.resolve(text.lower())) if len(key) == 16 else None


def _by_name(lookup: Lookup, text: str, kind: str) -> WorkloadInfo:
    """Raises: MatrixError for an unknown name; UsageError for one of another kind, or of several
    workloads."""
    named = lookup.store.find(text)
    of_kind = [info for info in named if kind in ("", info.kind)]
    candidates = [info for info in of_kind if not info.stub] or of_kind
    if len(candidates) > 1:
        raise _ambiguous(lookup, text, candidates)
    if candidates:
        return candidates[0]
    if named:
        hint = named[0].workload.other_kind_hint(text, kind, lookup.store)
        raise UsageError(f"{text} is a {named[0].kind}, not a {kind}", hint=hint)
    what = "no such file, and no pattern of that name in the database"
    raise MatrixError(what, where=text, hint=_similar(lookup, text, kind or kinds()[0].name))


def _ambiguous(lookup: Lookup, name: str, workloads: list[WorkloadInfo]) -> UsageError:
    ids = ", ".join(
        f"{one.id} ({one.workload.description(one, lookup.store)})" for one in workloads[:_MOST_IDS]
    )
    more = f", and {len(workloads) - _MOST_IDS} more" if len(workloads) > _MOST_IDS else ""
    what = f"{len(workloads)} patterns are called {name}"
    return UsageError(what, hint=f"give an id: {ids}{more}")


def _similar(lookup: Lookup, text: str, kind: str) -> str:
    """Hint with the closest names of that kind, compared without folders and endings."""
    infos = islice(lookup.store.patterns(), _MOST_NAMES)
    names = {plain_name(info.name): info.name for info in infos if info.name and info.kind == kind}
    close = get_close_matches(plain_name(text), names, 3, 0.7)
    if close:
        return f"did you mean {', '.join(names[one] for one in close)}?"
    nothing = "" if names else f"the database has no {one_of(kind)}: `embeddb index` fills it; "
    return f"{nothing}give the path of a {kind_of(kind).file}"
