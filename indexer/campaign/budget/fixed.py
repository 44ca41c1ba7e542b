"""Choices that learn nothing on the way: the base lines of the data-selection paper.

`binned` is COGNATE's (Section 4.1): matrices balanced over five bins of rows and spread over
sparsity, 5 of them with 100 configurations each. `random` takes matrices at random, `kmeans` the
representatives of as many clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from indexer.campaign.budget.sampler import LEAST, Allocation, BudgetState, Pool
from indexer.training.cost_model.samples import ROW_BINS

__all__ = ["Fixed", "binned", "central", "drawn"]

#: Matrices of a bin of which the one is taken whose sparsity is farthest from those chosen.
_AMONG = 5

Choose = Callable[[Pool, int, np.random.Generator], list[int]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Equal shares of the budget for `most` matrices (fewer if that would leave one with less than
    two samples); what a small space leaves over goes to the others. Where everything fails on a
    matrix, nothing more is bought of it."""

    choose: Choose
    most: int
    least: int = LEAST
    judged = False

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        if ledger.rounds:
            used = np.flatnonzero(ledger.counts).tolist()
        else:
            count = min(self.most, ledger.budget // self.least, len(ledger.counts))
            used = self.choose(ledger.pool, count, rng)
        open_ = [at for at in used if at not in ledger.closed]
        if not open_:
            return []
        share, rest = divmod(ledger.left, len(open_))
        wanted = [(at, share + (turn < rest)) for turn, at in enumerate(open_)]
        return [(at, count) for at, count in wanted if count]


def drawn(pool: Pool, count: int, rng: np.random.Generator) -> list[int]:
    """Matrices at random."""
    return [int(at) for at in rng.permutation(len(pool.sizes))[:count]]


def central(pool: Pool, count: int, rng: np.random.Generator) -> list[int]:
    """The representative of each cluster, of the largest first."""
    return [int(members[0]) for members in pool.clusters[:count]]


def binned(pool: Pool, count: int, rng: np.random.Generator) -> list[int]:
    """In turn one matrix of each bin of rows; of a few drawn from it, the one whose share of
    non-zeros is farthest from those chosen."""
    m, n, nnz = pool.sizes.T.astype(np.float64)
    density = np.log((nnz + 1) / np.maximum(m * n, 1))
    bins = np.digitize(m, ROW_BINS)
    left = {int(at): rng.permutation(np.flatnonzero(bins == at)).tolist() for at in np.unique(bins)}
    chosen: list[int] = []
    while len(chosen) < count and any(left.values()):
        for members in left.values():
            if members and len(chosen) < count:
                among = members[:_AMONG]
                gaps = [np.abs(density[at] - density[chosen]).min(initial=np.inf) for at in among]
                members.remove(found := among[int(np.argmax(gaps))])
                chosen.append(found)
    return chosen
