"""Which patterns stand for all of very many."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["held_of", "read_of"]

#: A partition of more patterns holds `HELD` of them, in memory and in its file.
MOST_HELD, HELD = 4000, 2000
#: Reports, evaluations and training read the runs of at most so many patterns.
MOST_READ = 10_000


def held_of(ids: Collection[str]) -> list[str] | None:
    """Patterns that a partition holds; None: all."""
    return None if len(ids) <= MOST_HELD else _evenly(ids, HELD)


def read_of(ids: Collection[str]) -> list[str] | None:
    """Patterns whose runs are read where all of them would take too long; None: all."""
    return None if len(ids) <= MOST_READ else _evenly(ids, MOST_READ)


def _evenly(ids: Collection[str], count: int) -> list[str]:
    """Among the sorted ids, which are digests and so in no order of anything."""
    names = sorted(ids)
    return [names[at * len(names) // count] for at in range(count)]
