"""State of a machine at the time of a run: hosts are shared, and load varies over hours.

A runner may report its machine's state as numbers by name, the short form of its facts. One sample
before and one after are kept with the runs between them, in the `context` of each measurement: the
geometric mean of both as `state_NAME`, and their distance as `state_drift`. The distance is the
mean |log ratio| of the numbers that two states share, so it means the same for bandwidths and for
latencies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

State = Mapping[str, float]

#: Distance beyond which two states count as different: a quarter more or less in each number.
APART = 0.25
_PREFIX, _DRIFT = "state_", "state_drift"


def state_now(runner: Any, *, threads: int = 0) -> dict[str, float]:
    """State that a runner reports; empty where it reports none."""
    state = runner.state(threads=threads) if hasattr(runner, "state") else {}
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


def has_state(context: Mapping[str, Any]) -> bool:
    """Return true if a run's context contains the machine's state."""
    return _DRIFT in context or any(k.startswith(_PREFIX) for k in context)


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
