"""Why an answer is what it is: computed from the stored recommendation and the store alone.

No model, no runner, no index, no matrix file and no network is needed, so an explanation given
today can be given again next year, on another machine, from a copy of the database.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from embeddb.config import Config, Op
from embeddb.evidence import Curve, curve_of
from embeddb.platform import Platform
from embeddb.query import Candidate, Recommendation, RecommendedNeighbour
from embeddb.records import PatternInfo
from embeddb.store import Store

__all__ = [
    "Agreement",
    "Difference",
    "Explanation",
    "NeighbourEvidence",
    "explain",
    "near_ties",
]

#: Features shown where the query differs from its neighbours, at most.
_MOST_DIFFERENCES = 6
#: A difference is worth a word from this many standard deviations of the partition on.
_NOTABLE = 0.75


class NeighbourEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one neighbour contributes. Gains are factors over that neighbour's own default; None
    where the configuration did not run there (or its default did not)."""

    pattern_id: str
    name: str
    platform: str
    distance: float
    percentile: float | None
    weight: float
    measured: int
    failed: dict[str, int]
    best: dict[str, Any]
    best_gain: float | None
    answer_gain: float | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A feature in which the query stands apart, in standard deviations of the partition."""

    feature: str
    query: float
    neighbours: float
    deviations: float


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How the neighbours' winners vote on one parameter: value (as text) to share of weight.
    `open` is true where no value has two thirds."""

    parameter: str
    votes: dict[str, float]
    answer: str
    open: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind one recommendation; see docs/cli.md for the JSON keys. `tuner`,
    `featurizer` and `model` say what ranked, in which features and with which cost model (empty:
    with none)."""

    id: str
    pattern_id: str
    pattern_name: str
    platform: str
    op: str
    link: str
    answer: dict[str, Any]
    expected_gain: float | None
    measured_gain: float | None
    confidence: str
    neighbours: list[NeighbourEvidence]
    differences: list[Difference]
    agreement: list[Agreement]
    evidence: dict[str, int]
    near_ties: list[dict[str, Any]]
    rejected: dict[str, str]
    warnings: list[str]
    simulated: bool
    tuner: str = ""
    featurizer: str = ""
    model: str = ""
    model_featurizer: str = ""


def explain(made: Recommendation, store: Store) -> Explanation:
    """Raises: StoreCorrupt if the runs it rests on cannot be read."""
    op = Op.parse(made.evidence_op)
    answer = Config(made.candidates[0].config) if made.candidates else Config(made.default)
    platforms: dict[str, Platform | None] = {}
    shown, counts, winners = [], Counter[str](), []
    for near in made.neighbours:
        platform = platforms.setdefault(near.platform, store.platform(near.platform))
        pattern_id = store.resolve(near.pattern_id)
        runs = list(store.runs(near.platform, op, pattern_id))
        counts.update(run.measurement.status for run in runs)
        default = _default(platform, op, store.pattern(pattern_id), made)
        seen = _evidence(near, curve_of(runs), default, answer)
        shown.append(seen)
        if seen.best:
            winners.append((seen.best, near.weight))
    first = made.candidates[0] if made.candidates else None
    return Explanation(
        id=made.id,
        pattern_id=made.pattern_id,
        pattern_name=made.pattern_name,
        platform=made.platform,
        op=made.op,
        link=made.link,
        answer=dict(answer),
        expected_gain=first.expected_gain if first else None,
        measured_gain=_measured_gain(made),
        confidence=made.confidence,
        neighbours=shown,
        differences=_differences(made, store),
        agreement=_agreement(winners, answer),
        evidence=dict(sorted(counts.items())),
        near_ties=near_ties(made),
        rejected=made.rejected,
        warnings=made.warnings,
        simulated=made.simulated,
        tuner=made.tuner,
        featurizer=made.featurizer,
        model=made.model,
        model_featurizer=made.model_featurizer,
    )


def _default(
    platform: Platform | None, op: Op, info: PatternInfo | None, made: Recommendation
) -> Config:
    """A neighbour's own default."""
    if platform is None:
        return Config(made.default)
    known = info or PatternInfo(id="")
    return platform.default(op, m=known.m, n=known.n, nnz=known.nnz)


