"""Summary of all runs of one configuration on one workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from embeddb.core.config import Config, Op
from embeddb.core.plugins import result_of
from embeddb.core.records import WRONG, Run


class TimingSummary(NamedTuple):
    """Summary of all runs of one configuration on one workload.

    `seconds` is the median of the runs' times (`Run.seconds`), or their minimum
    (`Operation.minimum`); infinite if none was ok. `spread` is the relative error of `seconds` by
    the differences of the times (0 with one run): half the range of two, the standard error of the
    median of more, half the distance of the two least where the minimum counts. `conversion_s` is
    the median conversion cost. Excluded are ok runs without a time above zero, runs in an unusual
    state of the machine where there are others, and runs of a fused kernel on random arrays where
    there are some on those of its program. `runs` counts the runs with a time, `failed` those that
    failed. One wrong result makes the whole summary `wrong`, without a time.
    """

    seconds: float
    spread: float
    conversion_s: float
    runs: int
    status: str
    failed: int = 0

    @property
    def failing(self) -> float:
        """Share of the runs that failed; 0 without any."""
        return self.failed / max(self.runs + self.failed, 1)


def summarise_runs(
    runs: Iterable[Run], normal: Callable[[], State] | None = None
) -> dict[Config, TimingSummary]:
    """Summarise runs of one workload, op and platform by configuration. `normal` returns the usual
    state of the machine (`embeddb.store.Store.usual_at`); called only where runs have a
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
    timed = [(s, run.measurement) for run in runs if 0 < (s := run.seconds) < math.inf]
    failed = [run.measurement for run in runs if not run.measurement.ok]
    minimum, count = runs[0].op.traits.minimum, len(timed)
    if minimum and timed:
        in_program = any(m.of_program for _, m in timed)
        timed = [(s, m) for s, m in timed if m.of_program == in_program]
        failed = [m for m in failed if m.of_program == in_program]
    statuses = [m.status for m in failed]
    if not timed or WRONG in statuses:
        status = WRONG if WRONG in statuses else statuses[-1] if statuses else "invalid"
        return TimingSummary(math.inf, 0.0, 0.0, count, status, len(failed))
    several = len(timed) > 1 and not minimum
    if normal and several and any(k.startswith(_PREFIX) for _, m in timed for k in m.context):
        usual = normal()
        timed = [(s, m) for s, m in timed if not is_outlier(m.context, usual)] or timed
    times = sorted(s for s, _ in timed)
    seconds = joined_seconds(runs[0].op, times)
    conversions = [m.conversion_s for _, m in timed if m.conversion_s is not None]
    conversion_s = statistics.median(conversions) if conversions else 0.0
    error = _error(times, minimum=minimum)
    return TimingSummary(seconds, error / seconds, conversion_s, count, "ok", len(failed))


#: Standard deviation of a normal distribution over the median absolute deviation of so many of its
#: values (the last: of many), and the standard error of the median over that of the mean. Source of
#: the former: Croux and Rousseeuw, "Time-efficient algorithms for two highly robust estimators of
#: scale" (COMPSTAT 1992), for 3 to 9 values.
_OVER_MAD = {3: 2.216, 4: 2.021, 5: 1.788, 6: 1.779, 7: 1.690, 8: 1.674, 9: 1.641}
_OVER_MAD_OF_MANY, _MEDIAN_OVER_MEAN = 1.4826, 1.2533
#: Least error, relative to the range, of times that differ: they are seen to be several.
_LEAST_ERROR = 1e-6


def _error(times: Sequence[float], *, minimum: bool) -> float:
    """Error in seconds of the combined time of ascending `times`, as `TimingSummary.spread`."""
    span, count = times[-1] - times[0], len(times)
    if count < 3:
        return span / 2
    if minimum:
        error = (times[1] - times[0]) / 2
    else:
        middle = statistics.median(times)
        deviation = statistics.median(abs(one - middle) for one in times)
        scale = _OVER_MAD.get(count, _OVER_MAD_OF_MANY * count / (count - 0.8))
        error = _MEDIAN_OVER_MEAN * scale * deviation / math.sqrt(count)
    return max(min(error, span / 2), _LEAST_ERROR * span)


# State of a machine at the time of a run: hosts are shared, and load varies over hours.
#
# A runner may report its machine's state as numbers by name, the short form of its facts. One
# sample before and one after are kept with the runs between them, in the `context` of each
# measurement: the geometric mean of both as `state_NAME`, and their distance as `state_drift`. The
# distance is the mean |log ratio| of the numbers that two states share, so it means the same for
# bandwidths and for latencies.

State = Mapping[str, float]

#: Distance beyond which two states count as different: a quarter more or less in each number.
APART = 0.25
_PREFIX, _DRIFT = "state_", "state_drift"


def state_now(runner: Any, *, threads: int = 0) -> dict[str, float]:
    """State that a runner reports; empty where it reports none."""
    if not hasattr(runner, "state"):
        return {}
    state = result_of(runner, "state", Mapping, threads=threads)
    return {str(k): float(v) for k, v in state.items() if _positive(v)}


def distance(one: State, other: State) -> float | None:
    """Mean |log ratio| of the numbers that both states have; None without any."""
    shared = [n for n in one if _positive(one[n]) and _positive(other.get(n))]
    if not shared:
        return None
    return sum(abs(math.log(one[n] / other[n])) for n in shared) / len(shared)


def between(before: State, after: State) -> dict[str, float]:
    """Context entries of a run from the states before and after it; empty without any. With only
    one of them there is no drift."""
    entries = {}
    for name in {**before, **after}:
        values = [float(s[name]) for s in (before, after) if _positive(s.get(name))]
        if values:
            entries[_PREFIX + name] = float(f"{statistics.geometric_mean(values):.4g}")
    drift = distance(before, after)
    return entries if drift is None else {**entries, _DRIFT: round(drift, 4)}


def state_of(context: Mapping[str, Any]) -> dict[str, float]:
    """State in a run's context, without the drift; empty where it has none."""
    figures = ((k, v) for k, v in context.items() if k.startswith(_PREFIX) and k != _DRIFT)
    return {k.removeprefix(_PREFIX): float(v) for k, v in figures if _positive(v)}


def median_state(states: Iterable[State]) -> dict[str, float]:
    """Median of each number over several states."""
    samples: dict[str, list[float]] = {}
    for state in states:
        for name, value in state.items():
            if _positive(value):
                samples.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in samples.items()}


def is_outlier(context: Mapping[str, Any], normal: State) -> bool:
    """Return true if a run was made in another state than the usual one, or while the state
    changed. False where the context has no state."""
    drift = context.get(_DRIFT)
    if isinstance(drift, (int, float)) and drift > APART:
        return True
    return (distance(state_of(context), normal) or 0.0) > APART


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf
