"""The latest version among the instances of a portable platform, by which all of them are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embeddb.platforms.platform import Platform
from embeddb.store.merge_facts import extends

if TYPE_CHECKING:
    from embeddb.store.store import Store


def at_latest(store: Store, platforms: Sequence[Platform]) -> list[Platform]:
    """Stored platforms, a portable one with the file of the latest version among its instances:
    they answer together, so that all have one space and gains over one default."""
    names = {platform.name for platform in platforms if platform.portable}
    there = [i for i in store.platforms() if i.partition("@")[0] in names] if names else []
    files = {one.text: one for i in there if (one := store.sound_platform(i)) and one.portable}
    later = [one for one in files.values() if one.extends]
    return [_at_latest(platform, later) for platform in platforms]


def instance_at_latest(store: Store, platform_id: str) -> Platform | None:
    """`at_latest` for the platform of an id; None where it is not stored, or damaged."""
    platform = store.sound_platform(platform_id)
    return None if platform is None else at_latest(store, [platform])[0]


def _at_latest(platform: Platform, later: Sequence[Platform]) -> Platform:
    for one in later if platform.portable else ():
        if one.name == platform.name and extends(one, platform):
            platform = one.at(platform.instance, platform.environment)
    return platform
