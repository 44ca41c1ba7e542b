"""Facts of the pages about runs: `/runs`, `/compare`, `/campaigns`."""

from __future__ import annotations

import math
from collections import Counter
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.index.run_matrix import Extent
from embeddb.index.scopes import Scope
from embeddb.ui.serve.app_state import AppState
from embeddb.ui.serve.curves import curve, run_line, side, thinned
from embeddb.ui.serve.facts import (
    Asked,
    answer_line,
    op_of,
    page_of,
    pattern_line,
    scope_for,
)

_PAGE = 100


def runs(state: AppState, asked: Asked) -> dict[str, Any]:
    """Runs of one matrix, fastest first; without a matrix, the matrices that ran."""
    if not asked.get("pattern"):
        return _matrices(state, asked)
    info = state.pattern(asked["pattern"])
    places = _places(state, info)
    chosen = [
        (name, op)
        for name, op in places
        if asked.get("platform", name) in (name, name.partition("@")[0], "")
        and (not asked.get("op") or op == op_of(asked["op"]))
    ]
    facts: dict[str, Any] = {
        "pattern": pattern_line(info),
        "places": [{"platform": name, "op": str(op)} for name, op in places],
    }
    if not chosen:
        raise NothingFound(
            f"{info.name or info.id} has no such runs",
            hint=f"it ran: {', '.join(f'{op} on {name}' for name, op in places[:8]) or 'nowhere'}",
        )
    name, op = chosen[0]
    found = state.cache.get(
        ("runs", info.id, name, op), lambda: _sorted_runs(state, info, name, op)
    )
    page, last = page_of(asked, len(found), _PAGE)
    shown = found[(page - 1) * _PAGE : page * _PAGE]
    summary = side(state, info, name, op)
    return {**facts, **summary, "page": page, "pages": last, "total": len(found), "rows": shown}


def _sorted_runs(state: AppState, info: WorkloadInfo, name: str, op: Op) -> list[dict[str, Any]]:
    found = sorted(state.db.store.runs(name, op, info.id), key=lambda r: (r.seconds, r.config.json))
    return [run_line(run) for run in found]


def _places(state: AppState, info: WorkloadInfo) -> list[tuple[str, Op]]:
    return sorted(place for place, ids in state.members().items() if info.id in ids)


def _matrices(state: AppState, asked: Asked) -> dict[str, Any]:
    """Those with runs of an operation on a platform, by name."""
    scope = scope_for(state, asked.get("platform", ""), asked.get("op", ""))
    rows = state.cache.get(("matrices", scope.op, scope.name), lambda: _matrix_rows(state, scope))
    page, last = page_of(asked, len(rows), _PAGE)
    return {
        "platform": scope.name,
        "op": str(scope.op),
        "simulated": scope.platform.simulated,
        "time_unit": scope.platform.time_unit,
        "page": page,
        "pages": last,
        "total": len(rows),
        **_extent(state, scope),
        "unread": _unread(state, scope),
        "rows": rows[(page - 1) * _PAGE : page * _PAGE],
        "places": [{"platform": s.name, "op": str(s.op)} for s in state.scopes()],
    }


def _extent(state: AppState, scope: Scope) -> dict[str, Any]:
    """How many patterns and machines the rows are of."""
    partition = state.db.index.partition(scope.op, scope.platform)
    extent = Extent(0, 0, 0) if partition is None else partition.evidence.extent
    words = extent.words(scope.op.kind)
    return {"patterns": extent.patterns, "machines": extent.machines, "extent": words}


def _unread(state: AppState, scope: Scope) -> int:
    """Patterns that are not listed because there are very many."""
    partition = state.db.index.partition(scope.op, scope.platform)
    if partition is None or partition.lists is None:
        return 0
    return partition.indexed - len(partition.ids)