def _evidence(
    near: RecommendedNeighbour, curve: dict[Config, Curve], default: Config, answer: Config
) -> NeighbourEvidence:
    base = curve[default].seconds if default in curve else math.inf
    ok = {config: c for config, c in curve.items() if math.isfinite(c.seconds)}
    best = min(ok, key=lambda config: (ok[config].seconds, config.json), default=None)
    return NeighbourEvidence(
        pattern_id=near.pattern_id,
        name=near.name,
        platform=near.platform,
        distance=near.distance,
        percentile=near.percentile,
        weight=near.weight,
        measured=len(curve),
        failed=dict(Counter(c.status for c in curve.values() if c.status != "ok")),
        best=dict(best) if best is not None else {},
        best_gain=_factor(base, ok[best].seconds) if best is not None else None,
        answer_gain=_factor(base, ok[answer].seconds) if answer in ok else None,
    )


def _factor(base: float, seconds: float) -> float | None:
    return base / seconds if math.isfinite(base) and seconds > 0 else None


def _measured_gain(made: Recommendation) -> float | None:
    best = made.candidates[0].seconds if made.candidates else None
    if best is None or made.default_seconds is None:
        return None
    return made.default_seconds / best


def _differences(made: Recommendation, store: Store) -> list[Difference]:
    """Features that lie far from the neighbours' weighted mean."""
    names = list(made.features)
    near = {n.pattern_id: n.weight for n in made.neighbours}
    stored = store.vectors.get(made.featurizer, made.featurizer_version, near)
    if not stored or not names:
        return []
    weights = np.array([near[i] for i in stored])
    rows = np.array(list(stored.values()), dtype=np.float64)
    query = np.array([made.features[name][0] for name in names])
    scale = np.array([made.features[name][2] for name in names])
    mean = weights @ rows / weights.sum()
    away = (query - mean) / scale
    order = np.argsort(-np.abs(away), kind="stable")[:_MOST_DIFFERENCES]
    return [
        Difference(
            feature=names[at],
            query=float(query[at]),
            neighbours=float(mean[at]),
            deviations=float(away[at]),
        )
        for at in order
        if abs(away[at]) >= _NOTABLE
    ]


def _agreement(winners: list[tuple[dict[str, Any], float]], answer: Config) -> list[Agreement]:
    """Per parameter, the weighted votes of the neighbours' best configurations."""
    total = sum(weight for _, weight in winners)
    names = sorted({name for best, _ in winners for name in best} | set(answer))
    found = []
    for name in names:
        votes: dict[str, float] = {}
        for best, weight in winners:
            value = _text(best.get(name))
            votes[value] = votes.get(value, 0.0) + (weight / total if total else 0.0)
        ranked = dict(sorted(votes.items(), key=lambda v: (-v[1], v[0])))
        found.append(
            Agreement(
                parameter=name,
                votes=ranked,
                answer=_text(answer.get(name)),
                open=max(ranked.values(), default=0.0) < 2 / 3,
            )
        )
    return found


def _text(value: object) -> str:
    return "(not used)" if value is None else str(value)


def near_ties(made: Recommendation) -> list[dict[str, Any]]:
    """Candidates that cannot be told from the first: within the partition's measured noise.

    Measured ones are compared by their seconds, others by score (a log of time as well).
    """
    if not made.candidates:
        return []
    margin = max(made.noise, 0.0)
    first = made.candidates[0]
    measured = first.seconds is not None
    return [
        c.config
        for c in made.candidates[1:]
        if (c.seconds is not None) == measured and _cost(c) - _cost(first) <= margin
    ]


def _cost(candidate: Candidate) -> float:
    return candidate.score if candidate.seconds is None else math.log(candidate.seconds)
