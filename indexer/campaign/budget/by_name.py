"""The strategies by name, and the clusters each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from indexer.campaign.budget.bandit import Bandit
from indexer.campaign.budget.clusters import cluster
from indexer.campaign.budget.exploration import CLUSTERS, Exploration
from indexer.campaign.budget.fixed import Fixed, binned, central, drawn
from indexer.campaign.budget.sampler import SamplingPolicy

__all__ = ["STRATEGIES", "Strategy", "clusters_of", "strategy"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """`policy(most)` buys from at most `most` matrices (usually that many); `clusters(most)` is
    how many clusters it needs, 0 for none."""

    policy: Callable[[int], SamplingPolicy]
    most: int
    clusters: Callable[[int], int]


STRATEGIES = {
    "ea10": Strategy(Exploration, 10, lambda most: min(CLUSTERS, most)),
    "ea25": Strategy(Exploration, 25, lambda most: min(CLUSTERS, most)),
    "mab25": Strategy(Bandit, 25, lambda most: min(CLUSTERS, most)),
    "binned": Strategy(lambda most: Fixed(binned, most), 5, lambda most: 0),
    "random": Strategy(lambda most: Fixed(drawn, most), 25, lambda most: 0),
    "kmeans": Strategy(lambda most: Fixed(central, most), 25, lambda most: most),
}


def strategy(name: str) -> Strategy:
    """Raises: UsageError if there is none of that name."""
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
    made = cluster(vectors, min(count, different), seed)
    return [made.members(at).tolist() for at in range(len(made.centres))]
