"""Who pushed what into a database: a note for each source, and its number in each of its runs.

A source is a name that a contributor goes by, `ann@cluster7` if nothing else is said. Nobody checks
it: it tells apart what colleagues who trust each other put in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn

_PREFIX = b"source/"
_MOST_NAME = 200
#: Pushes that are told one by one; older ones are summed up in the first.
_MOST_PUSHES = 200
#: Withdrawn runs that are looked at in one go.
_PIECE = 5000


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """One push: by which `user` on which `host`, begun `when` (seconds since 1970), of which
    `platforms`; how many runs were added, how many known already, and what was said `against` what
    is known."""

    id: str
    when: float
    user: str = ""
    host: str = ""
    platforms: tuple[str, ...] = ()
    added: int = 0
    duplicates: int = 0
    against: int = 0


class Source(msgspec.Struct, frozen=True):
    """All that one source pushed; its runs bear the `number`."""

    number: int
    name: str
    pushes: tuple[Push, ...] = ()


@dataclass(frozen=True, slots=True)
class Pushing:
    """A push under way: what is added in a transaction is noted in the same one.

    Raises: UsageError for a name that cannot be kept.
    """

    source: str
    push: Push

    def __post_init__(self) -> None:
        if not 0 < len(self.source.encode()) <= _MOST_NAME or not self.source.isprintable():
            raise UsageError(f"{self.source[:40]!r} can be no source's name")

    def number(self, txn: Txn) -> int:
        """That of the source; of a new one the next."""
        return source_number(txn, self.source) or 1 + sum(1 for _ in txn.scan("note", _PREFIX))

    def note(self, txn: Txn, added: int, duplicates: int, against: int) -> None:
        """Count what a transaction added."""
        key = _key(self.source)
        known = _read(self.source, txn.get("note", key)) or Source(self.number(txn), self.source)
        pushes = {push.id: push for push in known.pushes}
        old = pushes.get(self.push.id, self.push)
        pushes[self.push.id] = msgspec.structs.replace(
            old,
            added=old.added + added,
            duplicates=old.duplicates + duplicates,
            against=old.against + against,
        )
        kept = msgspec.structs.replace(known, pushes=_summed(tuple(pushes.values())))
        txn.put("note", key, msgspec.json.encode(kept))


class SourceTable:
    """The sources of a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def entries(self) -> list[Source]:
        """By number. Raises: StoreCorrupt for a note that cannot be read."""
        with self._engine.read() as txn:
            rows = list(txn.scan("note", _PREFIX))
        found = (_read(key.decode("utf-8", "replace"), raw) for key, raw in rows)
        return sorted((one for one in found if one is not None), key=lambda source: source.number)

    def withdrawn(self) -> Counter[int]:
        """How many runs of each source, by its number, are withdrawn."""
        found: Counter[int] = Counter()
        with self._engine.read() as txn:
            keys = [key for key, _ in txn.scan("withdrawn")]
            for start in range(0, len(keys), _PIECE):
                raws = txn.get_many("run", keys[start : start + _PIECE]).values()
                found.update(codec.decode_row(raw).source for raw in raws)
        return found


def source_number(txn: Txn, name: str) -> int:
    """0 for a source that is not known. Raises: StoreCorrupt."""
    known = _read(name, txn.get("note", _key(name)))
    return 0 if known is None else known.number


def _key(name: str) -> bytes:
    return _PREFIX + name.encode()


def _read(name: str, raw: bytes | None) -> Source | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=Source)
    except Exception as e:  # whatever was written there
        raise StoreCorrupt(f"source {name[:80]!r} cannot be read: {reason_of(e)}") from e


def _summed(pushes: tuple[Push, ...]) -> tuple[Push, ...]:
    """No more than so many: the two oldest become one, of the first's moment."""
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
