"""Event counts of loop nests: a note for each nest and platform instance.

Counts of two instances are never compared: they are stored separately, and so are the vectors
computed from them (`embeddb.featurizers.base.Counting`).
"""

from __future__ import annotations

from embeddb.core.errors import NestError
from embeddb.nests.counters import CounterVector
from embeddb.store.store import Store

_PREFIX = "counters/"


def counters_of(store: Store, nest_id: str, platform: str) -> CounterVector | None:
    """Stored event counts of a nest on an instance. Raises: NestError for a damaged note."""
    raw = store.notes.get(_key(nest_id, platform))
    where = f"counters of {nest_id}"
    return None if raw is None else CounterVector.from_text(raw, where=where)


def were_counted(store: Store, nest_id: str, platform: str) -> bool:
    """Return true if there is a note of that, damaged or not."""
    return store.notes.get(_key(nest_id, platform)) is not None


def keep_counters(store: Store, nest_id: str, platform: str, counters: CounterVector) -> None:
    """Store event counts, in place of earlier ones."""
    store.notes.put(_key(nest_id, platform), counters.text.encode())


def counting_platforms(store: Store) -> dict[str, list[str]]:
    """Ids of the nests with event counts, by platform instance."""
    nests: dict[str, list[str]] = {}
    for key in store.notes.items(_PREFIX):
        nest_id, _, platform = key.removeprefix(_PREFIX).partition("/")
        nests.setdefault(platform, []).append(nest_id)
    return dict(sorted(nests.items()))


def counter_problems(store: Store) -> list[str]:
    """One line for every note of event counts that cannot be read."""
    problems = []
    for platform, nests in counting_platforms(store).items():
        for nest_id in nests:
            try:
                counters_of(store, nest_id, platform)
            except NestError as e:
                problems.append(f"{e}; `embeddb nest count` counts the nest anew")
    return problems


def _key(nest_id: str, platform: str) -> str:
    return f"{_PREFIX}{nest_id}/{platform}"
