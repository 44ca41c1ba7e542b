"""The product's own answer: the strongest link of the fallback chain that has evidence.

Neighbours and cost model are one step of it: which of them ranks, or both, is what answered best
with groups held out (the figures are in the model's card). A model that was never judged does not
rank, nor does one where preparation has a price, of which it knows nothing.
"""

from __future__ import annotations

import math

import numpy as np

from embeddb.config import Config
from embeddb.evidence import Curve
from embeddb.query import Candidate, Query
from tuners.rank import RankTuner
from tuners.ranking import RankedTuner, default_candidate
from tuners.search import SearchTuner, predicted_whole
from tuners.static_best import StaticBestTuner
from tuners.transfer import TransferTuner
from tuners.transfer_rank import TransferRankTuner

__all__ = ["GOOD", "Answer", "answer", "confidence_of", "method_of"]

#: A choice was measured: the default and something else, or two others.
_FEWEST_MEASURED = 2
#: Below this share of the optimum, held out, an answer is not called sure.
GOOD = 0.9
#: Nearest neighbours of nearly all measured patterns are nearer than this percentile.
_STRANGE = 0.99
#: With fewer neighbours than this the vote is left to the platform's average.
_FEWEST_NEIGHBOURS = 3
#: What can rank, simplest first, by the names that a model's card judges them under.
_METHODS: dict[str, tuple[str, type[RankedTuner]]] = {
    "transfer": ("transfer", TransferTuner),
    "rank": ("rank", RankTuner),
    "transfer+rank": ("transfer-rank", TransferRankTuner),
}
#: What takes the place of `rank` in a space too large to be predicted whole.
_SEARCH: tuple[str, type[RankedTuner]] = ("search", SearchTuner)


class Answer:
    """Ranked candidates and the link of the chain they come from; `model` is the version of the
    cost model that any of them rests on, else empty."""

    def __init__(
        self, link: str, tuner: str, candidates: list[Candidate], *, model: str = ""
    ) -> None:
        self.link, self.tuner, self.candidates, self.model = link, tuner, candidates, model


def method_of(query: Query) -> str:
    """Which of `transfer`, `rank` and `transfer+rank` ranks here: the best by the evidence there
    is of each, the simplest of equals."""
    near = len(query.neighbours) >= _FEWEST_NEIGHBOURS and bool(query.configs)
    able = ["transfer"] if near else []
    if query.predicted_configs and math.isinf(query.calls):
        able += ["rank", "transfer+rank"] if near else ["rank"]
        able = [m for m in able if m == "transfer" or m in query.judged]
    return max(able, key=lambda m: query.judged.get(m, -math.inf), default="transfer")


def answer(query: Query, count: int, *, rng: np.random.Generator) -> Answer:
    """At most `count` candidates: measured here, else at another width, else by neighbours or cost
    model, else the platform's static best, else its default. Never anything illegal in the query's
    space."""
    enough = count + len(query.own) + len(query.own_width)
    method = method_of(query)
    large = method == "rank" and not predicted_whole(query)
    name, tuner = _SEARCH if large else _METHODS[method]
    rest = _not_failed(query, tuner(query, rng=rng).ask(enough))
    model = "" if method == "transfer" else query.model
    found = _from_curve(query, query.own)
    if len(found) >= _FEWEST_MEASURED:
        return _looked_up("measured", _merged(found, rest, count), len(found), model)
    found = _not_failed(query, _from_curve(query, query.own_width, other_width=True))
    if found:
        return _looked_up("other-width", _merged(found, rest, count), len(found), model)
    if method == "rank" and rest:
        return Answer("model", name, rest[:count], model=model)
    if len(query.neighbours) >= _FEWEST_NEIGHBOURS and query.configs and rest:
        return Answer("neighbours", name, rest[:count], model=model)
    average = StaticBestTuner(query, rng=rng).ask(enough)
    ranked = [c for c in _not_failed(query, average) if c.score < 0.0]
    if ranked:
        return Answer("static-best", "static-best", ranked[:count])
    return Answer("default", "default", [default_candidate(query)])


def _looked_up(link: str, candidates: list[Candidate], known: int, model: str) -> Answer:
    """An answer of which the first `known` were measured and only the others are ranked."""
    return Answer(link, "lookup", candidates, model=model if len(candidates) > known else "")


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
    method = method_of(query)
    if query.neighbours and query.evidence_op != query.op:
        doubts.append(f"nothing was measured at {query.op} here; this rests on {query.evidence_op}")
    held_out = query.held_out if method == "transfer" else query.judged[method]
    if held_out < GOOD:
        share = f"{100 * held_out:.0f} %"
        doubts.append(f"held-out answers from these runs reach only {share} of the optimum")
    elif query.knows_default and math.isnan(held_out):
        doubts.append("too few matrices were measured to know how good answers here are")
    if not query.knows_default:
        doubts.append("the default was never run here: what a configuration gains is not known")
    if not query.neighbours:
        doubts.append("no measured pattern is comparable; the cost model alone ranks")
        return "medium", doubts
    far = _doubts_of_neighbours(query)
    return _level(query, doubts + far), doubts + far


def _doubts_of_neighbours(query: Query) -> list[str]:
    doubts: list[str] = []
    nearest = query.neighbours[0]
    if nearest.percentile > _STRANGE:
        doubts.append("nothing like this pattern was ever measured here")
    elif nearest.percentile > 0.9:
        doubts.append("the nearest measured pattern is unusually far")
    if all(n.platform != query.platform.id for n in query.neighbours):
        doubts.append(
            "measured on another machine of this kind: evidence, not an answer for this one"
        )
    if len({n.group for n in query.neighbours}) == 1:
        doubts.append("all neighbours come from one group of matrices")
    return doubts


def _level(query: Query, doubts: list[str]) -> str:
    if query.neighbours[0].percentile > _STRANGE:
        return "low"
    return "medium" if doubts else "high"
