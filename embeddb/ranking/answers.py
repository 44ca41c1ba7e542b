"""The answers that a database keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, StoreCorrupt, StoreFull
from embeddb.index.lookup import Lookup
from embeddb.ranking.recommendation import Recommendation
from embeddb.store.codec import pattern_key
from embeddb.store.tables import decoded, reading

T = TypeVar("T")


def keep(lookup: Lookup, made: Recommendation) -> Recommendation:
    """Store a recommendation under its id, and the card of the model it rests on. Without room for
    it the answer is as good, and comes back with a warning."""
    try:
        lookup.models.register(made.model, lookup.store)
        lookup.store.recommendations.put(made.id, msgspec.json.encode(made))
    except StoreFull as e:
        note = f"this answer was not stored: {e}"
        return msgspec.structs.replace(made, warnings=[*made.warnings, note])
    return made


def recommendation(lookup: Lookup, rec_id: str) -> Recommendation:
    """Raises: NothingFound, naming the latest answers there are; StoreCorrupt for one that is
    none."""
    raw = lookup.store.recommendations.get(rec_id)
    if raw is None:
        latest = recommendations(lookup)[:-4:-1]
        hint = f"latest: {', '.join(r.id for r in latest)}" if latest else "run a query first"
        raise NothingFound(f"no recommendation {rec_id!r}", hint=hint)
    return _read(rec_id, raw)


def recommendations(lookup: Lookup) -> list[Recommendation]:
    """All that are kept and can be read, in the order they were given; `problems` names the
    others."""
    return in_order(lookup, _read, lambda made: made.created)


def in_order(
    lookup: Lookup, read: Callable[[str, bytes], T], created: Callable[[T], float]
) -> list[T]:
    """What `read` makes of the id and text of every answer, in the order they were given, without
    those at which it raises StoreCorrupt. `created` tells the seconds since 1970: answers of older
    programs were not counted."""
    numbers = lookup.store.recommendations.numbers()
    found: list[tuple[int, float, T]] = []
    for rec_id, raw in lookup.store.recommendations.items().items():
        try:
            made = read(rec_id, raw)
        except StoreCorrupt:
            continue
        found.append((numbers.get(rec_id, 0), created(made), made))
    return [made for *_, made in sorted(found, key=lambda one: one[:2])]


def problems(lookup: Lookup) -> list[str]:
    """One line for every stored answer that is none."""
    found = []
    for rec_id, raw in lookup.store.recommendations.items().items():
        try:
            _read(rec_id, raw)
        except StoreCorrupt as e:
            found.append(str(e))
    return found


def _read(rec_id: str, raw: bytes) -> Recommendation:
    what = f"answer {rec_id}"
    made = decoded(raw, Recommendation, what)
    with reading(what):
        if made.id != rec_id:
            raise ValueError(f"its text is of answer {made.id}")
        Op.parse(made.op)
        Op.parse(made.evidence_op)
        for config in (made.default, *(c.config for c in made.candidates)):
            Config(config)
        for pattern_id in (made.pattern_id, *(n.pattern_id for n in made.neighbours)):
            pattern_key(pattern_id)
    return made
