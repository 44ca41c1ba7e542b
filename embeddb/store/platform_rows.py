"""Rows of the table `platform`: a platform's file and the facts of its environment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store import codec, tables
from embeddb.store.engine import Txn, raise_generation
from embeddb.store.merge_facts import latest


class _StoredPlatform(msgspec.Struct, frozen=True):
    text: str
    environment: dict[str, str]


def write_platform(txn: Txn, platform_id: str, text: str, facts: Mapping[str, str]) -> None:
    """Store the file of a platform, and facts beside those stored before."""
    key = platform_id.encode()
    raw = txn.get("platform", key)
    stored = {} if raw is None else _stored_platform(platform_id, raw).environment
    value = msgspec.json.encode(_StoredPlatform(text, {**stored, **facts}))
    rebased = [] if value == raw else _rebased(txn, platform_id, _parsed(text))
    if rebased or (raw is not None and value != raw):
        raise_generation(txn, rebased)  # stored runs have another meaning, or another machine
    txn.put("platform", key, value)


def instances_of(txn: Txn, name: str) -> dict[str, Platform]:
    """Each instance of a platform by its id, except damaged ones."""
    sound = dict[str, Platform]()
    for key, raw in txn.scan_sound("platform", name.encode()):
        own = key.decode(errors="replace")
        if own.partition("@")[0] == name:
            with suppress(StoreCorrupt):
                sound[own] = read_platform(own, raw)
    return sound


def _rebased(txn: Txn, platform_id: str, later: Platform) -> list[bytes]:
    """Keys in `member` of the workloads whose gains will be over another default: those of the
    instance, and of all that read a portable platform by its latest version."""
    if not later.extends:
        return []
    before = instances_of(txn, later.name)
    if not later.portable:
        before = {own: one for own, one in before.items() if own == platform_id}
    after = {**before, platform_id: later}
    read, reads = (latest([of[own] for own in before], of.values()) for of in (before, after))
    changed = dict(zip(before, zip(read, reads, strict=True), strict=True))
    return [
        member
        for key, number in list(txn.scan("partition"))
        if (pair := changed.get((place := codec.decode_partition(key, number))[1])) is not None
        and _other_default(*pair, place[0])
        for member, _ in txn.scan("member", number)
    ]


def _other_default(before: Platform, later: Platform, op: Op | str) -> bool:
    if isinstance(op, str) or op.name not in later.kernels or op.name not in before.kernels:
        return False
    return dict(before.kernel(op).default) != dict(later.kernel(op).default)


def platform_in(txn: Txn, platform_id: str) -> Platform | None:
    """The platform of an id. Raises: StoreCorrupt, naming it, if it is damaged."""
    raw = txn.get("platform", platform_id.encode())
    return None if raw is None else read_platform(platform_id, raw)


@lru_cache(maxsize=512)
def read_platform(platform_id: str, raw: bytes) -> Platform:
    """Parse a platform's file, cached: it costs more than everything else in a query, which reads
    all instances of a portable platform."""
    stored = _stored_platform(platform_id, raw)
    with tables.reading(f"platform {platform_id}"):
        platform = _parsed(stored.text)
        _, _, instance = platform_id.partition("@")
        return platform.at(instance, stored.environment) if instance else platform


#: Cached, since instances of a platform share a text.
_parsed = lru_cache(maxsize=64)(partial(parse_platform, known_only=True))


def _stored_platform(platform_id: str, raw: bytes) -> _StoredPlatform:
    return tables.decoded(raw, _StoredPlatform, f"platform {platform_id}")
