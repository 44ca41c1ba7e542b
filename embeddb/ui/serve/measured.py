"""Facts of the pages about runs: `/runs`, `/compare`, `/campaigns`, and of the map."""

from __future__ import annotations

import json
import math
from collections import Counter
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import value_text
from embeddb.index.projection import Projection
from embeddb.index.run_matrix import Extent
from embeddb.index.scopes import Scope
from embeddb.ui.serve import facts
from embeddb.ui.serve.app_state import AppState


def runs(state: AppState, query: facts.PageQuery) -> dict[str, Any]:
    """Runs of one matrix, fastest first; without a matrix, the matrices that ran."""
    if not query.get("pattern"):
        return _matrices(state, query)
    info = state.pattern(query["pattern"])
    places = _places(state, info)
    chosen = [
        (name, op)
        for name, op in places
        if query.get("platform", name) in (name, name.partition("@")[0], "")
        and (not query.get("op") or op == facts.op_of(query["op"]))
    ]
    common: dict[str, Any] = {
        "pattern": facts.pattern_line(info),
        "places": [{"platform": name, "op": str(op)} for name, op in places],
    }
    if not chosen:
        raise NothingFound(
            f"{info.name or info.id} has no matching runs",
            hint=f"it ran: {', '.join(f'{op} on {name}' for name, op in places[:8]) or 'nowhere'}",
        )
    name, op = chosen[0]

    def read() -> list[dict[str, Any]]:
        stored = state.db.store.runs(name, op, info.id)
        return [facts.run_line(r) for r in sorted(stored, key=lambda r: (r.seconds, r.config.json))]

    rows = state.cache.get(("runs", info.id, name, op), read)
    page, last, shown = facts.page_of(query, rows)
    summary = facts.side(state, info, name, op)
    return {**common, **summary, "page": page, "pages": last, "total": len(rows), "rows": shown}


def _places(state: AppState, info: WorkloadInfo) -> list[tuple[str, Op]]:
    return sorted(place for place, ids in state.members().items() if info.id in ids)


def _matrices(state: AppState, query: facts.PageQuery) -> dict[str, Any]:
    """Matrices with runs of an operation on a platform, by name."""
    scope = facts.scope_for(state, query.get("platform", ""), query.get("op", ""))
    rows = state.cache.get(("matrices", scope.op, scope.name), lambda: _matrix_rows(state, scope))
    page, last, shown = facts.page_of(query, rows)
    partition = state.db.index.partition(scope.op, scope.platform)
    extent = Extent(0, 0, 0) if partition is None else partition.evidence.extent
    unread = 0  # of very many patterns some are not listed
    if partition is not None and partition.lists is not None:
        unread = partition.indexed - len(partition.ids)
    return {
        "platform": scope.name,
        "op": str(scope.op),
        "simulated": scope.platform.simulated,
        "time_unit": scope.platform.time_unit,
        "page": page,
        "pages": last,
        "total": len(rows),
        "patterns": extent.patterns,
        "machines": extent.machines,
        "extent": extent.words(scope.op.kind),
        "unread": unread,
        "rows": shown,
        "places": [{"platform": s.name, "op": str(s.op)} for s in state.scopes()],
    }


def _matrix_rows(state: AppState, scope: Scope) -> list[dict[str, Any]]:
    partition = state.db.index.partition(scope.op, scope.platform)
    if partition is None:
        return []
    evidence, rows = partition.evidence, []
    for at, (pattern_id, name, _, other) in enumerate(evidence.rows):
        if other:
            continue
        seconds = evidence.row(at).seconds
        ok = seconds[np.isfinite(seconds)]
        base = float(evidence.default_s[at])
        best = float(ok.min()) if ok.size else math.nan
        rows.append(
            {
                **facts.pattern_line(state.info(pattern_id)),
                "platform": name,
                "configs": int(seconds.size),
                "failed": int(seconds.size - ok.size),
                "best_seconds": best if ok.size else None,
                "best_gain": base / best if math.isfinite(base) and best > 0 else None,
            }
        )
    return sorted(rows, key=lambda r: (r["name"].lower(), r["id"], r["platform"]))


