"""The answers that a database keeps."""

from __future__ import annotations

import msgspec

from embeddb.core.errors import NothingFound, StoreFull
from embeddb.index.lookup import Lookup
from embeddb.query.recommendation import Recommendation

__all__ = ["keep", "recommendation", "recommendations"]


def keep(lookup: Lookup, made: Recommendation) -> Recommendation:
    """Store a recommendation under its id, and the card of the model it rests on. Without room for
    it the answer is as good, and comes back with a warning."""
    try:
        lookup.register_model(made.model)
        lookup.store.recommendations.put(made.id, msgspec.json.encode(made))
    except StoreFull as e:
        note = f"this answer was not stored: {e}"
        return msgspec.structs.replace(made, warnings=[*made.warnings, note])
    return made


def recommendation(lookup: Lookup, rec_id: str) -> Recommendation:
    """Raises: NothingFound, naming the latest answers there are."""
    raw = lookup.store.recommendations.get(rec_id)
    if raw is None:
        latest = sorted(recommendations(lookup), key=lambda r: -r.created)[:3]
        hint = f"latest: {', '.join(r.id for r in latest)}" if latest else "run a query first"
        raise NothingFound(f"no recommendation {rec_id!r}", hint=hint)
    return msgspec.json.decode(raw, type=Recommendation)


def recommendations(lookup: Lookup) -> list[Recommendation]:
    """All that are kept, in no order."""
    raws = lookup.store.recommendations.items().values()
    return [msgspec.json.decode(raw, type=Recommendation) for raw in raws]
