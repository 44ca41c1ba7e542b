"""Nearest-neighbour transfer: what was fast on similar patterns, relative to their defaults.

The vote is `embeddb.index.vote`'s; the similarity idea is transfer tuning's (Performance
Embeddings, Section 3). Voting with gains instead of copying the nearest neighbour's winner keeps
one odd neighbour from deciding, and lets the default take part as the configuration it is.

The first proposal has the best score. The following ones are chosen as a set: each adds most to
the expected best-of-set gain over the neighbours, so that five measurements cover what the
neighbours disagree on instead of trying five variants of one schedule.
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
from embeddb.index.run_matrix import WINNER_GAIN
from embeddb.index.vote import doubt
from embeddb.ranking.posterior import Posterior, over_default_of
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Floats, Ranker, between, default_candidate
from embeddb.ranking.rankers.order import behind_default, ran_first, settled
from embeddb.ranking.recommendation import Candidate

#: How many proposals are chosen as a set; after them the order is by score alone.
_SET = 8
#: With fewer neighbours that ran it, their scatter gives no interval.
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

    @cached_property
    def voters(self) -> NDArray[np.int64]:
        """int64[u] how many neighbours ran each."""
        return self._voted[1]

    @cached_property
    def _voted(self) -> tuple[Floats, NDArray[np.int64]]:
        if not self.query.vote.configs:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        return scores(self.query)

    @cached_property
    def promised(self) -> Floats:
        """float64[u] predicted log gain over the default: the vote's, corrected by the mean error
        of held-out first choices, for the best of many estimates is mostly a lucky one. The
        correction shrinks a gain to none at most: what the vote prefers to the default is not
        predicted to be slower because other machines' answers were."""
        query = self.query
        gain: Floats = self.score - _default_score(query, self.score)
        default = np.array(
            [config == query.default for config in query.vote.configs], dtype=np.bool_
        )
        corrected = np.where(gain > 0.0, np.maximum(gain + self.bias, 0.0), gain + self.bias)
        return np.where(default, 0.0, corrected)

    @property
    def bias(self) -> float:
        """The correction of a promised log gain; 0 where too few answers were judged."""
        known = self.query.vote.quality.bias
        return known if math.isfinite(known) else 0.0

    def candidates(self) -> Iterator[Candidate]:
        query, score = self.query, self.score
        if not query.vote.configs:
            yield default_candidate(query)
            return
        gain = score - _default_score(query, score)
        default = (
            query.vote.configs.index(query.default) if query.default in query.vote.configs else -1
        )
        order = settled(query, query.vote.configs, self._order(), score)
        order = ran_first(query, query.vote.configs, order, score)
        order = behind_default(order, score, default, query.vote.quality.guard)
        # What was not believed, or cannot be told from the first, has no better score.
        most = float(gain[order[0]])
        for at in order.tolist():
            yield self._candidate(at, min(float(gain[at]), most))

    def _order(self) -> list[int]:
        """Positions, best proposal first: the best score, a set that complements it, then by the
        promised gain; equal ones keep the configurations' order."""
        first = int(np.argmax(self.score))
        if _trusted(self.query):
            chosen = _set_of(self.query, self.score)
        else:
            cover = [int(at) for at in self.query.vote.cover if at != first]
            chosen = [first, *cover[: _SET - 1]]
        rest = np.argsort(-self.promised, kind="stable").tolist()
        return chosen + [at for at in rest if at not in chosen]

    def _candidate(self, at: int, gain: float) -> Candidate:
        query, voters, promised = self.query, int(self.voters[at]), float(self.promised[at])
        low, high = self._interval(at)
        return Candidate(
            config=dict(query.vote.configs[at]),
            score=-gain,
            origin=f"{voters} neighbours" if voters else "platform average",
            expected_gain=math.exp(promised) if query.vote.knows_default else None,
            gain_low=low,
            gain_high=high,
            voters=voters,
        )

    def _interval(self, at: int) -> tuple[float | None, float | None]:
        """The 10th and 90th percentile about the promised gain: by how far answers were off that
        were held out; where too few were, by how far the neighbours scatter about it. None where
        fewer than three neighbours tell."""
        query, quality = self.query, self.query.vote.quality
        if query.vote.configs[at] == query.default:
            return between(query, 0.0, 0.0)
        promised = float(self.promised[at])
        if math.isfinite(quality.low) and query.vote.knows_default:
            voted = float(self.score[at] - _default_score(query, self.score))
            low, high = min(voted + quality.low, promised), max(voted + quality.high, promised)
            return math.exp(low), math.exp(high)
        if self.voters[at] < _FEWEST_SCATTERED:
            return None, None
        return between(query, promised, float(self.spread[at]))

    @cached_property
    def spread(self) -> Floats:
        """float64[u] standard deviation of the neighbours' gains about the promised ones; nan where
        none ran, or only winners were recorded."""
        vote = self.query.vote
        if not _scattered(self.query):
            return np.full(self.score.size, np.nan)
        if vote.knows_default:
            return _pooled(self.query, vote.gains - self.promised)
        return _pooled(self.query, vote.gains - vote.levels[:, None] - self.score)

    def posterior(self, answer: Config) -> Posterior:
        query = self.query
        found = over_default_of(query, query.vote.configs, self.promised, self.spread)
        better, chance = _better_by_votes(query, answer)
        return replace(found, apart=self._apart(answer), better=better, chance=chance)

    def _apart(self, answer: Config) -> Floats:
        """float64[u] standard deviation of the difference to the answer on the same neighbour, in
        which much of the scatter cancels."""
        gains, score = self.query.vote.gains, self.score
        if not _scattered(self.query) or answer not in self.configs:
            return self.spread
        at = self.configs.index(answer)
        beside = gains - gains[:, [at]] - (score - score[at])
        return _pooled(self.query, beside) if np.isfinite(beside).any() else self.spread


