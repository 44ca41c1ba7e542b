"""k-means over embeddings and one representative per cluster: which matrices differ in kind.

The data selection paper (Section 3.1) clusters the embeddings of a large pool and measures
representatives of each cluster instead of a hand-made choice. It does not say how they are picked:
that a representative is the member nearest to its centre, the standardisation, and the starts
are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.index.vote import plain_metric

__all__ = ["Clusters", "cluster"]

#: Starts of which the best is kept, and the most rounds of each.
_STARTS, _ROUNDS = 8, 100
#: Distances computed at once: bounds the memory to 64 MB.
_BLOCK = 1 << 23

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """k clusters of n vectors, the largest first.

    Shapes: `labels` int64[n] cluster of each vector; `centres` float64[k,d] in the units of the
    vectors; `representatives` int64[k] position of the member nearest to the centre; `distances`
    float64[n] to the own centre, standardised.
    """

    labels: NDArray[np.int64]
    centres: Floats
    representatives: NDArray[np.int64]
    distances: Floats

    def members(self, at: int) -> NDArray[np.int64]:
        """Positions int64[size] of a cluster's members, nearest to the centre first: five of each
        cluster are the paper's arms. Ties by position."""
        mine = np.flatnonzero(self.labels == at)
        return mine[np.argsort(self.distances[mine], kind="stable")]

    def spread(self, at: int) -> float:
        """Root of the mean squared standardised distance of a cluster's members to its centre."""
        return float(np.sqrt(np.mean(self.distances[self.labels == at] ** 2)))


def cluster(vectors: NDArray[np.float32], k: int, seed: int) -> Clusters:
    """k-means over float32[n,d], every feature standardised first. Deterministic by seed.

    Plain Lloyd in float64: libraries sample large inputs, split empty clusters by chance, or add
    up in the order in which threads finish.

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
    metric = plain_metric(vectors)
    x = metric.standardised(vectors)
    rng = np.random.default_rng(seed)
    tried = [_lloyd(x, _start(x, k, rng)) for _ in range(_STARTS)]
    labels, centres = min(tried, key=lambda found: float(_to_own(x, *found).sum()))
    distances = np.sqrt(_to_own(x, labels, centres))
    nearest = np.lexsort((distances, labels))
    sizes = np.bincount(labels, minlength=k)
    representatives = nearest[np.cumsum(sizes) - sizes]
    order = np.lexsort((representatives, -sizes))
    rank = np.argsort(order)
    return Clusters(
        rank[labels],
        centres[order] * metric.scale + metric.center,
        representatives[order],
        distances,
    )


def _start(x: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Centres [k,d] by k-means++: each next one a vector drawn by its squared distance to them."""
    centres = [x[int(rng.integers(len(x)))]]
    nearest = _square(x - centres[0])
    while len(centres) < k:
        # At least k vectors differ, so one of them is away from every centre; rounding may hide it.
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
    """An empty cluster takes the vector that is farthest from its own centre."""
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