def _matrix_rows(state: AppState, scope: Scope) -> list[dict[str, Any]]:
    partition = state.db.index.partition(scope.op, scope.platform)
    if partition is None:
        return []
    evidence, known, rows = partition.evidence, state.catalog().infos, []
    for at, (pattern_id, name, _, other) in enumerate(evidence.rows):
        if other:
            continue
        seconds = evidence.row(at).seconds
        ok = seconds[np.isfinite(seconds)]
        base = float(evidence.default_s[at])
        best = float(ok.min()) if ok.size else math.nan
        rows.append(
            {
                **pattern_line(known.get(pattern_id, WorkloadInfo(id=pattern_id))),
                "platform": name,
                "configs": int(seconds.size),
                "failed": int(seconds.size - ok.size),
                "best_seconds": best if ok.size else None,
                "best_gain": base / best if math.isfinite(base) and best > 0 else None,
            }
        )
    return sorted(rows, key=lambda r: (r["name"].lower(), r["id"], r["platform"]))


def compare(state: AppState, asked: Asked) -> dict[str, Any]:
    """One matrix on two platforms: curves, winners, answers. What is left open is chosen so that
    there is something to compare. Raises: NothingFound, UsageError."""
    if not asked.get("pattern"):
        return {"pattern": None, "sides": [], "places": [], "shared": _shared(state)}
    info = state.pattern(asked["pattern"])
    places = _places(state, info)
    if not places:
        raise NothingFound(
            f"{info.name or info.id} was never measured", hint="ask about it instead"
        )
    op = op_of(asked["op"]) if asked.get("op") else _op_of_most(places)
    names = [name for name, what in places if what == op]
    left = asked.get("left") or (names[0] if names else "")
    right = asked.get("right") or next((n for n in names if n != left), left)
    if not left:
        raise NothingFound(f"{info.name or info.id} has no runs of {op}")
    for name in (left, right):
        if len(name) > 120 or state.db.store.platform(name) is None:
            known = ", ".join(names)
            raise NothingFound(f"no platform {name[:80]!r} here", hint=f"it ran on: {known}")
    return {
        "pattern": pattern_line(info),
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


def _op_of_most(places: list[tuple[str, Op]]) -> Op:
    return Counter(op for _, op in places).most_common(1)[0][0]


def _shared(state: AppState) -> list[dict[str, Any]]:
    """Matrices that ran on the most platforms, as a way in."""
    counts: Counter[tuple[str, Op]] = Counter()
    for (_, op), ids in state.members().items():
        counts.update((i, op) for i in ids)
    known = state.catalog().infos
    return [
        {**pattern_line(known.get(i, WorkloadInfo(id=i))), "op": str(op), "platforms": n}
        for (i, op), n in counts.most_common(20)
        if n > 1
    ]


def _words(state: AppState, name: str) -> str:
    platform = state.db.store.sound_platform(name)
    return "" if platform is None else platform.what


def _one_side(state: AppState, info: WorkloadInfo, name: str, other: str, op: Op) -> dict[str, Any]:
    """`ratios` are seconds over the best's, ascending; `default_at` and `other_at` positions in it:
    of the default, and of the configuration that is best on the other platform."""
    held = curve(state, info, name, op)
    ok = sorted((c.seconds, config.json, config) for config, c in held.items() if c.status == "ok")
    ranks = {config: at for at, (_, _, config) in enumerate(ok)}
    found, there = side(state, info, name, op), side(state, info, other, op)
    default_at = ranks.get(Config(found["default"]))
    other_at = ranks.get(Config(there["best"])) if there["best"] and other != name else None
    ratios = [seconds / ok[0][0] for seconds, _, _ in ok]
    kept = thinned(ratios, {at for at in (default_at, other_at) if at is not None})
    place = {at: i for i, at in enumerate(kept)}
    answers = [a for a in state.heads() if a.pattern_id == info.id and a.op == str(op)]
    own = [
        answer_line(a) for a in answers if a.platform.partition("@")[0] == name.partition("@")[0]
    ]
    return {
        **found,
        "words": _words(state, name),
        "ratios": [ratios[at] for at in kept],
        "shares": [at / max(1, len(ok) - 1) for at in kept],
        "default_at": None if default_at is None else place[default_at],
        "other_at": None if other_at is None else place[other_at],
        "answers": own[:3],
    }


def _simulated(state: AppState, name: str) -> bool:
    found = state.db.store.platform(name)
    return found is not None and found.simulated


class _Tally(NamedTuple):
    """What one campaign did to one matrix: runs by status, first and last time."""

    statuses: dict[str, int]
    first: float
    last: float


class Campaigns:
    """Which runs belong to which campaign. Runs are kept by matrix, so the first look reads all of
    them; later ones only matrices with newer runs."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._lock = Lock()
        self._seen: dict[tuple[str, Op, str], tuple[int, dict[str, _Tally]]] = {}

    def _tallies(self) -> dict[tuple[str, Op, str], tuple[int, dict[str, _Tally]]]:
        members = self._state.members()
        with self._lock:
            known = self._seen
            self._seen = {
                (name, op, i): known[name, op, i]
                if (name, op, i) in known and known[name, op, i][0] == written
                else (written, self._read(name, op, i))
                for (name, op), ids in members.items()
                for i, written in ids.items()
            }
            return self._seen

    def _read(self, name: str, op: Op, pattern_id: str) -> dict[str, _Tally]:
        statuses: dict[str, Counter[str]] = {}
        times: dict[str, list[float]] = {}
        for run in self._state.db.store.runs(name, op, pattern_id):
            statuses.setdefault(run.campaign, Counter())[run.measurement.status] += 1
            times.setdefault(run.campaign, []).append(run.measurement.when)
        return {c: _Tally(dict(n), min(times[c]), max(times[c])) for c, n in statuses.items()}

    def one(self, state: AppState, asked: Asked) -> dict[str, Any]:
        """One campaign by name. Raises: NothingFound, UsageError."""
        tallies, name = self._tallies(), asked["name"]
        rows = [(key, held[1][name]) for key, held in tallies.items() if name in held[1]]
        if not rows:
            raise NothingFound(f"no runs of a campaign {name[:80]!r}", hint="/campaigns lists them")
        by_place: dict[tuple[str, str], Counter[str]] = {}
        ids: dict[str, int] = {}
        for (platform, op, pattern_id), tally in rows:
            by_place.setdefault((platform, str(op)), Counter()).update(tally.statuses)
            ids[pattern_id] = ids.get(pattern_id, 0) + sum(tally.statuses.values())
        page, last = page_of(asked, len(ids), _PAGE)
        known = self._state.catalog().infos
        shown = sorted(
            ({**pattern_line(known.get(i, WorkloadInfo(id=i))), "runs": n} for i, n in ids.items()),
            key=lambda r: (r["name"].lower(), r["id"]),
        )
        return {
            "name": name,
            "runs": sum(ids.values()),
            "patterns": len(ids),
            "first": min(t.first for _, t in rows),
            "last": max(t.last for _, t in rows),
            "places": [
                {
                    "platform": p,
                    "op": op,
                    "simulated": _simulated(state, p),
                    "statuses": dict(counts),
                }
                for (p, op), counts in sorted(by_place.items())
            ],
            "page": page,
            "pages": last,
            "rows": shown[(page - 1) * _PAGE : page * _PAGE],
        }

    def listed(self, state: AppState, asked: Asked) -> dict[str, Any]:
        """All of them, the latest first; the one that `name` asks for, where it is asked."""
        if "name" in asked:
            return self.one(state, asked)
        found: dict[str, dict[str, Any]] = {}
        for (_, _, pattern_id), (_, held) in self._tallies().items():
            for name, tally in held.items():
                row = found.setdefault(
                    name, {"name": name, "runs": 0, "ids": set(), "first": math.inf, "last": 0.0}
                )
                row["runs"] += sum(tally.statuses.values())
                row["ids"].add(pattern_id)
                row["first"], row["last"] = (
                    min(row["first"], tally.first),
                    max(row["last"], tally.last),
                )
        for row in found.values():
            row["patterns"] = len(row.pop("ids"))
        rows = sorted(found.values(), key=lambda r: (-r["last"], r["name"]))
        page, last = page_of(asked, len(rows), _PAGE)
        return {
            "total": len(rows),
            "page": page,
            "pages": last,
            "rows": rows[(page - 1) * _PAGE : page * _PAGE],
        }
