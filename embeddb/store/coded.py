"""What is kept as code, not as a matrix: loop nests, tensor kernels and programs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

from embeddb.core.errors import InputError, NestError, StoreCorrupt, UsageError
from embeddb.core.files.gate import reason_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.nests import nest_text as nests
from embeddb.nests.nest import Nest
from embeddb.platforms.of_subject import Coded, Content
from embeddb.store import codec
from embeddb.tensors import tensor_text as tensors

T = TypeVar("T", bound=Coded)


@dataclass(frozen=True, slots=True)
class _Form(Generic[T]):
    """How a table's content is written and read: its file form, without name and group."""

    write: Callable[[T], bytes]
    read: Callable[[bytes], T]
    most: int


_FORMS: dict[str, _Form[Any]] = {
    "nest": _Form(nests.nest_text, nests.nest_from_text, nests.MOST_TEXT),
    "tensor": _Form(tensors.tensor_text, tensors.tensor_from_text, tensors.MOST_TEXT),
}
#: Tables of the store, and the word for one record of an export.
TABLES = tuple(_FORMS)


def table_of(kind: str) -> str | None:
    """Where subjects of that kind are kept; None for matrices."""
    return {"nest": "nest", "kernel": "tensor", "program": "tensor"}.get(kind)


def _nameless(subject: Coded) -> tuple[_Form[Any], Coded]:
    plain = replace(subject, name="", group="")
    return _FORMS["nest" if isinstance(subject, Nest) else "tensor"], plain


def encode_coded(subject: Coded) -> bytes:
    """Its file form, deflated; name and group are among its pattern's facts alone."""
    form, plain = _nameless(subject)
    return zlib.compress(form.write(plain), 6)


def encode_content(subject: Content, info: PatternInfo) -> tuple[str, bytes]:
    """The table that keeps a pattern's structure or code, and what it keeps (deflated).

    Raises: UsageError for facts about another pattern.
    """
    if info.id != subject.id:
        raise UsageError(f"the facts are about pattern {info.id}, not {subject.id}")
    if isinstance(subject, Pattern):
        return "structure", codec.encode_structure(subject)
    return table_of(subject.kind) or "", encode_coded(subject)


@lru_cache(maxsize=512)
def decode_coded(table: str, raw: bytes, *, pattern_id: str, name: str, group: str) -> Coded:
    """Remembered: queries read their neighbours over and over, a nest takes milliseconds.

    Raises: StoreCorrupt if the bytes do not give the subject of that id.
    """
    form = _FORMS[table]
    try:
        text = zlib.decompressobj().decompress(raw, form.most + 1)
        found: Coded = replace(form.read(text), name=name, group=group)
    except Exception as e:
        raise StoreCorrupt(f"{table} {pattern_id} is damaged: {reason_of(e)}") from e
    if found.id != pattern_id:
        raise StoreCorrupt(f"the {table} stored for pattern {pattern_id} is another one")
    return found


def with_matrices(nest: Nest, structure: Callable[[str], Pattern | None]) -> Nest:
    """The nest with those matrices that its arrays hold and `structure` knows."""
    there = map(structure, sorted(set(nest.matrix_ids.values())))
    try:
        return nest.holding(matrix for matrix in there if matrix is not None)
    except NestError:  # a stranger's fill, untrue of a matrix that is here: it is never run
        return nest


def coded_document(subject: Coded) -> tuple[str, dict[str, Any]]:
    """The word for its record in an export, and the file form there."""
    form, plain = _nameless(subject)
    return table_of(subject.kind) or "", json.loads(form.write(plain))


def coded_of(word: str, told: Any) -> Coded:
    """The subject of a record in an export. Raises: InputError, one line that names the part."""
    if word not in _FORMS:
        raise InputError(f"no kind of code {word[:40]!r}")
    found: Coded = _FORMS[word].read(json.dumps(told).encode())
    return found
