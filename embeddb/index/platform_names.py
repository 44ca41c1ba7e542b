"""Resolution of a platform's name: an id in a store, a bare name, a built-in one or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embeddb.core.arguments import require
from embeddb.core.errors import UsageError
from embeddb.platforms.machines import same_build
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform, platform_hint
from embeddb.store import RunTable, Store
from embeddb.store.versions import at_latest

#: Matrices, and runs of each, that are sampled to check that anything ran on an instance.
_TRIED_PATTERNS, _TRIED_RUNS = 20, 50


def platform_named(store: Store, text: str) -> Platform:
    """The platform of an id in the store (`at_latest`), a built-in name, or a TOML file.

    A bare name stands for its only instance, not counting others of the same build and those where
    every run failed. Raises: UsageError if no instance or more than one has that name.
    """
    require("platform", text, str, "a Platform, or its name, id or file as a text,")
    stored = store.platforms()
    if text in stored:
        return _latest(store, text)
    instances = [p for p in stored if p.partition("@")[0] == text]
    shared = [one for one in (_latest(store, p) for p in instances[:1]) if one.portable]
    if shared and text in builtin_platforms():
        return load_platform(text)  # without an instance: any machine of its kind
    if shared and not shared[0].simulated:
        return shared[0].at("")
    instances = _distinct(store, instances)
    if len(instances) == 1:
        return _latest(store, instances[0])
    if shared:
        return shared[0].at("")
    if instances:
        raise UsageError(
            f"platform {text} has {len(instances)} instances here",
            hint=f"name one: {', '.join(instances)}",
        )
    name, _, instance = text.partition("@")
    if Path(text).suffix == ".toml" or name in builtin_platforms():
        return load_platform(text)
    described = [p for p in stored if p.partition("@")[0] == name]
    if described and instance:
        return _latest(store, described[0]).at(instance)
    raise UsageError(f"no platform {text!r}", hint=platform_hint(text, stored))


def _distinct(store: Store, instances: Sequence[str]) -> list[str]:
    """The instance with most runs of each build, without those where nothing ran; all of them where
    nothing ran anywhere."""
    tables = {one: list[RunTable]() for one in instances}
    for partition in store.partitions():
        if partition.platform in tables:
            tables[partition.platform].append(partition)
    builds: list[str] = []
    for one in sorted(tables, key=lambda i: -sum(map(store.count_runs, tables[i]))):
        facts = _stored(store, one).environment
        if not any(same_build(facts, _stored(store, other).environment) for other in builds):
            builds.append(one)
    ran = [one for one in builds if any(_ran(store, table) for table in tables[one])]
    return sorted(ran or builds)


def _ran(store: Store, table: RunTable) -> bool:
    drawn = store.sample(table, patterns=_TRIED_PATTERNS, runs=_TRIED_RUNS)
    return any(run.measurement.ok for run in drawn)


def _stored(store: Store, platform_id: str) -> Platform:
    platform = store.platform(platform_id)
    assert platform is not None
    return platform


def _latest(store: Store, platform_id: str) -> Platform:
    return at_latest(store, [_stored(store, platform_id)])[0]
