"""Contributors: a note for each source that pushed runs, and its number in each of its runs.

A source is the name of a contributor, by default `ann@cluster7`. It is not authenticated: it
distinguishes the runs of colleagues who trust each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from embeddb.core.errors import UsageError
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn, key_of
from embeddb.store.tables import decoded

_PREFIX = b"source/"
_MOST_NAME = 200
#: Number of pushes listed one by one; older ones are summed up in the first.
_MOST_PUSHES = 200
#: Number of withdrawn runs read together.
_PIECE = 5000


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """One push: by `user` on `host`, begun at `when` (seconds since 1970), of `platforms`; numbers
    of runs added, of runs stored before, and of conflicts with stored facts (`against`)."""

    id: str
    when: float
    user: str = ""
    host: str = ""
    platforms: tuple[str, ...] = ()
    added: int = 0
    duplicates: int = 0
    against: int = 0


class Source(msgspec.Struct, frozen=True):
    """All pushes of one source; its runs have the `number`."""

    number: int
    name: str
    pushes: tuple[Push, ...] = ()


@dataclass(frozen=True, slots=True)
class Pushing:
    """A push in progress: runs added in a transaction are recorded in the same one. Raises:
    UsageError for an invalid name."""

    source: str
    push: Push

    def __post_init__(self) -> None:
        if not self.source.isprintable() or not 0 < len(self.source.encode()) <= _MOST_NAME:
            raise UsageError(f"{self.source[:40]!r} is not a valid name of a source")

    def number(self, txn: Txn) -> int:
        """Number of the source; a new one gets the next."""
        return source_number(txn, self.source) or 1 + sum(1 for _ in txn.scan("note", _PREFIX))

    def note(self, txn: Txn, added: int, duplicates: int, against: int) -> None:
        """Record the counts of one transaction."""
        key = _key(self.source)
        source = _read(self.source, txn.get("note", key)) or Source(self.number(txn), self.source)
        pushes = {push.id: push for push in source.pushes}
        old = pushes.get(self.push.id, self.push)
        pushes[self.push.id] = msgspec.structs.replace(
            old,
            added=old.added + added,
            duplicates=old.duplicates + duplicates,
            against=old.against + against,
        )
        updated = msgspec.structs.replace(source, pushes=_summed(tuple(pushes.values())))
        txn.put("note", key, msgspec.json.encode(updated))


class SourceTable:
    """The sources of a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def entries(self) -> list[Source]:
        """Sources by number. Raises: StoreCorrupt for a note that cannot be read."""
        with self._engine.read() as txn:
            rows = list(txn.scan("note", _PREFIX))
        sources = (_read(key.decode("utf-8", "replace"), raw) for key, raw in rows)
        return sorted((one for one in sources if one is not None), key=lambda source: source.number)

    def withdrawn(self) -> Counter[int]:
        """Number of withdrawn runs by the number of their source."""
        counts: Counter[int] = Counter()
        with self._engine.read() as txn:
            keys = [key for key, _ in txn.scan("withdrawn")]
            for start in range(0, len(keys), _PIECE):
                raws = txn.get_many("run", keys[start : start + _PIECE]).values()
                counts.update(codec.decode_row(raw).source for raw in raws)
        return counts


def source_number(txn: Txn, name: str) -> int:
    """Number of a source, 0 for an unknown one. Raises: StoreCorrupt."""
    source = _read(name, txn.get("note", _key(name)))
    return 0 if source is None else source.number


def _key(name: str) -> bytes:
    return _PREFIX + key_of(name)


def _read(name: str, raw: bytes | None) -> Source | None:
    if raw is None:
        return None
    return decoded(raw, Source, f"source {name[:80]!r}")


def _summed(pushes: tuple[Push, ...]) -> tuple[Push, ...]:
    """Bound the number of pushes: the oldest two become one, with the time of the first."""
    while len(pushes) > _MOST_PUSHES:
        first, second, *rest = pushes
        both = msgspec.structs.replace(
            first,
            platforms=tuple(sorted({*first.platforms, *second.platforms})),
            added=first.added + second.added,
            duplicates=first.duplicates + second.duplicates,
            against=first.against + second.against,
        )
        pushes = (both, *rest)
    return pushes
