"""Ranking by the neighbours' vote: gains over the default on similar measured patterns.

The vote is `embeddb.index.vote`'s; the similarity idea is transfer tuning's (Performance
Embeddings, Section 3). Voting with gains instead of copying the nearest neighbour's winner limits
the influence of outliers and ranks the default like any other configuration.

The first proposal has the best score. The following ones are chosen as a set: each maximises the
expected best-of-set gain over the neighbours, so that five measurements cover the disagreement of
the neighbours instead of five variants of one schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.wording import plural
from embeddb.index.run_matrix import WINNER_GAIN
from embeddb.index.vote import doubt
from embeddb.ranking.posterior import Posterior, over_default_of
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import (
    NINETIETH,
    Floats,
    Interval,
    Ranker,
    between,
    default_candidate,
)
from embeddb.ranking.rankers.order import position
from embeddb.ranking.recommendation import Candidate

#: Number of proposals chosen as a set; those after them are ordered by score.
_SET = 8
#: Fewest neighbours that ran a configuration for an interval from their scatter.
_FEWEST_SCATTERED = 3


class NeighbourVote(Ranker):
    """Ranks by the neighbours' shrunk vote."""

    name, source = "transfer", "neighbours"

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.query.vote.configs

    @property
    def score(self) -> Floats:
        return self._voted[0]

    @property
    def voters(self) -> NDArray[np.int64]:
        return self._voted[1]

    @cached_property
    def _voted(self) -> tuple[Floats, NDArray[np.int64]]:
        if not self.query.vote.configs:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        return scores(self.query)

    @cached_property
    def predicted(self) -> Floats:
        """Predicted log gain float64[u] over the default: the vote's, corrected by the mean error
        of held-out first choices (the best of many estimates is biased upwards). The correction
        does not turn a gain into a loss, since the bias may stem from other machines."""
        gain, bias = self._gain, self.query.vote.quality.bias
        if not math.isfinite(bias):
            bias = 0.0
        corrected = np.where(gain > 0.0, np.maximum(gain + bias, 0.0), gain + bias)
        default = position(self.configs, self.query.default)
        if default >= 0:
            corrected[default] = 0.0
        return corrected

    def candidates(self) -> Iterator[Candidate]:
        if not self.configs:
            yield default_candidate(self.query)
            return
        order = self._guarded(self._order(), self.query.vote.quality.guard)
        yield from self._in_order(order, self.predicted, self._gain)

    def _origin(self, voters: int) -> str:
        voted = voters and _trusted(self.query)
        return plural(voters, "neighbour") if voted else "platform average"

    def _order(self) -> list[int]:
        """Positions, best proposal first: the best score, a set that complements it, then by
        predicted gain; ties keep the order of the configurations."""
        first = int(np.argmax(self.score))
        if _trusted(self.query):
            chosen = _set_of(self.query, self.score)
        else:
            cover = [int(at) for at in self.query.vote.cover if at != first]
            chosen = [first, *cover[: _SET - 1]]
        rest = np.argsort(-self.predicted, kind="stable").tolist()
        return chosen + [at for at in rest if at not in chosen]

    def _interval(self, at: int) -> Interval:
        """The 10th and 90th percentile of the gain. From the errors of held-out first choices; one
        that is not the first choice is voted on by fewer neighbours that agree less, so that the
        scatter of the neighbours counts, too. Without such errors from the scatter alone, None
        where fewer than three neighbours ran it."""
        query, quality = self.query, self.query.vote.quality
        if query.vote.configs[at] == query.default:
            return between(query, 0.0, 0.0)
        predicted = float(self.predicted[at])
        if math.isfinite(quality.low) and query.vote.knows_default:
            voted = float(self._gain[at])
            low, high = min(voted + quality.low, predicted), max(voted + quality.high, predicted)
            if at != int(np.argmax(self.score)) and math.isfinite(self.spread[at]):
                reach = NINETIETH * float(self.spread[at])
                low, high = min(low, predicted - reach), max(high, predicted + reach)
            return math.exp(low), math.exp(high)
        if self.voters[at] < _FEWEST_SCATTERED:
            return None, None
        return between(query, predicted, float(self.spread[at]))

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation float64[u] of the neighbours' gains around the predicted ones; nan
        where none ran, or only winners were recorded."""
        vote = self.query.vote
        if not _scattered(self.query):
            return np.full(self.score.size, np.nan)
        if vote.knows_default:
            return _pooled(self.query, vote.gains - self.predicted)
        return _pooled(self.query, vote.gains - vote.levels[:, None] - self.score)

    def posterior(self, answer: Config) -> Posterior:
        query = self.query
        posterior = over_default_of(query, query.vote.configs, self.predicted, self.spread)
        better, chance = _better_by_votes(query, answer)
        return replace(posterior, apart=self._apart(answer), better=better, chance=chance)

    def _apart(self, answer: Config) -> Floats:
        """Standard deviation float64[u] of the difference to the answer on the same neighbour, in
        which much of the scatter cancels."""
        gains, score = self.query.vote.gains, self.score
        at = position(self.configs, answer)
        if not _scattered(self.query) or at < 0:
            return self.spread
        beside = gains - gains[:, [at]] - (score - score[at])
        return _pooled(self.query, beside) if np.isfinite(beside).any() else self.spread


def scores(query: Query) -> tuple[Floats, NDArray[np.int64]]:
    """The vote float64[c] (centred log gain, higher is faster; cautious where few neighbours ran a
    configuration) and the number int64[c] of voters."""
    ran = np.isfinite(query.vote.gains)
    if not _trusted(query):
        return query.vote.prior, ran.sum(axis=0)
    centred = np.where(ran, query.vote.gains - query.vote.levels[:, None], 0.0)
    shrink, counted = max(query.vote.shrink, 1e-6), _counted(query)
    support = query.vote.weights @ counted + shrink
    score = (query.vote.weights @ (counted * centred) + shrink * query.vote.prior) / support
    return score - _doubt(query, support), ran.sum(axis=0)


class VoteParts(NamedTuple):
    """The summands of the score of one configuration: `neighbours` float64[k], whose shares of the
    vote are `weights` float64[k], the platform's `average`, less the `doubt`."""

    weights: Floats
    neighbours: Floats
    average: float
    doubt: float


