"""Scopes, the partitions whose runs answer for an op in one, and their evidence from the store.

A scope is a platform, or all instances of a platform that declares itself portable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.index.run_matrix import MatrixRow, RunMatrix, join
from embeddb.platforms.machines import Facts
from embeddb.platforms.platform import Platform, default_of
from embeddb.platforms.space.space import ConfigSpace
from embeddb.store import RunTable, Store
from embeddb.store.versions import at_latest

#: With fewer patterns measured at an op, other widths and value types of the kernel count as well.
_ENOUGH_PATTERNS = 40
#: With fewer patterns measured at a width, another one with enough of them answers for it.
_FEWEST_PATTERNS = 5


class Scope(NamedTuple):
    """One operation with evidence: `name` is the platform's, or that of all the instances of a
    portable one, whose ids are in `instances`; `platform` is one of them."""

    op: Op
    name: str
    platform: Platform
    instances: tuple[str, ...]


def scope_of(platform: Platform) -> str:
    """Portable platforms share evidence between instances; others keep to themselves."""
    return platform.name if platform.portable else platform.id


def scopes(store: Store) -> list[Scope]:
    """Every scope with runs, by name and operation."""
    instances: dict[tuple[str, Op], tuple[Platform, list[str]]] = {}
    partitions = store.partitions()
    stored = {i: p for i in {t.platform for t in partitions} if (p := store.sound_platform(i))}
    latest = dict(zip(stored, at_latest(store, list(stored.values())), strict=True))
    for partition in partitions:
        if platform := latest.get(partition.platform):
            key = scope_of(platform), partition.op
            instances.setdefault(key, (platform, []))[1].append(platform.id)
    return [
        Scope(op, name, platform, tuple(sorted(ids)))
        for (name, op), (platform, ids) in sorted(instances.items(), key=lambda x: x[0])
    ]


def run_matrix_of(
    store: Store,
    op: Op,
    scope: str,
    *,
    only: Collection[str] | None = None,
    partitions: Sequence[RunTable] | None = None,
    beside: Collection[Config] = (),
) -> RunMatrix:
    """Evidence of `partitions` (default: those of an op in a scope), for `only` some patterns
    (default: all); `beside` are the configurations of evidence that it is to be merged with."""
    chosen = scope_partitions(store, op, scope) if partitions is None else partitions
    stored = [p for part in chosen if (p := store.platform(part.platform)) is not None]
    ran = list(zip(chosen, at_latest(store, stored), strict=True))
    runs = join(op, _rows(store, op, ran, only), winners=winners_only(store, chosen))
    return _in_one_form(store, runs, {part.platform: platform for part, platform in ran}, beside)


def _in_one_form(
    store: Store, runs: RunMatrix, platforms: Mapping[str, Platform], beside: Collection[Config]
) -> RunMatrix:
    """Evidence in which a choice that has two forms on a pattern, since the number of a symbol is
    among the values, has the one that other patterns ran: it would else look like another choice,
    which these few patterns alone ran."""
    spaces = {at: one for at, one in _spaces(store, runs, platforms) if one.twice}
    if not spaces:
        return runs
    others = np.setdiff1d(np.arange(len(runs.rows)), list(spaces))
    usual = {*runs.take(others).pruned().configs, *beside}
    places, column = {config: at for at, config in enumerate(runs.configs)}, runs.column.copy()
    for at, space in spaces.items():
        part = runs.part(at)
        for entry in range(part.start, part.stop):
            config = runs.configs[runs.column[entry]]
            other = space.with_symbols(config)
            if config not in usual and other in usual:
                column[entry] = places.setdefault(other, len(places))
    return replace(runs, configs=tuple(places), column=column).in_order()


def _spaces(
    store: Store, runs: RunMatrix, platforms: Mapping[str, Platform]
) -> Iterator[tuple[int, ConfigSpace]]:
    """The space of each row on whose platform a parameter may be a symbol."""
    for at, row in enumerate(runs.rows):
        platform, op = platforms[row.platform], Op.parse(row.op) if row.op else runs.op
        info = store.pattern(row.pattern_id) if platform.space(op).rules.symbolic else None
        if info is not None:
            yield at, platform.space(op, info.sizes)


def winners_only(store: Store, partitions: Sequence[RunTable]) -> bool:
    """Return true if one of the partitions has nothing but the winner of each workload."""
    platforms = (store.platform(p.platform) for p in partitions)
    return any(p is not None and bool(p.traits.get("winners_only")) for p in platforms)


def scope_partitions(store: Store, op: Op, scope: str) -> list[RunTable]:
    """The partitions of a scope at exactly this op."""
    return [p for p in _scope(store, op.name, scope) if p.op == op]


def members_of(store: Store, op: Op, scope: str) -> set[str]:
    """Patterns that ran an op in a scope."""
    return {i for p in scope_partitions(store, op, scope) for i in store.members(p)}


def _scope(store: Store, kernel: str, scope: str) -> list[RunTable]:
    """Partitions of a kernel whose platform is of the scope, and not only named like it."""
    members = []
    for partition in store.partitions():
        platform_id = partition.platform
        if partition.op.name == kernel and scope in (platform_id, platform_id.partition("@")[0]):
            platform = store.sound_platform(platform_id)
            if platform is not None and scope_of(platform) == scope:
                members.append(partition)
    return members


def pooled_partitions(store: Store, op: Op, scope: str) -> list[RunTable]:
    """The partitions whose runs answer for an op in a scope: those at this op, and where these have
    few patterns those at other widths and value types too. Empty where nothing of this kernel was
    measured."""
    mine = _scope(store, op.name, scope)
    exact = [p for p in mine if p.op == op]
    ids = {i for p in exact for i in store.first_members(p, _ENOUGH_PATTERNS)}
    return exact if len(ids) >= _ENOUGH_PATTERNS else mine


def nearest_widths(ops: Iterable[Op], op: Op) -> list[Op]:
    """The ops of the same kernel, nearest width first, by ratio; of two equally far the wider,
    whose runs predicted better on the starter's matrices (spmm:128 by 512: 0.86 of the optimum, by
    32: 0.69)."""
    same = [o for o in ops if (o.name, o.dtype) == (op.name, op.dtype)]
    return sorted(same, key=lambda o: (abs(math.log(o.width / op.width)), -o.width))


def answering_op(store: Store, op: Op, scope: str) -> Op:
    """The op whose partition answers for an op in a scope: itself where five patterns ran it there,
    else the nearest width of the value type, then of any, that 40 patterns ran; itself if there is
    none."""
    mine = _scope(store, op.name, scope)

    def ran(width: Op, most: int) -> int:
        return len({i for p in mine if p.op == width for i in store.first_members(p, most)})

    if ran(op, _FEWEST_PATTERNS) >= _FEWEST_PATTERNS:
        return op
    others = {p.op for p in mine if p.op != op}
    # Value types rank configurations alike; an index for each new width of a type takes a minute.
    types = sorted({o.dtype for o in others}, key=lambda t: (t != op.dtype, t != "f32", t))
    widths = [w for dtype in types for w in nearest_widths(others, replace(op, dtype=dtype))]
    return next((w for w in widths if ran(w, _ENOUGH_PATTERNS) >= _ENOUGH_PATTERNS), op)


def facts_of(store: Store, op: Op, scope: str) -> dict[str, Facts]:
    """The environments of the instances that answer for an op in a scope."""
    ids = {p.platform for p in pooled_partitions(store, op, scope)}
    platforms = ((i, store.platform(i)) for i in sorted(ids))
    return {i: dict(platform.environment) for i, platform in platforms if platform is not None}


def _rows(
    store: Store,
    op: Op,
    chosen: Sequence[tuple[RunTable, Platform]],
    only: Collection[str] | None,
) -> Iterable[Any]:
    if only is None:
        infos = {info.id: info for info in store.patterns()}
    else:
        infos = {i: info for i in only if (info := store.pattern(i)) is not None}
    chunks: Iterable[tuple[str, list[Any]]]
    for partition, platform in chosen:
        normal = store.usual_at(platform.id)
        ran, other = partition.op, "" if partition.op == op else str(partition.op)
        if only is None:
            every = groupby(store.runs(partition.platform, ran), key=attrgetter("pattern_id"))
            chunks = ((pattern_id, list(runs)) for pattern_id, runs in every)
        else:
            chunks = ((i, list(store.runs(partition.platform, ran, i))) for i in only)
        for pattern_id, runs in chunks:
            if runs:
                # One that was stored since is among the runs, and has a family, too.
                info = infos.get(pattern_id) or store.pattern(pattern_id)
                info = info or WorkloadInfo(id=pattern_id)
                default = default_of(platform, ran, store.workload_or_info(info))
                row = MatrixRow(pattern_id, partition.platform, info.family, other)
                yield row, default, summarise_runs(runs, normal)
