"""The latest version among the instances of a portable platform, by which all of them are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embeddb.platforms.platform import Platform
from embeddb.store.merge_facts import latest
from embeddb.store.platform_rows import instances_of

if TYPE_CHECKING:
    from embeddb.store.store import Store


def at_latest(store: Store, platforms: Sequence[Platform]) -> list[Platform]:
    """Stored platforms, a portable one with the file of the latest version among its instances:
    they answer together, so that all have one space and gains over one default. Damaged instances
    do not count."""
    names = {platform.name for platform in platforms if platform.portable}
    if not names:
        return list(platforms)
    with store.engine.read() as txn:  # one for all: an engine may be remote
        stored = [one for name in names for one in instances_of(txn, name).values()]
    answers = latest(platforms, [one for one in stored if one.portable])
    return [one if own.portable else own for own, one in zip(platforms, answers, strict=True)]


def instance_at_latest(store: Store, platform_id: str) -> Platform | None:
    """`at_latest` for the platform of an id; None where it is not stored, or damaged."""
    platform = store.sound_platform(platform_id)
    return None if platform is None else at_latest(store, [platform])[0]
