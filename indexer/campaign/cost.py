"""What a sample costs: seconds of wall time, as runs have shown."""

from __future__ import annotations

import statistics
from itertools import pairwise

from embeddb.core.records import Measurement
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from indexer.campaign.folder import Campaign
from indexer.runners.base import HARDWARE_S

__all__ = ["seconds_seen", "seconds_spent", "surprising_cost"]

#: In the context of a run of a command: seconds that it took, with starting the program.
_WALL_S = "wall_s"
#: Patterns and runs of each that are looked at, and results of a campaign.
_PATTERNS, _RUNS, _TASKS = 20, 50, 200
#: A pause between two results that is longer was no sample.
_LONGEST_S = 24 * 3600.0
#: Seconds of a sample on a CPU, of which `cost_per_sample` is a multiple: compiling and repeats.
_CPU_SAMPLE_S = 0.5
#: `cost_per_sample` is wrong if it is off by more.
_OFF = 10.0


def seconds_seen(store: Store, platform: Platform) -> float | None:
    """Median seconds of a sample among stored runs of a platform and its instances; None if none
    says how long it took."""
    found = [
        seconds
        for partition in store.partitions()
        if partition.platform.partition("@")[0] == platform.name
        for run in store.sample(partition, patterns=_PATTERNS, runs=_RUNS)
        if (seconds := _taken(run.measurement)) is not None
    ]
    return statistics.median(found) if found else None


def seconds_spent(campaign: Campaign) -> float | None:
    """Median seconds of a sample of a campaign, as its runs say or by the moments at which they
    ended; None before there are any."""
    found: list[float] = []
    for task in campaign.tasks():
        lines = list(campaign.lines(task).values())
        told = [seconds for m in lines if (seconds := _taken(m)) is not None]
        found += told or _between(sorted(m.when for m in lines if m.when > 0))
        if len(found) >= _TASKS * _RUNS:
            break
    return statistics.median(found) if found else None


def _taken(measurement: Measurement) -> float | None:
    for name in (_WALL_S, HARDWARE_S):
        seconds = (measurement.context or {}).get(name)
        if isinstance(seconds, (int, float)) and seconds > 0:
            return float(seconds)
    return None


def _between(moments: list[float]) -> list[float]:
    gaps = (later - earlier for earlier, later in pairwise(moments))
    return [gap for gap in gaps if 0 < gap < _LONGEST_S]


def surprising_cost(platform: Platform, seconds: float | None) -> str:
    """One line where the file's `cost_per_sample` is far from what samples take; else empty."""
    if seconds is None:
        return ""
    seen = seconds / _CPU_SAMPLE_S
    declared = platform.cost_per_sample
    if seen <= 0 or declared / _OFF <= seen <= declared * _OFF:
        return ""
    return (
        f"cost_per_sample is {declared:g} in the file of {platform.name}; samples take "
        f"{seconds:.2g} s, about {seen:.2g} times one of a CPU"
    )