def scores(query: Query) -> tuple[Floats, NDArray[np.int64]]:
    """The vote float64[c] (centred log gain, higher is better; cautious where few neighbours ran a
    configuration) and voters int64[c]."""
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
    """Of the configuration at a position of the vote; they add up to its score in `scores`."""
    vote = query.vote
    if not _trusted(query):
        return VoteParts(
            np.zeros(len(vote.weights)), np.zeros(len(vote.weights)), vote.prior[at], 0.0
        )
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
    """What a configuration that no neighbour ran is doubted by, in log gain; 0 where the neighbours
    are not asked."""
    if not _trusted(query) or not query.vote.configs:
        return 0.0
    return float(_doubt(query, np.array([max(query.vote.shrink, 1e-6)]))[0])


def _counted(query: Query) -> Floats:
    """float64[k,c]: what each vote counts beside one of this machine's; 0 where it did not run."""
    ran = np.isfinite(query.vote.gains)
    return np.where(ran, query.vote.trust, 0.0) if query.vote.trust.size else ran.astype(np.float64)


def _trusted(query: Query) -> bool:
    return bool(len(query.vote.weights)) and not np.isinf(query.vote.shrink)


def _doubt(query: Query, support: Floats) -> Floats:
    centred = query.vote.gains - query.vote.levels[:, None]
    return doubt(centred, query.vote.weights, support, query.vote.prior, query.vote.shrink)


def _default_score(query: Query, score: Floats) -> float:
    """The default's own score: gains are told relative to it."""
    for at, config in enumerate(query.vote.configs):
        if config == query.default:
            return float(score[at])
    return 0.0


def _set_of(query: Query, score: Floats) -> list[int]:
    """Greedy on the weighted mean of the best centred gain; the prior is one more voter, and so is
    each known machine: this one may turn out to be like it."""
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
    """Whether the neighbours' gains are magnitudes: where only winners were recorded a gain is a
    mark that it won, not by how much."""
    gains = query.vote.gains[np.isfinite(query.vote.gains)]
    marks = not query.vote.knows_default and np.isin(gains, (0.0, WINNER_GAIN)).all()
    return bool(gains.size) and not marks


def _better_by_votes(query: Query, answer: Config) -> tuple[Floats, Floats]:
    """Over the neighbours that ran both, the weighted mean float64[c] of how much faster each was
    than the answer, never less than 0, and the share float64[c] of those where it was; the
    platform's average is one more voter, as in the vote."""
    if answer not in query.vote.configs or math.isinf(query.vote.shrink):
        unknown = np.full(len(query.vote.configs), np.nan)
        return unknown, unknown
    at = query.vote.configs.index(answer)
    beside = query.vote.gains - query.vote.gains[:, [at]]
    average = query.vote.prior - query.vote.prior[at]
    there = np.isfinite(beside)
    prior = max(query.vote.shrink, 1e-6)
    support = query.vote.weights @ there + prior

    def mean(of_each: Floats, of_all: Floats) -> Floats:
        told: Floats = query.vote.weights @ np.where(there, of_each, 0.0) + prior * of_all
        return told / support

    chance = mean((beside > 0.0).astype(np.float64), (average > 0.0).astype(np.float64))
    return mean(np.maximum(beside, 0.0), np.maximum(average, 0.0)), chance


def _pooled(query: Query, off: Floats) -> Floats:
    """Weighted root mean square of residuals float64[k,c]; that over all configurations counts as
    many more neighbours as the platform's average does in the vote, and at least one."""
    there = np.isfinite(off)
    square = np.where(there, off, 0.0) ** 2
    mass = query.vote.weights @ there
    all_of_them = float(query.vote.weights @ square.sum(axis=1)) / max(float(mass.sum()), 1e-12)
    if math.isinf(query.vote.shrink):
        return np.full(off.shape[1], math.sqrt(all_of_them))
    prior = max(query.vote.shrink, float(query.vote.weights.mean()))
    found: Floats = np.sqrt((query.vote.weights @ square + prior * all_of_them) / (mass + prior))
    return found