def compare(state: AppState, query: facts.PageQuery) -> dict[str, Any]:
    """One matrix on two platforms: curves, winners, answers. Missing choices are made so that both
    have runs, if possible. Raises: NothingFound, UsageError."""
    if not query.get("pattern"):
        return {"pattern": None, "sides": [], "places": [], "shared": _shared(state)}
    info = state.pattern(query["pattern"])
    places = _places(state, info)
    if not places:
        raise NothingFound(f"{info.name or info.id} has no measurements", hint="query it instead")
    most = Counter(op for _, op in places).most_common(1)[0][0]
    op = facts.op_of(query["op"]) if query.get("op") else most
    names = [name for name, what in places if what == op]
    left = query.get("left") or (names[0] if names else "")
    right = query.get("right") or next((n for n in names if n != left), left)
    if not left:
        raise NothingFound(f"{info.name or info.id} has no runs of {op}")
    for name in (left, right):
        if len(name) > 120 or state.db.store.platform(name) is None:
            platforms = ", ".join(names)
            raise NothingFound(f"no platform {name[:80]!r} here", hint=f"it ran on: {platforms}")
    return {
        "pattern": facts.pattern_line(info),
        "op": str(op),
        "sides": [
            _one_side(state, info, name, other, op)
            for name, other in ((left, right), (right, left))
        ],
        "places": [
            {"platform": name, "op": str(what), "words": _words(state, name)}
            for name, what in places
        ],
        "shared": [],
    }


def _shared(state: AppState) -> list[dict[str, Any]]:
    """Matrices measured on the most platforms, as suggestions."""
    counts: Counter[tuple[str, Op]] = Counter()
    for (_, op), ids in state.members().items():
        counts.update((i, op) for i in ids)
    return [
        {**facts.pattern_line(state.info(i)), "op": str(op), "platforms": n}
        for (i, op), n in counts.most_common(20)
        if n > 1
    ]


def _words(state: AppState, name: str) -> str:
    platform = state.db.store.sound_platform(name)
    return "" if platform is None else platform.what


def _one_side(state: AppState, info: WorkloadInfo, name: str, other: str, op: Op) -> dict[str, Any]:
    """One platform of a comparison. `ratios` are seconds over the best, ascending; `default_at` and
    `other_at` are positions of the default and of the other platform's best."""
    timings = facts.curve(state, info, name, op)
    ok = sorted(
        (c.seconds, config.json, config) for config, c in timings.items() if c.status == "ok"
    )
    ranks = {config: at for at, (_, _, config) in enumerate(ok)}
    summary, there = facts.side(state, info, name, op), facts.side(state, info, other, op)
    default_at = ranks.get(Config(summary["default"]))
    other_at = ranks.get(Config(there["best"])) if there["best"] and other != name else None
    ratios = [seconds / ok[0][0] for seconds, _, _ in ok]
    drawn = facts.thinned(ratios, {at for at in (default_at, other_at) if at is not None})
    place = {at: i for i, at in enumerate(drawn)}
    answers = [a for a in state.heads() if a.pattern_id == info.id and a.op == str(op)]
    own = [
        facts.answer_line(a)
        for a in answers
        if a.platform.partition("@")[0] == name.partition("@")[0]
    ]
    return {
        **summary,
        "words": _words(state, name),
        "ratios": [ratios[at] for at in drawn],
        "shares": [at / max(1, len(ok) - 1) for at in drawn],
        "default_at": None if default_at is None else place[default_at],
        "other_at": None if other_at is None else place[other_at],
        "answers": own[:3],
    }


class _Tally(NamedTuple):
    """Runs of one campaign on one matrix: count by status, first and last time."""

    statuses: dict[str, int]
    first: float
    last: float


