"""Usual state of a platform instance, from its stored runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from embeddb.core.timing import State, median_state, state_of
from embeddb.store.store import Store

#: Number of workloads of each operation, and of runs of each, that the usual state is based on.
_PATTERNS, _RUNS = 64, 8


def usual_at(store: Store, platform_id: str) -> Callable[[], State]:
    """The usual state of an instance over its stored runs, computed on the first call, in
    milliseconds, and cached. Empty where no run has a state."""

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
