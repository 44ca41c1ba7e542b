"""The product's own answer: the strongest link of the fallback chain that has evidence."""

from __future__ import annotations

import math

import numpy as np

from embeddb.config import Config
from embeddb.evidence import Curve
from embeddb.query import Candidate, Query
from tuners.ranking import default_candidate
from tuners.static_best import StaticBestTuner
from tuners.transfer import TransferTuner

__all__ = ["GOOD", "Answer", "answer", "confidence_of"]

#: A choice was measured: the default and something else, or two others.
_FEWEST_MEASURED = 2
#: Below this share of the optimum, held out, an answer is not called sure.
GOOD = 0.9

#: With fewer neighbours than this the vote is left to the platform's average.
_FEWEST_NEIGHBOURS = 3


class Answer:
    """Ranked candidates and the link of the chain they come from."""

    def __init__(self, link: str, tuner: str, candidates: list[Candidate]) -> None:
        self.link, self.tuner, self.candidates = link, tuner, candidates


def answer(query: Query, count: int, *, rng: np.random.Generator) -> Answer:
    """At most `count` candidates: measured here, else at another width, else by neighbours, else
    the platform's static best, else its default. Never anything illegal in the query's space."""
    enough = count + len(query.own) + len(query.own_width)
    rest = _not_failed(query, TransferTuner(query, rng=rng).ask(enough))
    found = _from_curve(query, query.own)
    if len(found) >= _FEWEST_MEASURED:
        return Answer("measured", "lookup", _merged(found, rest, count))
    found = _not_failed(query, _from_curve(query, query.own_width, other_width=True))
    if found:
        return Answer("other-width", "lookup", _merged(found, rest, count))
    if len(query.neighbours) >= _FEWEST_NEIGHBOURS and query.configs and rest:
        return Answer("neighbours", "transfer", rest[:count])
    average = StaticBestTuner(query, rng=rng).ask(enough)
    ranked = [c for c in _not_failed(query, average) if c.score < 0.0]
    if ranked:
        return Answer("static-best", "static-best", ranked[:count])
    return Answer("default", "default", [default_candidate(query)])


def _not_failed(query: Query, candidates: list[Candidate]) -> list[Candidate]:
    """Without what is known to fail on this very pattern."""
    own, stored = query.own.items(), query.space.canonical
    failed = {stored(config) for config, curve in own if not math.isfinite(curve.seconds)}
    return [c for c in candidates if Config(c.config) not in failed] if failed else candidates


def _from_curve(
    query: Query, curves: dict[Config, Curve], *, other_width: bool = False
) -> list[Candidate]:
    default = curves.get(query.default)
    base = math.inf if default is None else _cost(default, query.calls)
    origin = f"measured at {query.own_width_op}" if other_width else "measured here"
    found = []
    for config, curve in curves.items():
        cost = _cost(curve, query.calls)
        if not math.isfinite(cost) or query.space.reason(config) is not None:
            continue
        gain = base / cost if math.isfinite(base) else None
        found.append(
            Candidate(
                config=dict(query.space.canonical(config)),
                score=math.log(cost) if gain is None else -math.log(gain),
                origin=origin,
                expected_gain=gain,
                seconds=None if other_width else curve.seconds,
                status=None if other_width else curve.status,
            )
        )
    return sorted(found, key=lambda c: (c.score, str(c.config)))


def _cost(curve: Curve, calls: float) -> float:
    """Seconds per call with the preparation shared out."""
    return curve.seconds + curve.conversion_s / calls


def _merged(first: list[Candidate], then: list[Candidate], count: int) -> list[Candidate]:
    seen: list[dict[str, object]] = []
    out = []
    for candidate in [*first, *then]:
        if candidate.config not in seen:
            seen.append(candidate.config)
            out.append(candidate)
    return out[:count]


def confidence_of(query: Query, link: str) -> tuple[str, list[str]]:
    """`high`, `medium` or `low`, and one line for everything that lowers it."""
    doubts: list[str] = []
    if link in ("static-best", "default"):
        return "low", ["no measured pattern is comparable; the answer is the same for any matrix"]
    if link == "measured":
        return "high", doubts
    if link == "other-width":
        return "medium", [f"measured on this very pattern, but at {query.own_width_op}"]
    if query.evidence_op != query.op:
        doubts.append(f"nothing was measured at {query.op} here; this rests on {query.evidence_op}")
    if query.held_out < GOOD:
        share = f"{100 * query.held_out:.0f} %"
        doubts.append(f"held-out answers from these runs reach only {share} of the optimum")
    elif query.knows_default and math.isnan(query.held_out):
        doubts.append("too few matrices were measured to know how good answers here are")
    nearest = query.neighbours[0]
    if nearest.percentile > 0.99:
        doubts.append("nothing like this pattern was ever measured here")
    elif nearest.percentile > 0.9:
        doubts.append("the nearest measured pattern is unusually far")
    if not query.knows_default:
        doubts.append("the default was never run here: what a configuration gains is not known")
    if all(n.platform != query.platform.id for n in query.neighbours):
        doubts.append(
            "measured on another machine of this kind: evidence, not an answer for this one"
        )
    if len({n.group for n in query.neighbours}) == 1:
        doubts.append("all neighbours come from one group of matrices")
    if nearest.percentile > 0.99:
        return "low", doubts
    return ("medium" if doubts else "high"), doubts
