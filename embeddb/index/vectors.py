"""Exact nearest-neighbour search over the vectors of one partition by FAISS.

FAISS returns equal scores in reverse order, rounds in float32 and pads with -1. So it retrieves a
few more than k, whose distances are computed again in float64, until no other vector can reach the
k-th place, ties and rounding included. The index is made when a partition is opened: that takes
half the time of reading a saved one, and nobody can forge its bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError, UsageError

#: Vectors retrieved beyond k.
_SLACK = 16


class VectorIndex:
    """Immutable index of distinct `ids` and finite `vectors` float32[n,d] (copied).

    Neighbours are ordered by (distance, id), also where the cut at k goes through a tie, and never
    padded: all queries get min(k, ids left after `exclude`) of them.

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
        wanted = np.ones(len(self.ids), dtype=np.bool_)
        wanted[[self._row[i] for i in exclude if i in self._row]] = False
        names = []
        nearest = np.zeros((len(points), min(k, int(wanted.sum()))), dtype=np.float32)
        for at, point in enumerate(points):
            near = self._candidates(point, wanted, k)
            far = distances(self.vectors[near], point)
            cut = least(far, k)
            near, far = near[cut], far[cut]
            order = np.lexsort((self._rank[near], far))[:k]
            names.append([self.ids[row] for row in near[order]])
            nearest[at] = far[order]
        return names, nearest

    @cached_property
    def _flat(self) -> Any:
        flat = faiss().IndexFlatL2(self.dim)
        flat.add(self.vectors)
        return flat

    def _candidates(
        self, point: NDArray[np.float32], wanted: NDArray[np.bool_], k: int
    ) -> NDArray[np.int64]:
        """Positions int64[c] of wanted rows, the k nearest of float32[d] and all ties among them.
        Queries go to FAISS one by one: it then sums squares directly, on one thread."""
        # A score is off by fewer than d + 8 roundings, or by underflow in each of d terms.
        slip = (self.dim + 8) * float(np.finfo(np.float32).eps)
        floor = self.dim * float(np.finfo(np.float32).tiny)
        ask, only = k + _SLACK, None
        if not wanted.all():
            # The selector keeps only a pointer: FAISS's Python layer holds the array for it.
            bits = np.packbits(wanted, bitorder="little")
            only = faiss().SearchParameters(sel=faiss().IDSelectorBitmap(bits))
        while ask * 4 < wanted.sum():
            scores, places = self._flat.search(point[None, :], ask, params=only)
            if places[0, -1] < 0:
                break  # scores beyond float32 are dropped
            far = np.partition(distances(self.vectors[places[0]], point), k - 1)[k - 1]
            if float(far) ** 2 * (1 + slip) < float(scores[0, -1]) * (1 - slip) - floor:
                return np.sort(places[0])
            ask *= 4
        return np.flatnonzero(wanted)


@cache
def faiss() -> Any:
    """The module, imported at the first search."""
    with warnings.catch_warnings():
        # SWIG types without __module__ warn on Python 3.12 and later; nothing to do about it.
        warnings.filterwarnings("ignore", "builtin type .*wig", DeprecationWarning)
        import faiss
    return faiss


def least(far: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Positions of the `count` least distances, and of all others as near as the last of them."""
    if count >= len(far):
        return np.arange(len(far))
    return np.flatnonzero(far <= np.partition(far, count - 1)[count - 1])


def distances(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2 distances float32[n] of float32[n,d] to float32[d], summed in float64.

    Rounded to float32 before they are compared, so that distances shown as equal are ties.
    """
    square = np.subtract(vectors, query, dtype=np.float64)
    square *= square
    with np.errstate(over="ignore"):  # beyond float32 a distance is infinite, and still ordered
        return np.asarray(np.sqrt(square.sum(axis=1)), dtype=np.float32)
