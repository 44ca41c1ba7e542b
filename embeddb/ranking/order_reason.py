"""Why a candidate is ranked out of the order of the expected gains.

Ranks follow the expected gain but for these cases, and a reader who sees 0.90x above 2.23x is told
which of them it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from embeddb.ranking.recommendation import LIKELY, Candidate, Recommendation
from embeddb.ranking.remeasured import NOT_REMEASURED, SLOWER_IN_A_ROW

__all__ = ["REASONS", "order_notes", "rests_on", "with_order_reasons"]

#: The reasons, as `Candidate.order_reason` has them, and what each means.
REASONS = {
    NOT_REMEASURED: "timed once, in a search: the fastest of many such is mostly the luckiest, so "
    "it is ranked behind what was measured again",
    SLOWER_IN_A_ROW: "not faster than the default when its kernels are called back to back",
    "measured": "ranked by its measured time, not by the expected gain",
    "unmeasured": "expected only, so ranked behind what was measured",
    "failed": "it failed when it was measured",
    "failure risk": "it fails more often than not, so it is ranked behind the others",
    "default kept": "no other is expected to gain enough over the default to replace it unmeasured",
    "ran elsewhere": "the first answer must have run somewhere; what ranks behind it never did",
    "tuner": "in the order in which the tuner asks",
    "explores": "ranked by what it adds to the best of the ranks above it, to be tried with them",
}
#: Gains that differ by a smaller factor are equal but for rounding.
_EQUAL = 1e-9


def with_order_reasons(made: Recommendation) -> Recommendation:
    """The answer with an `order_reason` for each candidate that stands before one with a higher
    expected gain, or behind one with a lower one for a cause of its own; empty for all others."""
    candidates = [
        msgspec.structs.replace(one, order_reason=_reason(made, at))
        for at, one in enumerate(made.candidates)
    ]
    return msgspec.structs.replace(made, candidates=candidates)


def order_notes(candidates: Sequence[Candidate]) -> list[str]:
    """One line for each reason that any candidate has."""
    present = {one.order_reason for one in candidates}
    return [f"{reason}: {meaning}" for reason, meaning in REASONS.items() if reason in present]


def rests_on(one: Candidate, default: Mapping[str, Any]) -> str:
    """What a candidate rests on, and its order reason: `14 neighbours; explores`."""
    origin = "default" if one.config == default else one.origin
    return f"{origin}; {one.order_reason}" if one.order_reason else origin


def _reason(made: Recommendation, at: int) -> str:
    one = made.candidates[at]
    if reason := _why_behind(made, at):
        return reason
    after = range(at + 1, len(made.candidates))
    better = [i for i in after if _gains_more(made.candidates[i], one)]
    if all(_why_behind(made, i) for i in better):
        return ""
    if _is_measured(one):
        return "measured"
    if made.link == "tuner":
        return "tuner"
    if at == 0:
        return "default kept" if one.config == made.default else "ran elsewhere"
    return "explores"


def _why_behind(made: Recommendation, at: int) -> str:
    """Why a candidate ranks behind one with a lower expected gain, where that is its own doing."""
    one = made.candidates[at]
    before = [c for c in made.candidates[:at] if _gains_more(one, c)]
    if not before:
        return ""
    if one.order_reason in (NOT_REMEASURED, SLOWER_IN_A_ROW):
        return one.order_reason
    if _is_measured(one):
        return ""
    if one.status:
        return "failed"
    if any(c.seconds is not None for c in before):
        return "unmeasured"
    return "failure risk" if (one.failure or 0.0) >= LIKELY else ""


def _is_measured(one: Candidate) -> bool:
    return one.seconds is not None or one.origin.startswith("measured")


def _gains_more(one: Candidate, other: Candidate) -> bool:
    if one.expected_gain is None or other.expected_gain is None:
        return False
    return one.expected_gain > other.expected_gain * (1.0 + _EQUAL)
