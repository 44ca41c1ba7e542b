"""Summary of all runs of one configuration on one workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import State, has_state, is_outlier
from embeddb.core.records import Run


class TimingSummary(NamedTuple):
    """Summary of all runs of one configuration on one workload.

    `seconds` is the median of the runs' times (`Run.seconds`), or their minimum
    (`Operation.minimum`); infinite if none was ok. `spread` is half their relative range (0 with
    one run), `conversion_s` the median conversion cost. Excluded are ok runs without a time above
    zero, runs in an unusual state of the machine where there are others, and runs of a fused kernel
    on random arrays where there are some on those of its program.
    """

    seconds: float
    spread: float
    conversion_s: float
    runs: int
    status: str


def summarise_runs(
    runs: Iterable[Run], normal: Callable[[], State] | None = None
) -> dict[Config, TimingSummary]:
    """Summarise runs of one workload, op and platform by configuration. `normal` returns the usual
    state of the machine (`embeddb.store.usual_state.usual_at`); called only where runs have a
    state."""
    by_config: dict[Config, list[Run]] = {}
    for run in runs:
        by_config.setdefault(run.config, []).append(run)
    return {config: _joined(group, normal) for config, group in by_config.items()}


def joined_seconds(op: Op, times: Sequence[float]) -> float:
    """Combine the finite times of several runs, in seconds: their median, or their minimum
    (`Operation.minimum`)."""
    return min(times) if op.traits.minimum else statistics.median(times)


def _joined(runs: Sequence[Run], normal: Callable[[], State] | None) -> TimingSummary:
    # Fast path: this is called for every configuration of a table.
    if len(runs) == 1 and 0 < (seconds := (only := runs[0]).seconds) < math.inf:
        return TimingSummary(seconds, 0.0, only.measurement.conversion_s or 0.0, 1, "ok")
    samples = [(r.seconds, r.measurement.conversion_s) for r in runs]
    timed = [(s, c) for s, c in samples if 0 < s < math.inf]
    if not timed:
        failures = [r.measurement.status for r in runs if not r.measurement.ok]
        return TimingSummary(math.inf, 0.0, 0.0, len(runs), failures[-1] if failures else "invalid")
    if len(timed) > 1:
        if runs[0].op.traits.minimum:
            timed = _of_program(runs, samples) or timed
        elif normal is not None:
            timed = _in_state(runs, samples, normal) or timed
    times = sorted(s for s, _ in timed)
    seconds = joined_seconds(runs[0].op, times)
    conversions = [c for _, c in timed if c is not None]
    spread = (times[-1] - times[0]) / (2 * seconds)
    return TimingSummary(
        seconds, spread, statistics.median(conversions) if conversions else 0.0, len(runs), "ok"
    )


def _of_program(
    runs: Sequence[Run], samples: Sequence[tuple[float, float | None]]
) -> list[tuple[float, float | None]]:
    """Samples of the runs that were timed on the arrays of their program."""
    pairs = zip(runs, samples, strict=True)
    return [m for run, m in pairs if run.measurement.of_program and 0 < m[0] < math.inf]


def _in_state(
    runs: Sequence[Run],
    samples: Sequence[tuple[float, float | None]],
    normal: Callable[[], State],
) -> list[tuple[float, float | None]]:
    """Samples of the runs made in the usual state; empty if there are none, or no run has a
    state."""
    contexts = [run.measurement.context for run in runs]
    if not any(has_state(context) for context in contexts):
        return []
    typical = normal()
    pairs = zip(contexts, samples, strict=True)
    return [m for context, m in pairs if 0 < m[0] < math.inf and not is_outlier(context, typical)]
