"""The summands of a predicted gain, for explanations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from embeddb.core.config import Config
from embeddb.ranking.fallback import RankedCandidates
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.cost_model import over_default
from embeddb.ranking.rankers.neighbour_vote import VoteParts, parts_of_vote
from embeddb.ranking.rankers.order import position
from embeddb.ranking.recommendation import Candidate, GainTerm

#: Summands below it, in log gain, are rounding.
_LEAST = 1e-9


def with_gain_terms(ranked: RankedCandidates) -> RankedCandidates:
    """The answer with the terms of its first candidate's predicted gain, whose log gains add up to
    it; none for the default, measured candidates, and unknown gains."""
    ranker = ranked.rankers.chosen
    first = ranked.candidates[0] if ranked.candidates else None
    if first is None or first.expected_gain is None or ranked.strategy != ranker.name:
        return ranked
    if Config(first.config) == ranker.query.default:
        return ranked
    every = _terms(ranker, first)
    terms = [term for term in every if term.pattern_id or abs(term.log_gain) > _LEAST]
    named = msgspec.structs.replace(first, terms=terms)
    return replace(ranked, candidates=[named, *ranked.candidates[1:]])


def _terms(ranker: Ranker, first: Candidate) -> list[GainTerm]:
    query, config, rest = ranker.query, Config(first.config), math.log(first.expected_gain or 1.0)
    by_vote = ranker.by_vote and (first.voters > 0 or not ranker.by_model)
    weight = query.prediction.weight if by_vote else 1.0
    parts: list[GainTerm] = []
    if by_vote:
        parts += _of_vote(query, config, 1.0 - weight if ranker.by_model else 1.0)
    at = position(query.prediction.configs, config) if ranker.by_model else -1
    if at >= 0:
        gain = float(over_default(query)[0][at])
        parts.append(GainTerm(term="cost model", log_gain=weight * gain))
    rest -= sum(one.log_gain for one in parts)
    name = "mean held-out error"
    if ranker.by_model:
        name = "rest" if ranker.by_vote else "cost model"
    return [*parts, GainTerm(term=name, log_gain=rest)]


def _of_vote(query: Query, config: Config, counts: float) -> Iterator[GainTerm]:
    """Terms of the vote relative to the default's: of each neighbour, of the platform's average,
    and of the doubt where not all neighbours ran the configuration."""
    own, default = (position(query.vote.configs, one) for one in (config, query.default))
    if own < 0:
        return
    here, gains = parts_of_vote(query, own), query.vote.gains[:, own]
    base = VoteParts(np.zeros(len(gains)), np.zeros(len(gains)), 0.0, 0.0)
    if default >= 0:
        base = parts_of_vote(query, default)
    for at, near in enumerate(query.vote.neighbours):
        yield GainTerm(
            term="neighbour",
            log_gain=counts * float(here.neighbours[at] - base.neighbours[at]),
            pattern_id=near.pattern_id,
            weight=float(here.weights[at]),
            voted=math.exp(gains[at]) if math.isfinite(gains[at]) else None,
        )
    average, doubt = here.average - base.average, base.doubt - here.doubt
    yield GainTerm(term="platform average", log_gain=float(counts * average))
    yield GainTerm(term="few neighbours ran it", log_gain=float(counts * doubt))
