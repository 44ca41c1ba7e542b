"""What was counted of loop nests: a note for each nest and platform instance.

Counters of two instances are never compared: they are kept apart here, and so are the vectors made
with them (`embeddb.featurizers.base.Counting`).
"""

from __future__ import annotations

from embeddb.core.errors import NestError
from embeddb.nests.counters import CounterVector
from embeddb.store.store import Store

_PREFIX = "counters/"


def counters_of(store: Store, nest_id: str, platform: str) -> CounterVector | None:
    """What was counted of a nest on a platform instance. Raises: NestError for a damaged note."""
    raw = store.notes.get(_key(nest_id, platform))
    where = f"counters of {nest_id}"
    return None if raw is None else CounterVector.from_text(raw, where=where)


def were_counted(store: Store, nest_id: str, platform: str) -> bool:
    """Whether there is a note of that, sound or not."""
    return store.notes.get(_key(nest_id, platform)) is not None


def keep_counters(store: Store, nest_id: str, platform: str, counters: CounterVector) -> None:
    """In place of those there are."""
    store.notes.put(_key(nest_id, platform), counters.text.encode())


def counting_platforms(store: Store) -> dict[str, list[str]]:
    """The platform instances that nests were counted on, and the ids of these nests."""
    found: dict[str, list[str]] = {}
    for key in store.notes.items(_PREFIX):
        nest_id, _, platform = key.removeprefix(_PREFIX).partition("/")
        found.setdefault(platform, []).append(nest_id)
    return dict(sorted(found.items()))


def counter_problems(store: Store) -> list[str]:
    """One line for every note of counters that cannot be read."""
    found = []
    for platform, nests in counting_platforms(store).items():
        for nest_id in nests:
            try:
                counters_of(store, nest_id, platform)
            except NestError as e:
                found.append(f"{e}; `embeddb nest count` counts the nest anew")
    return found


def _key(nest_id: str, platform: str) -> str:
    return f"{_PREFIX}{nest_id}/{platform}"
