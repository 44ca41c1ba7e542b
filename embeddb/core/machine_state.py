"""The state a machine was in when something ran: hosts are shared, and hours differ.

A runner may tell its machine's state as figures by name, the short form of its facts. One taken
before and one after are kept with the runs between them, in the `context` of each measurement: the
geometric mean of both as `state_NAME`, and how far they are apart as `state_drift`. *Apart* is the
mean |log ratio| of the figures that two states share, so that it means the same for bandwidths and
for waiting times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

State = Mapping[str, float]

#: Two states further apart are not the same machine any more: a fourth more or less in each figure.
APART = 0.25
_PREFIX, _DRIFT = "state_", "state_drift"


def state_now(runner: Any, *, threads: int = 0) -> dict[str, float]:
    """The state that a runner tells, empty where it tells none."""
    found = runner.state(threads=threads) if hasattr(runner, "state") else {}
    return {str(k): float(v) for k, v in found.items() if _positive(v)}


def apart(one: State, other: State) -> float | None:
    """Mean |log ratio| of the figures that both have; None without any."""
    shared = [n for n in one if _positive(one[n]) and _positive(other.get(n))]
    if not shared:
        return None
    return sum(abs(math.log(one[n] / other[n])) for n in shared) / len(shared)


def between(before: State, after: State) -> dict[str, float]:
    """What the context of a run says that was made between two states; empty without any. Of one
    alone there is no drift."""
    found = {}
    for name in {**before, **after}:
        held = [float(s[name]) for s in (before, after) if _positive(s.get(name))]
        if held:
            found[_PREFIX + name] = float(f"{statistics.geometric_mean(held):.4g}")
    drift = apart(before, after)
    return found if drift is None else {**found, _DRIFT: round(drift, 4)}


def state_of(context: Mapping[str, Any]) -> dict[str, float]:
    """The state that a run's context tells, without the drift; empty where it tells none."""
    figures = ((k, v) for k, v in context.items() if k.startswith(_PREFIX) and k != _DRIFT)
    return {k.removeprefix(_PREFIX): float(v) for k, v in figures if _positive(v)}


def tells_state(context: Mapping[str, Any]) -> bool:
    """Whether a run's context tells the state it was made in."""
    return _DRIFT in context or any(k.startswith(_PREFIX) for k in context)


def usual(states: Iterable[State]) -> dict[str, float]:
    """The median of each figure."""
    held: dict[str, list[float]] = {}
    for state in states:
        for name, value in state.items():
            if _positive(value):
                held.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in held.items()}


def astray(context: Mapping[str, Any], normal: State) -> bool:
    """Whether a run was made in another state than the usual one, or while it changed. False where
    nothing is known."""
    drift = context.get(_DRIFT)
    if isinstance(drift, (int, float)) and drift > APART:
        return True
    return (apart(state_of(context), normal) or 0.0) > APART


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf
