"""Facts of the pages as plain values: the JSON twin of a page.

Each function of a page takes the state and the query of the address, and returns a document.
Raises: NothingFound for a missing item, UsageError for an invalid query.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.index.scopes import Scope
from embeddb.platforms.machines import described
from embeddb.platforms.platform import Platform, default_of
from embeddb.store.versions import instance_at_latest
from embeddb.ui.serve.app_state import AnswerHead, AppState
from indexer.coverage import Coverage

#: Points of a drawn curve.
_MOST_POINTS = 300


def curve(
    state: AppState, info: WorkloadInfo, platform: str, op: Op
) -> dict[Config, TimingSummary]:
    """Every configuration that ran on a matrix on one platform instance."""

    def read() -> dict[Config, TimingSummary]:
        store = state.db.store
        return summarise_runs(store.runs(platform, op, info.id), store.usual_at(platform))

    return state.cache.get(("curve", info.id, platform, op), read)


def side(state: AppState, info: WorkloadInfo, platform: str, op: Op) -> dict[str, Any]:
    """Summary of one matrix on one platform. Gains are factors over the default there.

    Raises: NothingFound if the platform is unknown.
    """
    store = state.db.store
    stored = state.cache.get(("latest", platform), lambda: instance_at_latest(store, platform))
    if stored is None:
        raise NothingFound(f"no platform {platform[:80]!r} here")
    timings = curve(state, info, platform, op)
    ok = {config: c for config, c in timings.items() if math.isfinite(c.seconds)}
    best = min(ok, key=lambda config: (ok[config].seconds, config.json), default=None)
    default = default_of(stored, op, store.workload_or_info(info))
    base = ok[default].seconds if default in ok else None
    quickest = None if best is None else ok[best].seconds
    return {
        "platform": platform,
        "op": str(op),
        "simulated": stored.simulated,
        "time_unit": stored.time_unit,
        "configs": len(timings),
        "runs": sum(c.runs + c.failed for c in timings.values()),
        "failed": dict(Counter(c.status for c in timings.values() if c.status != "ok")),
        "best": {} if best is None else dict(best),
        "best_seconds": quickest,
        "default": dict(default),
        "default_seconds": base,
        "best_gain": base / quickest if base is not None and quickest else None,
    }


def thinned(values: list[float], keep: set[int]) -> list[int]:
    """Drawn positions of a sorted curve: all of them, or `_MOST_POINTS` and `keep`."""
    if len(values) <= _MOST_POINTS:
        return list(range(len(values)))
    step = (len(values) - 1) / (_MOST_POINTS - 1)
    return sorted({round(i * step) for i in range(_MOST_POINTS)} | keep)


def run_line(run: Run) -> dict[str, Any]:
    m = run.measurement
    return {
        "id": run.id,
        "config": dict(run.config),
        "status": m.status,
        "seconds": run.seconds if math.isfinite(run.seconds) else None,
        "repeats": len(m.times_s),
        "low": min(m.times_s, default=None),
        "high": max(m.times_s, default=None),
        "conversion_seconds": m.conversion_s,
        "source": m.source,
        "campaign": run.campaign,
        "when": m.when,
        "error": m.error[:1000],
    }


# -- pages ---------------------------------------------------------------------------------------

#: Largest numbers of items on one page.
_MOST_FOUND = 60
_MOST_ANSWERS = 12
_MOST_WINNERS = 10
_MOST_VALUES = 40
_PAGE = 100
#: Names compared by similarity.
_MOST_SIMILAR = 5000
PageQuery = Mapping[str, str]
T = TypeVar("T")


def page_of(query: PageQuery, rows: Sequence[T]) -> tuple[int, int, Sequence[T]]:
    """The number of the requested page, from 1, and of the last one, and the page's rows. Raises:
    UsageError."""
    text = query.get("page", "1")
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise UsageError(f"{text[:20]!r} is not the number of a page")
    last = max(1, math.ceil(len(rows) / _PAGE))
    page = min(int(text), last)
    return page, last, rows[(page - 1) * _PAGE : page * _PAGE]


def home(state: AppState, query: PageQuery) -> dict[str, Any]:
    store = state.db.store
    return {
        "database": state.name,
        "writable": state.writable,
        "generation": store.generation,
        "bytes": store.size_bytes(),
        "counts": store.counts(),
        "scopes": [scope_facts(state, scope) for scope in state.scopes()],
        "platforms": [
            {
                "id": p.id,
                "title": p.what,
                "version": p.version,
                "simulated": p.simulated,
                "ops": p.ops,
            }
            for p in map(store.platform, store.platforms())
            if p is not None
        ],
        "answered": len(state.heads()),
        "answers": [answer_line(a) for a in state.heads()[:_MOST_ANSWERS]],
        "max_upload": state.max_upload,
    }


#: Figures of an answer index that pages show.
_FIGURES = (
    *("configs", "measured", "noise", "featurizer"),
    *("of_optimum_held_out", "static_best_held_out"),
)


def scope_facts(state: AppState, scope: Scope) -> dict[str, Any]:
    """Coverage of an operation on a platform, with its cross-validated quality."""
    members = state.members()
    ids = {i for name in scope.instances for i in members.get((name, scope.op), ())}
    coverage = Coverage(state.db.index, scope, ids)
    figures = coverage.figures
    return coverage.head | {key: figures[key] for key in _FIGURES if key in figures}


def answer_line(a: AnswerHead) -> dict[str, Any]:
    first = a.candidates[0] if a.candidates else None
    line = msgspec.to_builtins(a)
    del line["candidates"]
    line["answer"] = {} if first is None else first.config
    line["expected_gain"] = None if first is None else first.expected_gain
    return dict(line)


def pattern_line(info: WorkloadInfo) -> dict[str, Any]:
    """A pattern in a list; kind and sizes as well if it is no matrix."""
    names = ("id", "name", "group", "m", "n", "nnz", "stub")
    line = {name: getattr(info, name) for name in names}
    return line if info.workload.sparse else {**line, "kind": info.kind, "sizes": info.named}


def search(state: AppState, query: PageQuery) -> dict[str, Any]:
    """Items with the text in name, group or id; patterns ranked by match."""
    text = query.get("q", "")[:200].strip()
    low = text.lower()
    infos = list(state.catalog().values())  # ordered by name, which sorting by rank keeps
    hits = [(rank, i) for i in infos if (rank := _rank(low, i)) < _NO_HIT]
    hits.sort(key=lambda hit: hit[0])
    similar: list[WorkloadInfo] = []
    if low and not hits:
        names = [i.name.lower() for i in infos[:_MOST_SIMILAR]]
        close = set(difflib.get_close_matches(low, names, 8, 0.65))
        similar = [i for i in infos if i.name.lower() in close][:8]
    answers = [a for a in state.heads() if a.id == low]
    return {
        "q": text,
        "found": len(hits),
        "patterns": [pattern_line(i) for _, i in hits[:_MOST_FOUND]],
        "similar": [pattern_line(i) for i in similar],
        "platforms": [p for p in state.db.store.platforms() if low and low in p.lower()],
        "answers": [answer_line(a) for a in answers],
    }


_NO_HIT = 9


def _rank(low: str, info: WorkloadInfo) -> int:
    name = info.name.lower()
    if low in (name, info.id):
        return 0
    if name.startswith(low):
        return 1
    if low in name:
        return 2
    if low in info.group.lower():
        return 3
    return 4 if len(low) >= 4 and info.id.startswith(low) else _NO_HIT


def pattern(state: AppState, query: PageQuery) -> dict[str, Any]:
    """Facts of a pattern: sizes, code of a nest, measurements, answers and neighbours."""
    info = state.pattern(query["id"])
    measured = []
    for scope in state.scopes():
        for name in scope.instances:
            if info.id in state.members().get((name, scope.op), ()):
                measured.append(side(state, info, name, scope.op))
    return {
        **pattern_line(info),
        "thumbnail": bool(info.thumbnail),
        "features": dict(list(info.features.items())[:_MOST_VALUES]),
        "measured": measured,
        "answers": [answer_line(a) for a in state.heads() if a.pattern_id == info.id][
            :_MOST_ANSWERS
        ],
        "neighbours": _neighbours(state, info),
        **info.workload.page(info, state.db.store),
    }


def _neighbours(state: AppState, info: WorkloadInfo) -> list[dict[str, Any]]:
    """Nearest measured patterns, for each operation and platform that ran the pattern."""
    by_scope = []
    for scope in state.scopes():
        partition = state.db.index.partition(scope.op, scope.platform)
        if partition is not None:
            partition = state.db.index.around_stored(partition, info.id, scope.platform)
        if partition is None or info.id not in partition.ids:
            continue
        vector = partition.vectors[partition.ids.index(info.id)]
        ids, distances = partition.nearest(vector, exclude=[info.id])
        rows = [
            {**pattern_line(state.info(i)), "distance": float(d)}
            for i, d in zip(ids, distances, strict=True)
        ]
        where = {"op": str(scope.op), "platform": scope.name}
        by_scope.append({**where, "featurizer": partition.featurizer, "patterns": rows})
    return by_scope


#: Fields of a platform that its page shows as they are.
_OF_PLATFORM = (
    *("id", "name", "instance", "title", "version", "simulated", "portable", "runner"),
    *("cost_per_sample", "digest"),
)


def platform(state: AppState, query: PageQuery) -> dict[str, Any]:
    """Facts of a platform: operations, measurements and winning configurations."""
    described_platform = state.platform(query["id"])
    scopes = [s for s in state.scopes() if described_platform.id in (*s.instances, s.name)]
    return {
        **{name: getattr(described_platform, name) for name in _OF_PLATFORM},
        "traits": dict(described_platform.traits),
        "environment": dict(described_platform.environment),
        "machine": described(described_platform.environment),
        "kernels": state.cache.get(
            ("kernels", described_platform.digest),
            lambda: [_kernel(described_platform, kernel) for kernel in described_platform.ops],
        ),
        "measured": [{**scope_facts(state, s), **_winners(state, s)} for s in scopes],
    }


def _winners(state: AppState, scope: Scope) -> dict[str, Any]:
    """Number of wins of each configuration, and its median gain over the default there."""
    partition = state.db.index.partition(scope.op, scope.platform)
    if partition is None:
        return {"winners": [], "won": 0, "races": 0, "extent": ""}
    evidence = partition.evidence
    wins: Counter[int] = Counter()
    gains: dict[int, list[float]] = {}
    for row, of in enumerate(evidence.rows):
        column = None if of.op else evidence.winner(row)
        if column is None:
            continue
        wins[column] += 1
        if np.isfinite(evidence.default_s[row]):
            best = evidence.row(row).seconds.min()
            gains.setdefault(column, []).append(float(evidence.default_s[row] / best))
    top = [
        {
            "config": dict(evidence.configs[c]),
            "wins": n,
            "median_gain": float(np.median(gains[c])) if c in gains else None,
        }
        for c, n in wins.most_common(_MOST_WINNERS)
    ]
    extent = evidence.extent
    return {
        "winners": top,
        "won": extent.patterns,
        "machines": extent.machines,
        "races": sum(wins.values()),
        "extent": extent.words(scope.op.kind),
        "different": len(wins),
    }


def _kernel(described_platform: Platform, kernel: str) -> dict[str, Any]:
    part = described_platform.kernel(kernel)
    return {
        "kernel": kernel,
        "configurations": None if part.space.shaped_by else part.space.size(),
        "shaped_by": list(part.space.shaped_by),
        "parameters": [
            {
                "name": param.name,
                "type": param.kind,
                "values": [str(value) for value in param.values[:_MOST_VALUES]],
                "default": str(part.default[param.name]) if param.name in part.default else None,
                "when": param.when,
            }
            for param in part.space.params
        ],
        "constraints": list(part.space.constraints),
        "default": dict(part.default),
    }


def op_of(text: str) -> Op:
    """An operation from an address. Raises: UsageError."""
    return Op.parse(text[:40])


def scope_for(state: AppState, platform_text: str, op_text: str) -> Scope:
    """The scope of an address; missing parts are chosen by the number of matrices.

    Raises: NothingFound, UsageError.
    """
    scopes = state.scopes()
    if not scopes:
        raise NothingFound("no runs here yet", hint="`embeddb ingest` reads logs")
    if op_text:
        scopes = [s for s in scopes if s.op == op_of(op_text)]
    if platform_text:
        if not any(platform_text in (s.name, *s.instances) for s in scopes):
            platform_text = state.platform(platform_text).id  # a bare name, as `/ask` reads it
        scopes = [s for s in scopes if platform_text in (s.name, *s.instances)]
    chosen = state.largest(scopes)
    if chosen is None:
        raise NothingFound(
            f"no runs of {op_text[:40] or 'anything'} on {platform_text[:80] or 'any platform'}",
            hint="the first page lists what there is",
        )
    return chosen
