"""The product's own answer: the strongest link of the fallback chain that has evidence.

Neighbours and cost model are one step of it: which of them ranks, or both, is what answered best
with groups held out (the figures are in the model's card). A model that was never judged does not
rank, nor does one where preparation has a price of which nothing is known.
"""

from __future__ import annotations

import math

import numpy as np

from embeddb.core.config import Config
from embeddb.index.run_matrix import Timing
from embeddb.query.query import Candidate, Query
from tuners.rank import RankTuner
from tuners.ranking import RankedTuner, default_candidate
from tuners.search import SearchTuner, predicted_whole
from tuners.static_best import StaticBestTuner
from tuners.transfer import TransferTuner
from tuners.transfer_rank import TransferRankTuner

__all__ = ["GOOD", "Answer", "answer", "confidence_of", "failure_chance", "method_of"]

#: A choice was measured: the default and something else, or two others.
_FEWEST_MEASURED = 2
#: Below this share of the optimum, held out, an answer is not called sure.
GOOD = 0.9
#: Nearest neighbours of nearly all measured patterns are nearer than this percentile.
_STRANGE = 0.99
#: A configuration that failed on this part of the neighbours is doubted.
_FAILS = 0.2
#: Below this part of the vote an answer rests on other machines.
_OWN_SHARE = 0.5
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
    if query.predicted_configs and (math.isinf(query.calls) or query.preparation is not None):
        # Cards judge calls without end. For few the model alone was up to 2.4 points behind the
        # vote, joined with it at most 0.1 (benchmarks/results/calls_cpu.json).
        alone = not near or math.isinf(query.calls)
        able += ["rank"] * alone + ["transfer+rank"] * near
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
    query: Query, curves: dict[Config, Timing], *, other_width: bool = False
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


def _cost(curve: Timing, calls: float) -> float:
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


def confidence_of(query: Query, link: str, first: Config | None = None) -> tuple[str, list[str]]:
    """`high`, `medium` or `low`, and one line for everything that lowers it; `first` is the first
    candidate."""
    doubts: list[str] = []
    if link in ("static-best", "default"):
        return "low", ["no measured pattern is comparable; the answer is the same for any matrix"]
    if link == "measured":
        return "high", doubts
    if link == "other-width":
        return "medium", [f"measured on this very pattern, but at {query.own_width_op}"]
    method = method_of(query)
    doubts += _doubts_of_judgement(query, method)
    if not query.knows_default:
        doubts.append("the default was never run here: what a configuration gains is not known")
    if not query.neighbours:
        doubts.append("no measured pattern is comparable; the cost model alone ranks")
        return "medium", doubts
    doubts += _doubts_of_neighbours(query) + _doubts_of_machine(query)
    chance = failure_chance(query, first)
    if chance >= _FAILS:
        doubts.append(f"it failed in {100 * chance:.0f} % of the runs on patterns like this")
    return _level(query, doubts), doubts


def failure_chance(query: Query, config: Config | None) -> float:
    """Part of the neighbours' runs of a configuration that failed, weighted as their votes; 0 where
    none ran it."""
    if config is None or config not in query.configs or not query.failing.size:
        return 0.0
    at = query.configs.index(config)
    ran = query.weights * np.isfinite(query.gains[:, at])
    return float(ran @ query.failing[:, at] / ran.sum()) if ran.sum() else 0.0


def _doubts_of_judgement(query: Query, method: str) -> list[str]:
    """What is known of how good such answers are, and on whose runs that was found."""
    doubts: list[str] = []
    if query.neighbours and query.evidence_op not in (None, query.op):
        doubts.append(f"hardly measured at {query.op}: this rests on {query.evidence_op}")
    held_out = query.held_out if method == "transfer" else query.judged[method]
    where = "held-out answers from these runs"
    if method == "transfer" and query.judged_by == "machines":
        where = "answers for machines that were held out"
    if held_out < GOOD:
        doubts.append(f"{where} reach only {100 * held_out:.0f} % of the optimum")
    elif query.knows_default and math.isnan(held_out):
        doubts.append("too few matrices were measured to know how good answers here are")
    elif method == "transfer" and query.judged_by == "elsewhere":
        doubts.append("how good answers are was found on another machine only")
    return doubts


def _doubts_of_neighbours(query: Query) -> list[str]:
    doubts: list[str] = []
    nearest = query.neighbours[0]
    if nearest.percentile > _STRANGE:
        doubts.append("nothing like this pattern was ever measured here")
    elif nearest.percentile > 0.9:
        doubts.append("the nearest measured pattern is unusually far")
    if len({n.group for n in query.neighbours}) == 1:
        doubts.append("all neighbours come from one group of matrices")
    return doubts


def _doubts_of_machine(query: Query) -> list[str]:
    """Whether the vote is of this machine; `calibrate` is what changes that."""
    if not query.elsewhere:
        return []
    own, platform = query.machines.get(query.platform.id, 0.0), query.platform
    how = f"; `embeddb calibrate` measures it in minutes, --platform {platform.name}"
    can = how if platform.runner and platform.portable else ""
    if not query.measured_here:
        return [f"nothing was measured on this machine: evidence, not an answer for it{can}"]
    if own < _OWN_SHARE:
        return [f"{100 * (1 - own):.0f} % of the vote is of other machines{can}"]
    return []


def _level(query: Query, doubts: list[str]) -> str:
    unproven = query.judged_by == "elsewhere" and query.elsewhere and not query.measured_here
    if query.neighbours[0].percentile > _STRANGE or unproven:
        return "low"
    return "medium" if doubts else "high"
