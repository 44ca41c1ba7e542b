"""Which patterns stand for all of very many."""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: A partition of more patterns holds `HELD` of them, in memory and in its file, and of each source
#: at least `OF_EACH`: what a machine with few runs says of itself must not be lost among others'.
MOST_HELD, HELD, OF_EACH = 4000, 2000, 250
#: Reports, evaluations and training read the runs of at most so many patterns.
MOST_READ = 10_000


def held_of(members: Sequence[Collection[str]]) -> list[str] | None:
    """Patterns that a partition holds, of those that each source ran; None: all."""
    ids = set[str]().union(*members)
    if len(ids) <= MOST_HELD:
        return None
    held = set(_evenly(ids, HELD))
    for part in members:
        least = min(OF_EACH, len(part))
        if len(held.intersection(part)) < least:
            held.update(_evenly(part, least))
    return sorted(held)


def read_of(ids: Collection[str]) -> list[str] | None:
    """Patterns whose runs are read where all of them would take too long; None: all."""
    return None if len(ids) <= MOST_READ else _evenly(ids, MOST_READ)


def _evenly(ids: Collection[str], count: int) -> list[str]:
    """Among the sorted ids, which are digests and so in no order of anything."""
    names = sorted(ids)
    return [names[at * len(names) // count] for at in range(count)]
