"""Data of `plot`: lines, kinds and counts from a database or a curve file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.index.scopes import scope_partitions
from embeddb.platforms.of_subject import default_of
from embeddb.store.usual_state import usual_at
from embeddb.ui.draw import Line

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.index.projection import Projection
    from embeddb.platforms.platform import Platform
    from embeddb.store import RunTable

#: Scopes named in a message.
_NAMED = 8


def measured_on(
    db: Database, partition: RunTable, pattern_id: str
) -> tuple[Line, dict[str, Any]] | None:
    """The curve of one pattern on one platform, and its figures; None without runs."""
    op, where = partition.op, db.store.platform(partition.platform)
    runs = db.store.runs(partition.platform, op, pattern_id)
    curve = summarise_runs(runs, usual_at(db.store, partition.platform))
    if not curve or where is None:
        return None
    info = db.store.pattern(pattern_id) or WorkloadInfo(id=pattern_id)
    default = default_of(where, op, db.store.workload_or_info(info))
    timed = [(c.seconds, config) for config, c in curve.items() if math.isfinite(c.seconds)]
    ran = sorted(timed, key=lambda pair: (pair[0], pair[1].json))
    marks = {"best": 0} if ran else {}
    order = [config for _, config in ran]
    if default in order:
        marks["default"] = order.index(default)
    ratios = [seconds / ran[0][0] for seconds, _ in ran]
    fact = {
        "platform": partition.platform,
        "configs": len(curve),
        "ran": len(ran),
        "failed": dict(Counter(c.status for c in curve.values() if c.status != "ok")),
        "best": dict(order[0]) if order else None,
        "best_s": ran[0][0] if ran else None,
        "default_s": ran[marks["default"]][0] if "default" in marks else None,
    }
    return Line(where.display_name, range(1, len(ran) + 1), ratios, marks), fact


def kinds_by(db: Database, projection: Projection, color: str) -> list[str]:
    """Kind of each dot on the map, one for each pattern."""
    if color == "group":
        return [group or "(no group)" for group in projection.groups]
    if color == "winner":
        configs = [Config.from_json(text) if text else None for text in projection.winners]
        names = short_names({c for c in configs if c is not None})
        return [names[c] if c is not None else "(nothing ran)" for c in configs]
    at: dict[str, set[str]] = {}
    for partition in scope_partitions(db.store, Op.parse(projection.op), projection.scope):
        for pattern_id in db.store.members(partition):
            at.setdefault(pattern_id, set()).add(partition.platform)
    return [" and ".join(sorted(at.get(i, {"(none)"}))) for i in projection.ids]


def short_names(configs: Iterable[Config]) -> dict[Config, str]:
    """Configurations as text, without parameters that have the same value in all of them."""
    ordered = sorted(configs, key=lambda c: c.json)
    names = {name for config in ordered for name in config}
    same = {name for name in names if len({str(config.get(name)) for config in ordered}) == 1}
    if len(ordered) < 2:
        same = set()
    return {c: str(Config({k: v for k, v in c.items() if k not in same})) for c in ordered}


def figures(epochs: Sequence[Mapping[str, float]], names: Iterable[str]) -> list[Line]:
    """The named figures of a training over its epochs; the smallest `valid_loss` is marked."""
    lines = []
    for name in names:
        points = [(line["epoch"], line[name]) for line in epochs if name in line]
        x, y = [pair[0] for pair in points], [pair[1] for pair in points]
        marks = {"best": y.index(min(y))} if name == "valid_loss" else {}
        lines.append(Line(name.replace("_", " "), x, y, marks))
    return lines


def simulated_mark(platform: Platform) -> str:
    """Suffix of a title for simulated platforms."""
    return " (simulated)" if platform.simulated else ""


def is_simulated(db: Database, scope: str) -> bool:
    return db.platform(scope).simulated


_EMPTY = "the database is empty: `embeddb index` or `embeddb measure` fills it"


def nothing_of(db: Database, what: str) -> NothingFound:
    """The error for missing runs; its hint lists the scopes that have some."""
    have = ", ".join(f"{op} on {scope}" for op, scope in db.index.scopes()[:_NAMED])
    return NothingFound(f"no runs of {what}", hint=f"there are: {have}" if have else _EMPTY)
