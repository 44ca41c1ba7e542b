"""The state an instance is usually in, by its stored runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from embeddb.core.machine_state import State, median_state, state_of
from embeddb.store.store import Store

#: The usual state is told from so many patterns of each operation, and so many runs of each.
_PATTERNS, _RUNS = 64, 8


def usual_at(store: Store, platform_id: str) -> Callable[[], State]:
    """The usual state of an instance over its stored runs; looked up when it is first asked for,
    which takes milliseconds, and then kept. Empty where no run tells its state."""

    @cache
    def found() -> State:
        drawn = (
            run.measurement.context
            for partition in store.partitions()
            if partition.platform == platform_id
            for run in store.sample(partition, patterns=_PATTERNS, runs=_RUNS)
        )
        return median_state(state for context in drawn if (state := state_of(context)))

    return found
