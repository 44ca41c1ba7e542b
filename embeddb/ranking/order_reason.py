"""Reasons why a candidate is ranked out of the order of the expected gains.

One is that a search timed many configurations once each: the apparent best is biased (winner's
curse), so the runs that measured it again decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from embeddb.core.config import Config
from embeddb.core.records import IN_A_ROW, REMEASURED, Run
from embeddb.core.timing import State, TimingSummary, summarise_runs
from embeddb.ranking.recommendation import LIKELY, Candidate, Recommendation

#: Reasons why a measured configuration ranks behind the others (`Candidate.order_reason`).
NOT_REMEASURED, SLOWER_IN_A_ROW = "search run", "slower in a row"
FAILURE_RISK = "failure risk"
#: The reasons, as `Candidate.order_reason` has them, and what each means.
REASONS = {
    NOT_REMEASURED: "timed once, in a search: the fastest of many such is mostly the luckiest, so "
    "it is ranked behind what was measured again",
    SLOWER_IN_A_ROW: "not faster than the default when its kernels are called back to back",
    "measured": "ranked by its measured time, not by the expected gain",
    "unmeasured": "expected only, so ranked behind what was measured",
    "failed": "it failed when it was measured",
    FAILURE_RISK: "it fails as often as not, or more often, so it is ranked behind the others",
    "default kept": "no other is expected to gain enough over the default to replace it unmeasured",
    "ran elsewhere": "the first answer must have run on this machine or on two others (anywhere, "
    "where few are known); what ranks behind it did not",
    "tuner": "in the order in which the tuner asks",
    "explores": "ranked by what it adds to the best of the ranks above it, to be tried with them",
}
_INEXACT = (
    "inexact: rounds its operands to a shorter type; --exact (exact=True) leaves such "
    "configurations out"
)
#: Gains that differ by a smaller factor are equal but for rounding.
_EQUAL = 1e-9


def with_order_reasons(answer: Recommendation, beyond: Sequence[Candidate] = ()) -> Recommendation:
    """The answer with an `order_reason` for each candidate that ranks before one with a higher
    expected gain, or for a reason of its own behind one with a lower; empty for all others.
    `beyond` rank behind these without being part of the answer."""
    whole = msgspec.structs.replace(answer, candidates=[*answer.candidates, *beyond])
    candidates = [
        msgspec.structs.replace(one, order_reason=_reason(whole, at))
        for at, one in enumerate(answer.candidates)
    ]
    return msgspec.structs.replace(answer, candidates=candidates)


def rank_notes(candidates: Sequence[Candidate]) -> list[str]:
    """One line for each reason that any candidate has, and one on inexact ones."""
    present = {one.order_reason for one in candidates}
    lines = [f"{reason}: {meaning}" for reason, meaning in REASONS.items() if reason in present]
    return [*lines, _INEXACT] if any(one.inexact for one in candidates) else lines


def rests_on(one: Candidate, default: Mapping[str, Any]) -> str:
    """Evidence of a candidate, its order reason and its precision: `14 neighbours; explores`."""
    origin = "default" if one.config == default else one.origin
    return "; ".join(filter(None, (origin, one.order_reason, "inexact" if one.inexact else "")))


def _reason(answer: Recommendation, at: int) -> str:
    one = answer.candidates[at]
    if reason := _why_behind(answer, at):
        return reason
    after = range(at + 1, len(answer.candidates))
    better = [i for i in after if _gains_more(answer.candidates[i], one)]
    if all(_why_behind(answer, i) for i in better):
        return ""
    if _is_measured(one):
        return "measured"
    if answer.link == "tuner":
        return "tuner"
    if at == 0:
        return "default kept" if one.config == answer.default else "ran elsewhere"
    return "explores"


def _why_behind(answer: Recommendation, at: int) -> str:
    """The candidate's own reason to rank behind one with a lower expected gain; else empty."""
    one = answer.candidates[at]
    before = [c for c in answer.candidates[:at] if _gains_more(one, c)]
    if not before:
        return ""
    if one.order_reason in (NOT_REMEASURED, SLOWER_IN_A_ROW, FAILURE_RISK):
        return one.order_reason
    if _is_measured(one):
        return ""
    if one.status:
        return "failed"
    if any(c.seconds is not None for c in before):
        return "unmeasured"
    return FAILURE_RISK if (one.failure or 0.0) >= LIKELY else ""


def often_failed(timing: TimingSummary) -> str:
    """The reason why a configuration with a time ranks behind the others if it fails often; else
    empty."""
    return FAILURE_RISK if timing.failing >= LIKELY and math.isfinite(timing.seconds) else ""


def _is_measured(one: Candidate) -> bool:
    return one.seconds is not None or one.origin.startswith("measured")


def _gains_more(one: Candidate, other: Candidate) -> bool:
    if one.expected_gain is None or other.expected_gain is None:
        return False
    return one.expected_gain > other.expected_gain * (1.0 + _EQUAL)


def settled(
    runs: Sequence[Run], default: Config, normal: Callable[[], State]
) -> tuple[dict[Config, TimingSummary], dict[Config, str]]:
    """Timings of the runs of one workload (`summarise_runs`), without those of a search where a
    configuration was measured again, and the configurations that rank behind the others with the
    reason: timed in the search alone, or not faster than the default with the kernels called back
    to back. None do where nothing was measured again."""
    final = without_search(runs)
    timings = summarise_runs(final, normal)
    if not any(_of(run, *REMEASURED) for run in final):
        return timings, {}
    searched = timings.keys() - {run.config for run in final if not _of_search(run)}
    behind = dict.fromkeys(searched, NOT_REMEASURED)
    in_a_row = _in_a_row(final)
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
