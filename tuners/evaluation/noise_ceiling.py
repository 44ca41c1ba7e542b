"""The noise ceiling: how well one round of measurements foretells another of the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import Run
from embeddb.index.run_matrix import RunMatrix
from embeddb.store import Store
from tuners.evaluation.figures import Outcome, Truth, judge, ordering

#: A matrix was measured twice when at least this share of its configurations was.
_TWICE_SHARE = 0.6


def measured_again(
    store: Store,
    op: Op,
    evidence: RunMatrix,
    rows: NDArray[np.int64],
    default_of: Callable[[int], Config],
) -> dict[int, Outcome]:
    """Choosing by the first run of each configuration, judged by its last, for those of rows
    int64[r] where most configurations ran twice. No ranker can be expected to do better: what is
    left is what the machine does not repeat.

    Repeats within a run share their moment and say less, so they do not count as two.
    """
    found = {}
    for row in rows:
        of_row = evidence.row(row)
        # Only runs whose times differ have a spread: rows without need not be read.
        if (of_row.spread > 0).mean() < _TWICE_SHARE:
            continue
        whose, configs = evidence.rows[row], {evidence.configs[c] for c in of_row.column}
        runs = [r for r in store.runs(whose.platform, op, whose.pattern_id) if r.config in configs]
        first, last = _rounds(runs)
        default = default_of(int(row))
        if default in last and len(last) >= _TWICE_SHARE * len(configs):
            found[int(row)] = _outcome(first, last, last[default], evidence.noise)
    return found


def _rounds(runs: list[Run]) -> tuple[dict[Config, float], dict[Config, float]]:
    """Seconds of the first and of the last ok run of each configuration that has two."""
    by_config: dict[Config, list[float]] = {}
    for run in sorted(runs, key=lambda r: (r.measurement.when, r.id)):
        if 0 < run.seconds < math.inf:
            by_config.setdefault(run.config, []).append(run.seconds)
    twice = {c: times for c, times in by_config.items() if len(times) >= 2}
    return {c: t[0] for c, t in twice.items()}, {c: t[-1] for c, t in twice.items()}


def _outcome(
    first: dict[Config, float], last: dict[Config, float], default_s: float, noise: float
) -> Outcome:
    truth = Truth(last, default_s)
    order = sorted(first, key=lambda c: (first[c], c.json))
    known = sorted(first, key=lambda c: c.json)
    opa, tau = ordering(
        np.array([first[c] for c in known]), np.array([last[c] for c in known]), noise
    )
    return replace(judge(truth, order), opa=opa, tau=tau)
