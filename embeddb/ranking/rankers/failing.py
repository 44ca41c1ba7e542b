"""The chance that a configuration fails on the asked pattern, and what it does to an answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import LIKELY, Candidate

__all__ = ["chances", "likely_last", "with_failures"]

Floats = NDArray[np.float64]


def chances(query: Query, configs: Sequence[Config]) -> Floats:
    """Chance float64[u] that each fails: the part of the neighbours' runs of it that failed,
    weighted as their votes, with what all measured patterns tell of it as one more neighbour. 0
    where nothing ever failed."""
    vote = query.vote
    if not vote.failures.rate:
        return np.zeros(len(configs))
    found = np.array([vote.failures.chance(config) for config in configs])
    if not (vote.failing.size and len(vote.weights)):
        return found
    place = {config: at for at, config in enumerate(vote.configs)}
    told = [(at, place[config]) for at, config in enumerate(configs) if config in place]
    if told:
        mine, theirs = np.array(told).T
        ran = np.isfinite(vote.gains[:, theirs])
        one = float(vote.weights.mean())
        failed = vote.weights @ np.where(ran, vote.failing[:, theirs], 0.0)
        found[mine] = (failed + one * found[mine]) / (vote.weights @ ran + one)
    return found


def likely_last(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in their order, but those that rather fail than not behind all others. Their
    votes count failures already; to take the chance off every gain as well made answers worse
    (benchmarks/results/failures_held.json)."""
    found = chances(query, [Config(candidate.config) for candidate in candidates])
    doubted = found >= LIKELY
    if not doubted.any() or doubted.all():
        return list(candidates)
    first = [c for c, behind in zip(candidates, doubted, strict=True) if not behind]
    # What is put behind has no better score than that before it.
    worst = max(candidate.score for candidate in first)
    last = [c for c, behind in zip(candidates, doubted, strict=True) if behind]
    return first + [msgspec.structs.replace(c, score=max(c.score, worst)) for c in last]


def with_failures(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their chances of failing, where any configuration ever failed and they
    did not run on the very pattern."""
    if not query.vote.failures.rate:
        return list(candidates)
    configs = [Config(candidate.config) for candidate in candidates]
    told = []
    for one, config, chance in zip(candidates, configs, chances(query, configs), strict=True):
        failed, tried = query.vote.failures.counts.get(config, (0, 0))
        known = config in query.own.timings
        told.append(
            msgspec.structs.replace(
                one,
                failure=None if known else float(chance),
                failed_on=failed,
                tried_on=tried,
            )
        )
    return told
