"""Policies that need no results: fixed choices of matrices, and equal shares of the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embeddb.learning.samples import ROW_BINS
from indexer.campaign.budget.sampler import LEAST, Allocation, BudgetState, Pool

#: Matrices of a bin from which the one with the farthest sparsity from the chosen ones is taken.
_AMONG = 5

Choose = Callable[[Pool, int, np.random.Generator], list[int]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Equal shares of the budget for `most` matrices, or for fewer with two samples each; samples
    that a small space cannot use go to the others. A matrix on which everything fails is closed."""

    choose: Choose
    most: int
    judged = False

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        if ledger.rounds:
            used = np.flatnonzero(ledger.counts).tolist()
        else:
            count = min(self.most, ledger.budget // LEAST, len(ledger.counts))
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
    """In turn one matrix of each bin of row counts: of a few random ones, the one whose density is
    farthest from those chosen."""
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
                chosen.append(among[int(np.argmax(gaps))])
                members.remove(chosen[-1])
    return chosen


#: Matrices of the first round of `Spread`, and the fewest of all: if everything fails there,
#: sampling ends.
_FIRST = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """`each` samples of as many matrices as the budget allows, chosen as by `binned`, and equal
    shares of fewer matrices. A larger budget adds to the samples of a smaller one."""

    each: int = 10
    judged = False

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        counts = ledger.counts
        used = np.flatnonzero(counts).tolist()
        every = binned(ledger.pool, len(counts), rng)
        order = [*used, *(at for at in every if not counts[at])]
        most = max(_FIRST, ledger.budget // self.each)
        open_ = [at for at in order if at not in ledger.closed][:most]
        if not open_:
            return []
        if not ledger.rounds:
            each = max(LEAST, min(self.each, ledger.budget // _FIRST))
            return [(at, each) for at in open_[:_FIRST]]
        target = math.ceil((ledger.left + int(counts[open_].sum())) / len(open_))
        return [(at, target - int(counts[at])) for at in open_ if counts[at] < target]
