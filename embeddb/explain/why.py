"""Sentences on an answer: why it was chosen, and how its gain was computed."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from embeddb.core.config import Config
from embeddb.core.wording import factor, many_of, one_of
from embeddb.explain.explanation import Explanation
from embeddb.ranking.recommendation import Candidate

#: Relative difference of a gain from the measured one below which it counts as the same.
_SAME = 0.005


def computed(first: Candidate | None) -> str:
    """The factors of a predicted gain, but for those of 1.00x: `neighbours 2.40x · mean held-out
    error 1.05x`; empty where it was not predicted."""
    logs: dict[str, float] = defaultdict(float)
    for term in first.terms if first is not None else ():
        logs["neighbours" if term.term == "neighbour" else term.term] += term.log_gain
    shown = {name: factor(math.exp(log)) for name, log in logs.items()}
    one = factor(1.0)
    return " · ".join(f"{name} {text}" for name, text in shown.items() if text != one)


def corrected(e: Explanation) -> bool:
    """True if a neighbour votes with another gain than was measured there: that of another machine
    is corrected for the queried one."""
    return any(
        n.voted is not None
        and n.answer_gain is not None
        and abs(n.voted / n.answer_gain - 1.0) > _SAME
        for n in e.neighbours
    )


def why(e: Explanation) -> str:
    """Sentences on the choice of the answer, its gain, and its confidence."""
    recommendation = e.recommendation
    return f"{_chosen(e)} Confidence: {recommendation.confidence}{_first_doubt(e)}."


def _chosen(e: Explanation) -> str:
    recommendation, one, many = e.recommendation, one_of(e.pattern.kind), many_of(e.pattern.kind)
    over = "" if e.expected_gain is None else f": {factor(e.expected_gain)} over the default"
    if recommendation.link == "default":
        return "No comparable measurements, so the default is kept."
    first = recommendation.first
    measured = recommendation.link == "measured" or (
        first is not None and first.seconds is not None
    )
    if measured and Config(e.answer) == Config(recommendation.default):
        return f"No configuration measured on this {one} is faster than the default."
    if recommendation.link in ("neighbours", "model"):
        return _predicted(e)
    return {
        "measured": f"It is the fastest configuration measured on this {one}{over}.",
        "other-width": f"It is the fastest measured on this {one} at another width{over}.",
        "static-best": f"It is the best on average over all measured {many}{over}.",
    }.get(recommendation.link, f"The tuner {recommendation.tuner} proposed it{over}.")


def _predicted(e: Explanation) -> str:
    recommendation, near = e.recommendation, e.neighbours
    gain = None if e.expected_gain is None else factor(e.expected_gain)
    if not near or not e.voted:
        over = f": {gain} over the default" if gain else ""
        return f"It is the fastest by the cost model{over}."
    similar = f"{len(near)} most similar measured {many_of(e.pattern.kind)}"
    if len(near) == 1:
        similar = f"most similar measured {one_of(e.pattern.kind)}"
    if Config(e.answer) == Config(recommendation.default):
        return (
            f"By the {similar}, no other configuration is expected to gain enough over the "
            "default to replace it unmeasured."
        )
    gains = [n.answer_gain for n in near if n.answer_gain is not None]
    if not gains:
        return f"None of the {similar} ran it; it is inferred from related configurations they ran."
    faster, median = sum(gain > 1.0 for gain in gains), factor(statistics.median(gains))
    whose = ", corrected for this machine" if corrected(e) else ""
    return (
        f"It beat the default on {faster} of the {len(gains)} that ran it among the {similar}; "
        f"their median gain is {median}{f'; {gain} is expected here{whose}' if gain else ''}."
    )


def _first_doubt(e: Explanation) -> str:
    recommendation = e.recommendation
    if recommendation.confidence == "high" or not recommendation.warnings:
        return ""
    return f", because {recommendation.warnings[0].partition('; ')[0].removesuffix('.')}"
