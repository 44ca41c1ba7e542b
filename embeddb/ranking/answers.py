"""Stored answers of a database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, StoreCorrupt, StoreFull
from embeddb.core.kinds import is_foreign
from embeddb.index.lookup import Lookup
from embeddb.ranking.recommendation import NOT_STORED, Recommendation
from embeddb.store.codec import pattern_key
from embeddb.store.tables import decoded, reading

T = TypeVar("T")


def keep(lookup: Lookup, answer: Recommendation) -> Recommendation:
    """Store an answer under its id, and the card of its model. If the store is full the answer is
    returned with a warning."""
    try:
        lookup.models.register(answer.model, lookup.store)
        lookup.store.recommendations.put(answer.id, msgspec.json.encode(answer))
    except StoreFull as e:
        note = f"{NOT_STORED}: {e}"
        return msgspec.structs.replace(answer, warnings=[*answer.warnings, note])
    return answer


def recommendation(lookup: Lookup, rec_id: str) -> Recommendation:
    """The stored answer with this id.

    Raises: NothingFound, naming the latest answers or the operation whose plug-in is missing;
    StoreCorrupt if it cannot be read.
    """
    raw = lookup.store.recommendations.get(rec_id)
    if raw is None:
        latest = recommendations(lookup)[:-4:-1]
        hint = f"latest: {', '.join(r.id for r in latest)}" if latest else "run a query first"
        raise NothingFound(f"no recommendation {rec_id!r}", hint=hint)
    if op := _foreign_op(raw):
        raise NothingFound(
            f"answer {rec_id} is about {op}, an operation of a plug-in that is not here",
            hint="EMBEDDB_PLUGINS names the folder of the plug-in",
        )
    return _read(rec_id, raw)


def recommendations(lookup: Lookup) -> list[Recommendation]:
    """All readable stored answers, oldest first; `problems` lists the others."""
    return in_order(lookup, _read, lambda answer: answer.created)


def in_order(
    lookup: Lookup, read: Callable[[str, bytes], T], created: Callable[[T], float]
) -> list[T]:
    """The results of `read` for the id and text of every stored answer, oldest first, without those
    for which it raises StoreCorrupt. `created` returns the seconds since 1970, which order answers
    of older versions without a number."""
    numbers = lookup.store.recommendations.numbers()
    answers: list[tuple[int, float, T]] = []
    for rec_id, raw in lookup.store.recommendations.items().items():
        try:
            answer = read(rec_id, raw)
        except StoreCorrupt:
            continue
        answers.append((numbers.get(rec_id, 0), created(answer), answer))
    return [answer for *_, answer in sorted(answers, key=lambda one: one[:2])]


def problems(lookup: Lookup) -> list[str]:
    """One line for every stored answer that cannot be read."""
    lines = []
    for rec_id, raw in lookup.store.recommendations.items().items():
        try:
            _read(rec_id, raw)
        except StoreCorrupt as e:
            if not _foreign_op(raw):
                lines.append(str(e))
    return lines


def _foreign_op(raw: bytes) -> str:
    """The operation of an answer, if only a missing plug-in has it; else empty."""
    with suppress(StoreCorrupt):
        op = decoded(raw, Recommendation, "answer").op
        return op if is_foreign(op) else ""
    return ""


def _read(rec_id: str, raw: bytes) -> Recommendation:
    what = f"answer {rec_id}"
    answer = decoded(raw, Recommendation, what)
    with reading(what):
        if answer.id != rec_id:
            raise ValueError(f"its text is of answer {answer.id}")
        Op.parse(answer.op)
        Op.parse(answer.evidence_op)
        for config in (answer.default, *(c.config for c in answer.candidates)):
            Config(config)
        for pattern_id in (answer.pattern_id, *(n.pattern_id for n in answer.neighbours)):
            pattern_key(pattern_id)
    return answer
