"""Whether an answer about a nest rests on what was counted of it, and why not."""

from __future__ import annotations

from embeddb.core.errors import NestError
from embeddb.featurizers.base import counted_parts
from embeddb.index.lookup import Lookup
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import CountersUse
from embeddb.store.counters import counters_of

__all__ = ["counters_use"]


def counters_use(lookup: Lookup, query: Query) -> CountersUse | None:
    """Of the nest that is asked about; None for what was not counted on this platform."""
    if not query.op.workload.counted:
        return None
    try:
        counters = counters_of(lookup.store, query.pattern.id, query.platform.id)
    except NestError as e:
        return CountersUse(source="", used=False, reason=str(e))
    if counters is None:
        return None
    used = counted_parts(query.vote.featurizer) is not None
    reason = "" if used else _why_not(lookup, query, counters.source)
    return CountersUse(source=counters.source, used=used, reason=reason)


def _why_not(lookup: Lookup, query: Query, source: str) -> str:
    place = query.platform.id
    plugs = lookup.featurizers().counted(place)
    if not plugs:
        return "no network here reads counters"
    if all(plug.source != source for plug in plugs):
        return f"the network learned from counters of {plugs[0].source}, these are of {source}"
    found = lookup.by_counters(query.op, query.platform)
    if found is not None:
        return f"held-out answers were no better than by {found.featurizer}"
    plain = lookup.answering(query.op, query.platform)
    if plain is None or not query.vote.neighbours:
        return "there are no neighbours to look up"
    measured, known = plain.evidence.telling, lookup.store.vectors
    most = max(len(known.get(p.name, p.version, measured, dim=p.dim)) for p in plugs)
    return (
        f"only {most:,} of {len(measured):,} measured nests have vectors with counters of {place}, "
        "and nine of ten must (`embeddb nest count --all` and `embeddb embed` make them)"
    )
