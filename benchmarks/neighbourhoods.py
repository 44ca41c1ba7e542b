"""Whether what an embedding puts side by side performs alike: the performance similarity of
"Performance Embeddings" (Section 4, Table 1).

Of every subject asked about, a metric's deviation over its mean among it and its nearest neighbours
(the paper: three, so four values), averaged over the subjects. Ours, because the paper does not
state it: columns are standardised before distances are taken, deviations are those of the whole
(times sqrt(4/3) they are those of a sample), where all values are 0 nothing varies, and neighbours
are of other groups than the subject.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.index.vote import plain_metric

__all__ = ["NEIGHBOURS", "chosen_by_chance", "clustered_error", "local_variation", "nearest_others"]

NEIGHBOURS = 3
#: Rows whose distances to all others are taken together.
_AT_ONCE = 256

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def nearest_others(
    vectors: NDArray[np.float32], groups: NDArray[np.str_], asked: Places, k: int = NEIGHBOURS
) -> Places:
    """int64[q,k]: of each place of `asked` int64[q] the nearest by `vectors` float32[p,d] among
    those of other `groups` str[p], nearest first; of equals the first.

    Raises: ValueError where a group leaves fewer than k others.
    """
    points = plain_metric(vectors).apply(vectors).astype(np.float64)
    squares = np.square(points).sum(axis=1)
    found = np.empty((len(asked), k), dtype=np.int64)
    for start in range(0, len(asked), _AT_ONCE):
        rows = asked[start : start + _AT_ONCE]
        apart = squares - 2 * points[rows] @ points.T
        apart[groups[rows][:, None] == groups] = np.inf
        nearest = np.argsort(apart, axis=1, kind="stable")[:, :k]
        if not np.isfinite(np.take_along_axis(apart, nearest, axis=1)).all():
            raise ValueError(f"fewer than {k} of other groups")
        found[start : start + len(rows)] = nearest
    return found


def chosen_by_chance(
    groups: NDArray[np.str_], asked: Places, rng: np.random.Generator, k: int = NEIGHBOURS
) -> Places:
    """int64[q,k]: any k of other groups, each as likely. Raises: ValueError for fewer than k."""
    others = {name: np.flatnonzero(groups != name) for name in np.unique(groups[asked])}
    rows = [rng.choice(others[groups[at]], k, replace=False) for at in asked.tolist()]
    return np.array(rows, dtype=np.int64).reshape(len(asked), k)


def local_variation(metric: Floats, asked: Places, neighbours: Places) -> Floats:
    """float64[q]: the coefficient of variation of `metric` float64[p], from 0 up, among each place
    of `asked` int64[q] and its `neighbours` int64[q,k]; 0 where all are 0, nan where one is."""
    values = metric[np.concatenate([asked[:, None], neighbours], axis=1)]
    mean = values.mean(axis=1)
    found: Floats = values.std(axis=1) / np.where(mean == 0, 1.0, mean)
    return found


def clustered_error(values: Floats, groups: NDArray[np.str_]) -> float:
    """The standard error of the mean of `values` float64[q], where those of one of `groups` str[q]
    stand or fall together; nan for a single group."""
    names, member = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        return math.nan
    sums = np.bincount(member, values - values.mean())
    return float(np.sqrt(np.square(sums).sum() * len(names) / (len(names) - 1)) / len(values))
