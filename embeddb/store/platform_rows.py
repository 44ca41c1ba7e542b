"""Rows of the table `platform`: a platform's file and the facts of its environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import msgspec

from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store import tables
from embeddb.store.engine import Txn, raise_generation


class _StoredPlatform(msgspec.Struct, frozen=True):
    text: str
    environment: dict[str, str]


def write_platform(txn: Txn, platform_id: str, text: str, facts: Mapping[str, str]) -> None:
    """Store the file of a platform, and facts beside those stored before."""
    key = platform_id.encode()
    raw = txn.get("platform", key)
    stored = {} if raw is None else _stored_platform(platform_id, raw).environment
    value = msgspec.json.encode(_StoredPlatform(text, {**stored, **facts}))
    if raw is not None and value != raw:
        raise_generation(txn)  # stored runs have another meaning, or another machine
    txn.put("platform", key, value)


def platform_in(txn: Txn, platform_id: str) -> Platform | None:
    """The platform of an id. Raises: StoreCorrupt, naming it, if it is damaged."""
    raw = txn.get("platform", platform_id.encode())
    return None if raw is None else read_platform(platform_id, raw)


@lru_cache(maxsize=64)
def read_platform(platform_id: str, raw: bytes) -> Platform:
    """Parse a platform's file, cached: it costs more than everything else in a query."""
    stored = _stored_platform(platform_id, raw)
    with tables.reading(f"platform {platform_id}"):
        platform = _parsed(stored.text)
        _, _, instance = platform_id.partition("@")
        return platform.at(instance, stored.environment) if instance else platform


#: Cached, since instances of a platform share a text.
_parsed = lru_cache(maxsize=64)(partial(parse_platform, known_only=True))


def _stored_platform(platform_id: str, raw: bytes) -> _StoredPlatform:
    return tables.decoded(raw, _StoredPlatform, f"platform {platform_id}")
