"""Why an answer is what it is, in one sentence."""

from __future__ import annotations

import statistics

from embeddb.core.config import Config
from embeddb.core.wording import factor, many_of, one_of
from embeddb.explain.explanation import Explanation


def why(e: Explanation) -> str:
    """By what the answer was chosen, what it gains, and how sure that is."""
    made = e.recommendation
    return f"{_chosen(e)} Confidence: {made.confidence}{_first_doubt(e)}."


def _chosen(e: Explanation) -> str:
    made, one, many = e.recommendation, one_of(e.pattern.kind), many_of(e.pattern.kind)
    over = "" if e.expected_gain is None else f": {factor(e.expected_gain)} over the default"
    if made.link == "default":
        return "Nothing comparable was measured, so the default is kept."
    if made.link == "measured" and Config(e.answer) == Config(made.default):
        return f"Nothing that was measured on this {one} is faster than the default."
    if made.link in ("neighbours", "model"):
        return _predicted(e)
    return {
        "measured": f"It is the fastest of all that was measured on this {one}{over}.",
        "other-width": f"It is the fastest measured on this {one} at another width{over}.",
        "static-best": f"It is the best on average over all measured {many}{over}.",
    }.get(made.link, f"The tuner {made.tuner} proposed it{over}.")


def _predicted(e: Explanation) -> str:
    made, near = e.recommendation, e.neighbours
    gain = None if e.expected_gain is None else factor(e.expected_gain)
    if not near or not e.voted:
        over = f": {gain} over the default" if gain else ""
        return f"The cost model predicts that it is the fastest{over}."
    similar = f"{len(near)} most similar measured {many_of(e.pattern.kind)}"
    if len(near) == 1:
        similar = f"most similar measured {one_of(e.pattern.kind)}"
    if Config(e.answer) == Config(made.default):
        return (
            f"By the {similar}, no other configuration is expected to gain enough over the "
            "default to replace it unmeasured."
        )
    gains = [n.answer_gain for n in near if n.answer_gain is not None]
    if not gains:
        return f"None of the {similar} ran it; what they ran speaks for it."
    faster, median = sum(gain > 1.0 for gain in gains), factor(statistics.median(gains))
    return (
        f"It beat the default on {faster} of the {len(gains)} that ran it among the {similar}; "
        f"their median gain is {median}{f', and {gain} is expected here' if gain else ''}."
    )


def _first_doubt(e: Explanation) -> str:
    made = e.recommendation
    if made.confidence == "high" or not made.warnings:
        return ""
    return f", because {made.warnings[0].partition('; ')[0].removesuffix('.')}"