def parts_of_vote(query: Query, at: int) -> VoteParts:
    """Summands of the score (`scores`) of the configuration at a position of the vote."""
    vote = query.vote
    if not _trusted(query):
        none = np.zeros(len(vote.weights))
        return VoteParts(none, none, vote.prior[at], 0.0)
    shrink = max(vote.shrink, 1e-6)
    weights = vote.weights * _counted(query)[:, at]
    support = weights.sum() + shrink
    centred = np.where(weights > 0.0, vote.gains[:, at] - vote.levels, 0.0)
    doubted = _doubt(query, vote.weights @ _counted(query) + shrink)[at]
    return VoteParts(
        weights / support,
        weights * centred / support,
        float(shrink * vote.prior[at] / support),
        float(doubted),
    )


def doubt_of_unrun(query: Query) -> float:
    """Penalty (log gain) of a configuration that no neighbour ran; 0 if the neighbours are not
    used."""
    if not _trusted(query) or not query.vote.configs:
        return 0.0
    return float(_doubt(query, np.array([max(query.vote.shrink, 1e-6)]))[0])


def _counted(query: Query) -> Floats:
    """Trust float64[k,c] of each vote relative to one of this machine; 0 where it did not run."""
    ran = np.isfinite(query.vote.gains)
    return np.where(ran, query.vote.trust, 0.0) if query.vote.trust.size else ran.astype(np.float64)


def _trusted(query: Query) -> bool:
    return bool(len(query.vote.weights)) and not np.isinf(query.vote.shrink)


def _doubt(query: Query, support: Floats) -> Floats:
    centred = query.vote.gains - query.vote.levels[:, None]
    return doubt(centred, query.vote.weights, support, query.vote.prior, query.vote.shrink)


def _set_of(query: Query, score: Floats) -> list[int]:
    """Positions of a set that greedily maximises the weighted mean of its best centred gain. The
    prior is one more voter, and so is each other machine, since this one may resemble it."""
    ran = np.isfinite(query.vote.gains)
    votes = np.where(ran, query.vote.gains - query.vote.levels[:, None], score)
    votes = np.vstack(
        [votes, query.vote.prior, *(score + off for off in query.vote.machine_effects)]
    )
    machines = np.full(len(query.vote.machine_effects), 1.0)
    if len(machines):
        machines *= query.vote.weights.sum() / len(machines) / (1.0 + query.vote.origin.here)
    weights = np.concatenate([query.vote.weights, [query.vote.shrink], machines])
    chosen = [int(np.argmax(score))]
    while len(chosen) < min(_SET, len(score)):
        best = votes[:, chosen].max(axis=1)
        extra = weights @ np.maximum(votes - best[:, None], 0.0) / weights.sum()
        extra[chosen] = -np.inf
        chosen.append(int(np.lexsort((-score, -extra))[0]))
    return chosen


def _scattered(query: Query) -> bool:
    """True if the neighbours' gains are magnitudes; where only winners were recorded they are mere
    marks."""
    gains = query.vote.gains[np.isfinite(query.vote.gains)]
    marks = not query.vote.knows_default and np.isin(gains, (0.0, WINNER_GAIN)).all()
    return bool(gains.size) and not marks


def _better_by_votes(query: Query, answer: Config) -> tuple[Floats, Floats]:
    """Weighted mean float64[c] of max(log gain over the answer, 0) among the neighbours that ran
    both, and the share float64[c] of neighbours with a gain; the platform's average is one more
    voter, as in the vote. nan where no neighbour ran both."""
    at = position(query.vote.configs, answer)
    if at < 0 or math.isinf(query.vote.shrink):
        unknown = np.full(len(query.vote.configs), np.nan)
        return unknown, unknown
    beside = query.vote.gains - query.vote.gains[:, [at]]
    average = query.vote.prior - query.vote.prior[at]
    there = np.isfinite(beside)
    prior = max(query.vote.shrink, 1e-6)
    support = query.vote.weights @ there + prior

    def mean(of_each: Floats, of_all: Floats) -> Floats:
        total: Floats = query.vote.weights @ np.where(there, of_each, 0.0) + prior * of_all
        return np.where(there.any(axis=0), total / support, np.nan)

    chance = mean((beside > 0.0).astype(np.float64), (average > 0.0).astype(np.float64))
    return mean(np.maximum(beside, 0.0), np.maximum(average, 0.0)), chance


def _pooled(query: Query, off: Floats) -> Floats:
    """Weighted root mean square float64[c] of residuals float64[k,c], shrunk to that over all
    configurations, which counts like the platform's average in the vote and at least one
    neighbour."""
    there = np.isfinite(off)
    square = np.where(there, off, 0.0) ** 2
    mass = query.vote.weights @ there
    all_of_them = float(query.vote.weights @ square.sum(axis=1)) / max(float(mass.sum()), 1e-12)
    if math.isinf(query.vote.shrink):
        return np.full(off.shape[1], math.sqrt(all_of_them))
    prior = max(query.vote.shrink, float(query.vote.weights.mean()))
    mean = (query.vote.weights @ square + prior * all_of_them) / (mass + prior)
    return np.asarray(np.sqrt(mean))
