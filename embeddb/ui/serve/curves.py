"""Runs of one matrix: its curve on a platform, its summary, and run by run."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.platforms.of_subject import default_of
from embeddb.store.usual_state import usual_at
from embeddb.ui.serve.app_state import AppState

#: Points of a drawn curve.
_MOST_POINTS = 300


def curve(
    state: AppState, info: WorkloadInfo, platform: str, op: Op
) -> dict[Config, TimingSummary]:
    """Every configuration that ran on a matrix on one platform instance."""

    def read() -> dict[Config, TimingSummary]:
        store = state.db.store
        return summarise_runs(store.runs(platform, op, info.id), usual_at(store, platform))

    return state.cache.get(("curve", info.id, platform, op), read)


def side(state: AppState, info: WorkloadInfo, platform: str, op: Op) -> dict[str, Any]:
    """Summary of one matrix on one platform. Gains are factors over its own default.

    Raises: NothingFound if the platform is unknown.
    """
    stored = state.db.store.platform(platform)
    if stored is None:
        raise NothingFound(f"no platform {platform[:80]!r} here")
    timings = curve(state, info, platform, op)
    ok = {config: c for config, c in timings.items() if math.isfinite(c.seconds)}
    best = min(ok, key=lambda config: (ok[config].seconds, config.json), default=None)
    default = default_of(stored, op, state.db.store.workload_or_info(info))
    base = ok[default].seconds if default in ok else None
    quickest = None if best is None else ok[best].seconds
    return {
        "platform": platform,
        "op": str(op),
        "simulated": stored.simulated,
        "time_unit": stored.time_unit,
        "configs": len(timings),
        "runs": sum(c.runs for c in timings.values()),
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
