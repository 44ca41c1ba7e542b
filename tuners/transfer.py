"""Nearest-neighbour transfer: what was fast on similar patterns, relative to their defaults.

The vote is `embeddb.policy`'s; the similarity idea is transfer tuning's (Performance Embeddings,
Section 3). Voting with gains instead of copying the nearest neighbour's winner keeps one odd
neighbour from deciding, and lets the default take part as the configuration it is.

The first proposal has the best score. The following ones are chosen as a set: each adds most to
the expected best-of-set gain over the neighbours, so that five measurements cover what the
neighbours disagree on instead of trying five variants of one schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embeddb.query import Candidate, Query
from tuners.ranking import RankedTuner, default_candidate

__all__ = ["PLUGIN", "TransferTuner", "doubt_of_unrun", "scores"]

Floats = NDArray[np.float64]

#: How many proposals are chosen as a set; after them the order is by score alone.
_SET = 8


class TransferTuner(RankedTuner):
    """Ranks by the neighbours' shrunk vote."""

    def rank(self) -> Iterator[Candidate]:
        query = self.query
        if not query.configs:
            yield default_candidate(query)
            return
        score, voters = scores(query)
        base = _default_score(query, score)
        for at in _order(query, score):
            yield self._candidate(at, score[at], base, voters[at])

    def _candidate(self, at: int, score: float, base: float, voters: int) -> Candidate:
        query = self.query
        is_default = query.configs[at] == query.default
        low, high = (1.0, 1.0) if is_default else _interval(query, at)
        return Candidate(
            config=dict(query.configs[at]),
            score=base - float(score),
            origin=f"{voters} neighbours" if voters else "platform average",
            expected_gain=math.exp(score - base) if query.knows_default else None,
            gain_low=low if query.knows_default else None,
            gain_high=high if query.knows_default else None,
            voters=int(voters),
        )


def scores(query: Query) -> tuple[Floats, NDArray[np.int64]]:
    """The vote float64[c] (centred log gain, higher is better; cautious where few neighbours ran a
    configuration) and voters int64[c]."""
    ran = np.isfinite(query.gains)
    if not _trusted(query):
        return query.prior, ran.sum(axis=0)
    centred = np.where(ran, query.gains - query.levels[:, None], 0.0)
    shrink = max(query.shrink, 1e-6)
    support = query.weights @ ran + shrink
    score = (query.weights @ centred + shrink * query.prior) / support
    return score - _doubt(query, support), ran.sum(axis=0)


def doubt_of_unrun(query: Query) -> float:
    """What a configuration that no neighbour ran is doubted by, in log gain; 0 where the neighbours
    are not asked."""
    if not _trusted(query) or not query.configs:
        return 0.0
    return float(_doubt(query, np.array([max(query.shrink, 1e-6)]))[0])


def _trusted(query: Query) -> bool:
    return bool(len(query.weights)) and not np.isinf(query.shrink)


def _doubt(query: Query, support: Floats) -> Floats:
    """By how much the standard error of a vote with the weight of support float64[s] exceeds that
    of a configuration that all neighbours ran; 0 where all did.

    Where configurations are sampled per pattern, the best of hundreds of votes by one or two
    neighbours each would mostly be the luckiest.
    """
    ran = np.isfinite(query.gains)
    off = np.where(ran, query.gains - query.levels[:, None] - query.prior, 0.0)
    spread = math.sqrt(float((off**2).sum()) / max(int(ran.sum()), 1))
    one, full = float(query.weights.mean()), float(query.weights.sum() + max(query.shrink, 1e-6))
    # One nobody ran, where shrink is 0, is doubted like one that only the farthest neighbour ran.
    least = np.maximum(support, query.weights.min())
    doubt: Floats = spread * (np.sqrt(one / least) - math.sqrt(one / full))
    return doubt


def _default_score(query: Query, score: Floats) -> float:
    """The default's own score: gains are told relative to it."""
    for at, config in enumerate(query.configs):
        if config == query.default:
            return float(score[at])
    return 0.0


def _order(query: Query, score: Floats) -> list[int]:
    """Positions, best proposal first; equal scores keep the configurations' order."""
    by_score = [int(at) for at in np.argsort(-score, kind="stable")]
    if not _trusted(query):
        cover = [int(at) for at in query.cover if at != by_score[0]]
        chosen = [by_score[0], *cover[: _SET - 1]]
    else:
        chosen = _set_of(query, score)
    taken = set(chosen)
    return chosen + [at for at in by_score if at not in taken]


def _set_of(query: Query, score: Floats) -> list[int]:
    """Greedy on the weighted mean of the best centred gain; the prior is one more voter."""
    ran = np.isfinite(query.gains)
    votes = np.where(ran, query.gains - query.levels[:, None], score)
    votes = np.vstack([votes, query.prior])
    weights = np.append(query.weights, query.shrink)
    chosen = [int(np.argmax(score))]
    while len(chosen) < min(_SET, len(score)):
        best = votes[:, chosen].max(axis=1)
        extra = weights @ np.maximum(votes - best[:, None], 0.0) / weights.sum()
        extra[chosen] = -np.inf
        chosen.append(int(np.lexsort((-score, -extra))[0]))
    return chosen


def _interval(query: Query, at: int) -> tuple[float | None, float | None]:
    """The 10th and 90th weighted percentile of what the voters gained over their defaults."""
    gains = query.gains[:, at]
    ran = np.isfinite(gains)
    if ran.sum() < 3:
        return None, None
    values, mass = gains[ran], query.weights[ran]
    order = np.argsort(values)
    share = np.cumsum(mass[order]) / mass.sum()
    last = values.size - 1
    low, high = (values[order][min(int(np.searchsorted(share, q)), last)] for q in (0.1, 0.9))
    return math.exp(low), math.exp(high)


PLUGIN = TransferTuner
