"""What one configuration did on one pattern, over all its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import State, astray, tells_state
from embeddb.core.records import Run


class TimingSummary(NamedTuple):
    """What one configuration did on one pattern, over all its runs.

    `seconds` is the median over runs of what each says (`Run.seconds`: its median), of tiles and
    fused kernels the least (infinite if none was ok), `spread` half the relative range of what they
    say (0 with one run), `conversion_s` the median preparation cost.
    A run that is ok but tells no time above zero does not count, nor does one made in another state
    of the machine than the usual one where there are others, nor one of a fused kernel with drawn
    arrays where there are some with what its program hands it.
    """

    seconds: float
    spread: float
    conversion_s: float
    runs: int
    status: str


def summarise_runs(
    runs: Iterable[Run], normal: Callable[[], State] | None = None
) -> dict[Config, TimingSummary]:
    """Runs of one pattern, op and platform, joined per configuration. `normal` gives the usual
    state of the machine (`embeddb.store.usual_state.usual_at`); called where runs tell theirs."""
    by_config: dict[Config, list[Run]] = {}
    for run in runs:
        by_config.setdefault(run.config, []).append(run)
    return {config: _joined(held, normal) for config, held in by_config.items()}


def joined_seconds(op: Op, told: Sequence[float]) -> float:
    """The median of the seconds of several runs, all finite, or the least (`Operation.minimum`)."""
    return min(told) if op.traits.minimum else statistics.median(told)


def _joined(runs: Sequence[Run], normal: Callable[[], State] | None) -> TimingSummary:
    # Medians are worth computing once: this is called for every configuration of a partition.
    if len(runs) == 1 and 0 < (seconds := (only := runs[0]).seconds) < math.inf:
        return TimingSummary(seconds, 0.0, only.measurement.conversion_s or 0.0, 1, "ok")
    told = [(r.seconds, r.measurement.conversion_s) for r in runs]
    timed = [(s, c) for s, c in told if 0 < s < math.inf]
    if not timed:
        failures = [r.measurement.status for r in runs if not r.measurement.ok]
        return TimingSummary(math.inf, 0.0, 0.0, len(runs), failures[-1] if failures else "invalid")
    if len(timed) > 1:
        if runs[0].op.traits.minimum:
            timed = _of_program(runs, told) or timed
        elif normal is not None:
            timed = _in_state(runs, told, normal) or timed
    times = sorted(s for s, _ in timed)
    seconds = joined_seconds(runs[0].op, times)
    known = [c for _, c in timed if c is not None]
    spread = (times[-1] - times[0]) / (2 * seconds)
    return TimingSummary(
        seconds, spread, statistics.median(known) if known else 0.0, len(runs), "ok"
    )


def _of_program(
    runs: Sequence[Run], told: Sequence[tuple[float, float | None]]
) -> list[tuple[float, float | None]]:
    """Those that were timed with what their program hands them."""
    held = zip(runs, told, strict=True)
    return [m for run, m in held if run.measurement.of_program and 0 < m[0] < math.inf]


def _in_state(
    runs: Sequence[Run],
    told: Sequence[tuple[float, float | None]],
    normal: Callable[[], State],
) -> list[tuple[float, float | None]]:
    """Those made in the usual state; empty if none was, or none tells its state."""
    contexts = [run.measurement.context for run in runs]
    if not any(tells_state(context) for context in contexts):
        return []
    usual = normal()
    held = zip(contexts, told, strict=True)
    return [m for context, m in held if 0 < m[0] < math.inf and not astray(context, usual)]
