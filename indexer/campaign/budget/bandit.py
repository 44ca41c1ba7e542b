"""The bandit over 25 fixed matrices: MAB-25 of the data-selection paper, Eq. 5.

Fixed by the paper: 25 arms, five of each cluster, 5 schedules a time, the bound. Ours: five
clusters, the arms nearest to their centres, 5 schedules of every arm at first, five arms a round,
and the reward: each schedule bought earns its matrix 1 - (ordered pair accuracy), for the paper
wants those that the model orders badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from indexer.campaign.budget.sampler import LEAST, Allocation, BudgetState, Round

__all__ = ["Bandit"]


@dataclass(frozen=True, slots=True)
class Bandit:
    """`most` arms; a round gives the `draws` best of them `step` samples each, and no more than the
    budget is."""

    most: int = 25
    step: int = 5
    draws: int = 5
    least: int = LEAST
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

        A round that could not be judged counts as ordered by chance, 0.5.
        """
        earned = np.zeros(len(counts))
        for one in rounds:
            opa = dict(one.rewards)
            for share in one.shares:
                earned[share.matrix] += len(share.configs) * (1 - opa.get(share.matrix, 0.5))
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = earned / counts + np.sqrt(2 * np.log(counts.sum()) / counts)
        return np.where(counts > 0, bound, np.inf)
