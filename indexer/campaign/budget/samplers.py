"""Samplers by name: policies that choose the next samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.index.vote import plain_metric
from indexer.campaign.budget.designs import Fixed, Spread, binned, central, drawn
from indexer.campaign.budget.improvement import Improvement
from indexer.campaign.budget.sampler import (
    Allocation,
    BudgetState,
    Round,
    SamplingPolicy,
)


@dataclass(frozen=True, slots=True)
class Bandit:
    """Upper confidence bounds over `most` arms: a round gives the `draws` best of them `step`
    samples each, within the budget."""

    most: int = 25
    step: int = 5
    draws: int = 5
    judged = True

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        if not ledger.rounds:
            turns = chain.from_iterable(zip_longest(*ledger.pool.clusters))
            arms = [at for at in turns if at is not None]
            step = min(self.step, ledger.budget)
            return [(at, step) for at in arms[: min(self.most, ledger.budget // step)]]
        arms = [share.matrix for share in ledger.rounds[0].shares]
        bound = self.bounds(ledger.rounds, ledger.counts)
        open_ = [at for at in arms if at not in ledger.closed]
        best = sorted(open_, key=lambda at: -bound[at])[: self.draws]
        return [(at, self.step) for at in best]

    def bounds(self, rounds: Sequence[Round], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """UCB(M) of Eq. 5, float64[r], from samples of each matrix [r]; infinite without any.

        R_M adds up 1 - accuracy for each sample, our reading of "poor ordering". A matrix without a
        reward in a round counts as ordered by chance, 0.5.
        """
        earned = np.zeros(len(counts))
        for one in rounds:
            opa = dict(one.rewards)
            for share in one.shares:
                earned[share.matrix] += len(share.configs) * (1 - opa.get(share.matrix, 0.5))
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = earned / counts + np.sqrt(2 * np.log(counts.sum()) / counts)
        return np.where(counts > 0, bound, np.inf)


CLUSTERS = 5


@dataclass(frozen=True, slots=True)
class Exploration:
    """Samples of at most `most` matrices. A round draws `draws` of them for `step` samples each,
    within the budget; none gets more than `cap` times an equal share."""

    most: int
    step: int = 10
    draws: int = 5
    alpha: float = 0.7
    eta: float = 0.3
    bonus: float = 0.2
    cap: float = 2.0
    judged = True

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        if not ledger.rounds:
            first = [int(rng.choice(members)) for members in ledger.pool.clusters]
            step = min(self.step, ledger.budget)
            return [(at, step) for at in first[: min(self.most, ledger.budget // step)]]
        scores = self.scores(ledger.rounds, len(ledger.counts))
        used = set(np.flatnonzero(ledger.counts).tolist())
        drawn: list[int] = []
        for _ in range(self.draws):
            open_ = self._eligible(ledger, used | set(drawn), drawn)
            if not open_:
                break
            cold = np.array([at not in used for at in open_])
            p = self.probabilities(scores[open_], cold)
            drawn.append(open_[int(rng.choice(len(open_), p=p))])
        room = {at: self._most_of_one(ledger) - int(ledger.counts[at]) for at in drawn}
        return [(at, min(self.step, room[at]) if room[at] > 0 else self.step) for at in drawn]

    def scores(self, rounds: Sequence[Round], count: int) -> NDArray[np.float64]:
        """s_M of Eq. 4, float64[r]: 0.5 at first; in each round a matrix that was not drawn has the
        reward 0, one without a reward keeps its score."""
        s = np.full(count, 0.5)
        for one in rounds:
            reward = np.zeros(count)
            unjudged = [share.matrix for share in one.shares]
            reward[unjudged] = s[unjudged]
            for matrix, accuracy in one.rewards:
                reward[matrix] = accuracy
            s = (1 - self.eta) * s + self.eta * reward
        return s

    def probabilities(self, s: NDArray[np.float64], cold: NDArray[np.bool_]) -> NDArray[np.float64]:
        """p_M of Eq. 3, float64[e], from scores [e] and a mask [e] of matrices not used yet."""
        weight = np.exp(self.alpha * (1 - s) + (1 - self.alpha) * s + self.bonus * cold)
        p: NDArray[np.float64] = weight / weight.sum()
        return p

    def _most_of_one(self, ledger: BudgetState) -> int:
        return max(self.step, math.ceil(self.cap * ledger.budget / self.most))

    def _eligible(self, ledger: BudgetState, used: set[int], drawn: list[int]) -> list[int]:
        """Used matrices below the cap, and while there is room for another matrix, new ones of the
        clusters below their part of `most`, or of any if these have none left. The cap is ignored
        if the budget could not be spent otherwise."""
        full = self._most_of_one(ledger)
        used_open = sorted(used - ledger.closed - set(drawn))
        below_cap = [at for at in used_open if ledger.counts[at] < full]
        new = self._new(ledger, used)
        return below_cap + new if below_cap or new or drawn else used_open

    def _new(self, ledger: BudgetState, used: set[int]) -> list[int]:
        active = used - ledger.failed
        if len(active) >= self.most:
            return []
        quota = math.ceil(self.most / len(ledger.pool.clusters))
        new = [[m for m in c if m not in used | ledger.closed] for c in ledger.pool.clusters]
        room = [len(active & set(c)) < quota for c in ledger.pool.clusters]
        within = [m for c, free in zip(new, room, strict=True) for m in c if free]
        return sorted(within or [m for c in new for m in c])


#: Number of starts, of which the best counts, and most rounds of each.
_STARTS, _ROUNDS = 8, 100
#: Distances computed at once: bounds the memory to 64 MB.
_BLOCK = 1 << 23

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Positions int64[size] of the members, nearest to the centre first: five of each cluster are
    the paper's arms. Ties by position. `spread` is the root of their mean squared standardised
    distance to the centre."""

    members: NDArray[np.int64]
    spread: float