class Campaigns:
    """Runs by campaign. Runs are stored by matrix, so the first read covers all of them, later ones
    only matrices with newer runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[tuple[str, Op, str], tuple[int, dict[str, _Tally]]] = {}

    def _tallies(self, state: AppState) -> dict[tuple[str, Op, str], tuple[int, dict[str, _Tally]]]:
        members = state.members()
        with self._lock:
            earlier = self._seen
            self._seen = {
                (name, op, i): earlier[name, op, i]
                if (name, op, i) in earlier and earlier[name, op, i][0] == written
                else (written, self._read(state, name, op, i))
                for (name, op), ids in members.items()
                for i, written in ids.items()
            }
            return self._seen

    def _read(self, state: AppState, name: str, op: Op, pattern_id: str) -> dict[str, _Tally]:
        statuses: dict[str, Counter[str]] = {}
        times: dict[str, list[float]] = {}
        for run in state.db.store.runs(name, op, pattern_id):
            statuses.setdefault(run.campaign, Counter())[run.measurement.status] += 1
            times.setdefault(run.campaign, []).append(run.measurement.when)
        return {c: _Tally(dict(n), min(times[c]), max(times[c])) for c, n in statuses.items()}

    def one(self, state: AppState, query: facts.PageQuery) -> dict[str, Any]:
        """One campaign by name. Raises: NothingFound, UsageError."""
        tallies, name, store = self._tallies(state), query["name"], state.db.store
        rows = [(key, entry[1][name]) for key, entry in tallies.items() if name in entry[1]]
        if not rows:
            raise NothingFound(f"no runs of a campaign {name[:80]!r}", hint="/campaigns lists them")
        by_place: dict[tuple[str, str], Counter[str]] = {}
        ids: dict[str, int] = {}
        for (platform, op, pattern_id), tally in rows:
            by_place.setdefault((platform, str(op)), Counter()).update(tally.statuses)
            ids[pattern_id] = ids.get(pattern_id, 0) + sum(tally.statuses.values())
        shown = sorted(
            ({**facts.pattern_line(state.info(i)), "runs": n} for i, n in ids.items()),
            key=lambda r: (r["name"].lower(), r["id"]),
        )
        page, last, rows_of_page = facts.page_of(query, shown)
        simulated = {p for p, _ in by_place if getattr(store.platform(p), "simulated", False)}
        return {
            "name": name,
            "runs": sum(ids.values()),
            "patterns": len(ids),
            "first": min(t.first for _, t in rows),
            "last": max(t.last for _, t in rows),
            "places": [
                {"platform": p, "op": op, "simulated": p in simulated, "statuses": dict(counts)}
                for (p, op), counts in sorted(by_place.items())
            ],
            "page": page,
            "pages": last,
            "rows": rows_of_page,
        }

    def listed(self, state: AppState, query: facts.PageQuery) -> dict[str, Any]:
        """All campaigns, the latest first; or the one in `name`."""
        if "name" in query:
            return self.one(state, query)
        by_name: dict[str, dict[str, Any]] = {}
        for (_, _, pattern_id), (_, tallies) in self._tallies(state).items():
            for name, tally in tallies.items():
                row = by_name.setdefault(
                    name, {"name": name, "runs": 0, "ids": set(), "first": math.inf, "last": 0.0}
                )
                row["runs"] += sum(tally.statuses.values())
                row["ids"].add(pattern_id)
                row["first"] = min(row["first"], tally.first)
                row["last"] = max(row["last"], tally.last)
        for row in by_name.values():
            row["patterns"] = len(row.pop("ids"))
        rows = sorted(by_name.values(), key=lambda r: (-r["last"], r["name"]))
        page, last, shown = facts.page_of(query, rows)
        return {"total": len(rows), "page": page, "pages": last, "rows": shown}


# -- map -------------------------------------------------------------------------------------------

#: Kinds with a colour and a shape of their own; all others share one.
_MOST_KINDS = 8
_OTHER = "other"
#: No value of a parameter and no group is written so.
_NONE = "(none)"
#: Prefix of a colour by one parameter of the winner: `winner.NAME`.
_PART = "winner."


def _projection(state: AppState, scope: Scope) -> Projection:
    projection = state.cache.get(
        ("atlas", scope.op, scope.name), lambda: state.db.atlas(scope.op, scope.platform)
    )
    if projection is None:
        raise NothingFound(
            f"no map of {scope.op} on {scope.name}",
            hint="programs have no embedding: each is tuned on its own"
            if not scope.op.workload.embedded
            else "its patterns have no vectors: run `embeddb embed`",
        )
    return projection


def map_points(state: AppState, query: facts.PageQuery) -> dict[str, Any]:
    """All points: `x` and `y` in the unit square, `kind` a position in `kinds`, which are sorted by
    number of points, `other` last.

    Raises: NothingFound without runs or vectors; UsageError for an unknown colour.
    """
    scope = facts.scope_for(state, query.get("platform", ""), query.get("op", ""))
    projection = _projection(state, scope)
    values: dict[str, set[str]] = {}
    for winner in set(projection.winners):
        for name, value in _config(winner).items():
            values.setdefault(name, set()).add(value_text(value))
    # Parameters that differ between winners, platform and group.
    parts = [_PART + name for name, seen in sorted(values.items()) if len(seen) > 1]
    colors = ["winner", *parts, "platform", "group"]
    color = query.get("color") or ("winner" if any(projection.winners) else "group")
    if color not in colors:
        raise UsageError(f"no colour by {color[:40]!r}", hint=f"by: {', '.join(colors)}")
    labels = _labels(state, projection, scope, color)
    counts = Counter(labels)
    named = [label for label, _ in counts.most_common() if label != _NONE][:_MOST_KINDS]
    kinds: list[dict[str, Any]] = [{"label": label, "count": counts[label]} for label in named]
    place = {label: at for at, label in enumerate(named)}
    rest = sum(counts.values()) - sum(k["count"] for k in kinds)
    if rest:
        kinds.append({"label": _OTHER, "count": rest})
    return {
        "op": str(scope.op),
        "platform": scope.name,
        "simulated": scope.platform.simulated,
        "featurizer": projection.featurizer,
        "color": color,
        "colors": colors,
        "kinds": kinds,
        "ids": projection.ids,
        "names": [name[:80] for name in projection.names],
        "x": [round(x, 4) for x in projection.x],
        "y": [round(y, 4) for y in projection.y],
        "kind": [place.get(label, len(named)) for label in labels],
    }


def map_page(state: AppState, query: facts.PageQuery) -> dict[str, Any]:
    """The map with one page of the table of points instead of all."""
    document = map_points(state, query)
    ids, names, kind = document.pop("ids"), document.pop("names"), document.pop("kind")
    xs, ys = document.pop("x"), document.pop("y")
    order = sorted(range(len(ids)), key=lambda at: (kind[at], names[at].lower(), ids[at]))
    page, last, shown = facts.page_of(query, order)
    rows = [
        {
            "id": ids[at],
            "name": names[at],
            "kind": document["kinds"][kind[at]]["label"],
            "x": xs[at],
            "y": ys[at],
        }
        for at in shown
    ]
    scopes = [{"platform": s.name, "op": str(s.op)} for s in state.scopes()]
    counts = {"total": len(ids), "page": page, "pages": last}
    return {**document, **counts, "rows": rows, "scopes": scopes}


def _config(text: str) -> dict[str, Any]:
    parsed = json.loads(text) if text else {}
    return parsed if isinstance(parsed, dict) else {}


def _labels(state: AppState, projection: Projection, scope: Scope, color: str) -> list[str]:
    if color == "group":
        return [group or _NONE for group in projection.groups]
    if color == "platform":  # all on which a matrix ran the operation
        ran: dict[str, set[str]] = {}
        for other in state.scopes():
            for name in other.instances if other.op == scope.op else ():
                for pattern_id in state.members().get((name, other.op), ()):
                    ran.setdefault(pattern_id, set()).add(other.name)
        return [" + ".join(sorted(ran.get(i, ()))) or _NONE for i in projection.ids]
    labels = {winner: _label(_config(winner), color) for winner in set(projection.winners)}
    return [labels[winner] for winner in projection.winners]


def _label(config: dict[str, Any], color: str) -> str:
    if not config:
        return _NONE
    if color.startswith(_PART):
        return value_text(config.get(color.removeprefix(_PART)))
    return ", ".join(f"{k}={value_text(v)}" for k, v in config.items())
