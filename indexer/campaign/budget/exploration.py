"""Exploration-aware sampling: EA-10 and EA-25 of the data-selection paper, Eq. 3 and 4.

Fixed by the paper: the two equations, the bonus of 0.2, 10 schedules at first, one matrix of each
cluster, at most 10 or 25 matrices, a zero reward for matrices that were not drawn. Ours: five
clusters (its bandit takes five matrices from each of the clusters of 25), alpha, eta, the first
score, draws per round, and caps. At alpha = 0.5 the score would cancel out of Eq. 3; above it,
matrices that the model orders badly are drawn more often, as the text says. A matrix on which
everything failed is given up, and its place is free again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.campaign.budget.sampler import LEAST, Allocation, BudgetState, Round

__all__ = ["CLUSTERS", "Exploration"]

CLUSTERS = 5


@dataclass(frozen=True, slots=True)
class Exploration:
    """At most `most` matrices are bought from. A round draws `draws` of them, each for `step`
    samples or a budget that is less; none gets more than `cap` times an equal share of it."""

    most: int
    step: int = 10
    draws: int = 5
    alpha: float = 0.7
    eta: float = 0.3
    bonus: float = 0.2
    cap: float = 2.0
    least: int = LEAST
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
        return [(at, self._amount(ledger, at)) for at in drawn]

    def scores(self, rounds: Sequence[Round], count: int) -> NDArray[np.float64]:
        """s_M of Eq. 4, float64[r]: 0.5 at first; a matrix that a round did not draw has the
        reward 0 there, one that could not be judged keeps its score."""
        s = np.full(count, 0.5)
        for one in rounds:
            reward = np.zeros(count)
            unjudged = [share.matrix for share in one.shares]
            reward[unjudged] = s[unjudged]
            for matrix, given in one.rewards:
                reward[matrix] = given
            s = (1 - self.eta) * s + self.eta * reward
        return s

    def probabilities(self, s: NDArray[np.float64], cold: NDArray[np.bool_]) -> NDArray[np.float64]:
        """p_M of Eq. 3, float64[e], from scores [e] and whether a matrix is not used yet."""
        weight = np.exp(self.alpha * (1 - s) + (1 - self.alpha) * s + self.bonus * cold)
        p: NDArray[np.float64] = weight / weight.sum()
        return p

    def _amount(self, ledger: BudgetState, at: int) -> int:
        room = self._most_of_one(ledger) - int(ledger.counts[at])
        return min(self.step, room) if room > 0 else self.step

    def _most_of_one(self, ledger: BudgetState) -> int:
        return max(self.step, math.ceil(self.cap * ledger.budget / self.most))

    def _eligible(self, ledger: BudgetState, used: set[int], drawn: list[int]) -> list[int]:
        """Matrices in use that may get more, and while there is room for another matrix those of
        the clusters that have room: no cluster takes more than its part of `most`, unless the
        others have no more to give. The cap gives way where the budget could not be spent."""
        full = self._most_of_one(ledger)
        kept = sorted(used - ledger.closed - set(drawn))
        open_ = [at for at in kept if ledger.counts[at] < full]
        new = self._new(ledger, used)
        return open_ + new if open_ or new or drawn else kept

    def _new(self, ledger: BudgetState, used: set[int]) -> list[int]:
        active = used - ledger.failed
        if len(active) >= self.most:
            return []
        quota = math.ceil(self.most / len(ledger.pool.clusters))
        new = [[m for m in c if m not in used | ledger.closed] for c in ledger.pool.clusters]
        room = [len(active & set(c)) < quota for c in ledger.pool.clusters]
        within = [m for c, free in zip(new, room, strict=True) for m in c if free]
        return sorted(within or [m for c in new for m in c])