def cluster(vectors: NDArray[np.float32], k: int, seed: int) -> list[Cluster]:
    """k-means over float32[n,d], every feature standardised first; the largest cluster first.
    Deterministic by seed.

    Plain Lloyd in float64: libraries sample large inputs, split empty clusters randomly, or sum in
    the order in which threads finish.

    Raises: UsageError if k < 1, there are fewer than k different vectors, or one is not finite.
    """
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise UsageError("vectors to cluster must be finite and of one length")
    different = len(np.unique(vectors, axis=0))
    if not 1 <= k <= different:
        raise UsageError(
            f"{k} clusters of {len(vectors)} patterns with {different} different vectors",
            hint=f"ask for 1 to {different}" if different else "nothing is embedded: run `embed`",
        )
    x = plain_metric(vectors).standardised(vectors)
    rng = np.random.default_rng(seed)
    tried = [_lloyd(x, _start(x, k, rng)) for _ in range(_STARTS)]
    labels, centres = min(tried, key=lambda start: float(_to_own(x, *start).sum()))
    distances = np.sqrt(_to_own(x, labels, centres))
    clusters = []
    for label in range(k):
        mine = np.flatnonzero(labels == label)
        nearest = mine[np.argsort(distances[mine], kind="stable")]
        clusters.append(Cluster(nearest, float(np.sqrt(np.mean(distances[mine] ** 2)))))
    return sorted(clusters, key=lambda one: (-len(one.members), one.members[0]))


def _start(x: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Centres [k,d] by k-means++: each next one is drawn by its squared distance to the others."""
    centres = [x[int(rng.integers(len(x)))]]
    nearest = _square(x - centres[0])
    while len(centres) < k:
        # At least k vectors differ, so the total is positive except for rounding.
        total = nearest.sum()
        share = nearest / total if total > 0 else np.full(len(x), 1 / len(x))
        centres.append(x[int(rng.choice(len(x), p=share))])
        nearest = np.minimum(nearest, _square(x - centres[-1]))
    return np.array(centres)


def _lloyd(x: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Labels [n], none of them unused, and centres [k,d] that are their means."""
    labels = _filled(x, _nearest(x, centres), centres)
    for _ in range(_ROUNDS):
        centres = _means(x, labels, len(centres))
        moved = _filled(x, _nearest(x, centres), centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels, _means(x, labels, len(centres))


def _nearest(x: Floats, centres: Floats) -> NDArray[np.int64]:
    """Position of the nearest centre, int64[n]; ties by position."""
    step = max(1, _BLOCK // len(centres))
    half = 0.5 * _square(centres)
    parts = [
        np.argmin(half - x[at : at + step] @ centres.T, axis=1) for at in range(0, len(x), step)
    ]
    return np.concatenate(parts)


def _filled(x: Floats, labels: NDArray[np.int64], centres: Floats) -> NDArray[np.int64]:
    """Labels in which each empty cluster takes the vector farthest from its own centre."""
    labels = labels.copy()
    far = _to_own(x, labels, centres)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0):
        shared = np.bincount(labels, minlength=len(centres))[labels] > 1
        taken = int(np.argmax(np.where(shared, far, -1.0)))
        labels[taken], far[taken] = empty, 0.0
    return labels


def _means(x: Floats, labels: NDArray[np.int64], k: int) -> Floats:
    sums = np.zeros((k, x.shape[1]))
    np.add.at(sums, labels, x)
    means: Floats = sums / np.bincount(labels, minlength=k)[:, None]
    return means


def _to_own(x: Floats, labels: NDArray[np.int64], centres: Floats) -> Floats:
    """Squared distances float64[n] to the centre of the own cluster."""
    return _square(x - centres[labels])


def _square(x: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", x, x)
    return squares


class Strategy(NamedTuple):
    """A policy and the number of clusters that it needs."""

    policy: SamplingPolicy
    clusters: int = 0


STRATEGIES = {
    "improvement": Strategy(Improvement()),
    "ea10": Strategy(Exploration(10), CLUSTERS),
    "ea25": Strategy(Exploration(25), CLUSTERS),
    "mab25": Strategy(Bandit(25), CLUSTERS),
    "binned": Strategy(Fixed(binned, 5)),
    "random": Strategy(Fixed(drawn, 25)),
    "spread": Strategy(Spread()),
    "kmeans": Strategy(Fixed(central, 25), clusters=25),
}


def strategy(name: str) -> Strategy:
    """A strategy by name. Raises: UsageError for an unknown one."""
    if name not in STRATEGIES:
        raise UsageError(f"no strategy {name!r}", hint=f"one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def clusters_of(vectors: NDArray[np.float32], count: int, seed: int) -> list[list[int]]:
    """`count` clusters of vectors float32[r,d], or as many as there are different ones: positions
    of the members, nearest to the centre first; the largest cluster first.

    Raises: UsageError for vectors that are not finite.
    """
    different = len(np.unique(vectors, axis=0)) if len(vectors) else 0
    if not count or not different:
        return []
    return [one.members.tolist() for one in cluster(vectors, min(count, different), seed)]
