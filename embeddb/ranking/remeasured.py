"""What a tuning settled about the workload itself: the apparent best of many single timings is
mostly the luckiest, so the runs that measured it again decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from embeddb.core.config import Config
from embeddb.core.machine_state import State
from embeddb.core.records import IN_A_ROW, REMEASURED, Run
from embeddb.core.timing import Timing, timings_of

__all__ = ["NOT_REMEASURED", "SLOWER_IN_A_ROW", "settled", "without_search"]

#: Why a measured configuration ranks behind the others (`Candidate.order_reason`).
NOT_REMEASURED, SLOWER_IN_A_ROW = "search run", "slower in a row"


def settled(
    runs: Sequence[Run], default: Config, normal: Callable[[], State]
) -> tuple[dict[Config, Timing], dict[Config, str]]:
    """Timings of the runs of one workload (`timings_of`), without the search's own where a
    configuration was measured again, and why configurations rank behind the others: timed in the
    search alone, or not faster than the default with the kernels called back to back. None do
    where nothing was measured again."""
    kept = without_search(runs)
    timings = timings_of(kept, normal)
    if not any(_of(run, *REMEASURED) for run in kept):
        return timings, {}
    searched = timings.keys() - {run.config for run in kept if not _of_search(run)}
    behind = dict.fromkeys(searched, NOT_REMEASURED)
    in_a_row = _in_a_row(kept)
    base = in_a_row.get(default, math.inf)
    behind |= {c: SLOWER_IN_A_ROW for c, seconds in in_a_row.items() if seconds >= base}
    behind.pop(default, None)
    return timings, behind


def without_search(runs: Sequence[Run]) -> list[Run]:
    """The runs of one workload without those of a search whose configuration was measured again."""
    again = {run.config for run in runs if _of(run, *REMEASURED)}
    return [run for run in runs if run.config not in again or not _of_search(run)]


def _of(run: Run, *ends: str) -> bool:
    return run.campaign.startswith("tune:") and run.campaign.endswith(ends)


def _of_search(run: Run) -> bool:
    return _of(run, "") and not _of(run, *REMEASURED)


def _in_a_row(runs: Iterable[Run]) -> dict[Config, float]:
    """Median seconds by configuration of runs with all kernels called back to back."""
    seconds: dict[Config, list[float]] = {}
    for run in runs:
        took = run.measurement.context.get(IN_A_ROW)
        if run.measurement.ok and isinstance(took, float):
            seconds.setdefault(run.config, []).append(took)
    return {config: statistics.median(each) for config, each in seconds.items()}
