"""Exact nearest-neighbour search over the vectors of one partition: every distance, then a sort."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError, UsageError


class VectorIndex:
    """Immutable index of distinct `ids` and finite `vectors` float32[n,d] (copied).

    Neighbours are ordered by (distance, id), also where the cut at k goes through a tie, and never
    padded: all queries get min(k, ids left after `exclude`) of them. Of a few thousand vectors a
    search takes less time than an import of FAISS.

    Raises: UsageError for shapes that do not fit, InputError for an id given twice or a vector
    that is not finite; the message names the id.
    """

    def __init__(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.ids = tuple(ids)
        self.vectors = np.array(vectors, dtype=np.float32, order="C")
        if self.vectors.ndim != 2 or self.vectors.shape[1] < 1:
            raise UsageError(f"an index needs vectors of shape [n, d], not {self.vectors.shape}")
        count, self.dim = self.vectors.shape
        if len(self.ids) != count:
            raise UsageError(f"{len(self.ids)} ids for {count} vectors")
        self._row = {name: row for row, name in enumerate(self.ids)}
        if len(self._row) != count:
            twice = next(n for row, n in enumerate(self.ids) if self._row[n] != row)
            raise InputError(f"id {twice!r} is given twice", where="index")
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        if bad.size:
            raise InputError(f"the vector of {self.ids[bad[0]]!r} is not finite", where="index")
        #: Position of each id in sorted order, which breaks ties.
        self._rank = np.empty(count, dtype=np.int64)
        self._rank[sorted(range(count), key=self.ids.__getitem__)] = np.arange(count)

    def search(
        self, queries: NDArray[np.float32], k: int, *, exclude: Collection[str] = ()
    ) -> tuple[list[list[str]], NDArray[np.float32]]:
        """The k nearest ids of each query float32[q,d] and their L2 distances float32[q,k'].

        Ids in `exclude` never appear; those that are not indexed are ignored.
        Raises: UsageError for k < 1 or queries of another shape, InputError for a query that is
        not finite.
        """
        points = np.ascontiguousarray(queries, dtype=np.float32)
        if points.ndim != 2 or points.shape[1] != self.dim:
            raise UsageError(f"queries of shape {points.shape}, not [q, {self.dim}]")
        if k < 1:
            raise UsageError(f"cannot search for {k} neighbours")
        if not np.isfinite(points).all():
            row = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
            raise InputError(f"query {row} is not finite", where="search")
        excluded = [self._row[i] for i in exclude if i in self._row]
        rows = np.delete(np.arange(len(self.ids)), excluded)
        names = []
        nearest = np.zeros((len(points), min(k, rows.size)), dtype=np.float32)
        for at, point in enumerate(points):
            near, far = rows, distances(self.vectors, point)[rows]
            if k < far.size:  # sort only those up to the k-th place, ties included
                cut = np.flatnonzero(far <= np.partition(far, k - 1)[k - 1])
                near, far = rows[cut], far[cut]
            order = np.lexsort((self._rank[near], far))[:k]
            names.append([self.ids[row] for row in near[order]])
            nearest[at] = far[order]
        return names, nearest


def distances(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2 distances float32[n] of float32[n,d] to float32[d], summed in float64.

    Rounded to float32 before they are compared, so that distances shown as equal are ties.
    """
    square = np.subtract(vectors, query, dtype=np.float64)
    square *= square
    with np.errstate(over="ignore"):  # beyond float32 a distance is infinite, and still ordered
        return np.asarray(np.sqrt(square.sum(axis=1)), dtype=np.float32)
