"""The FAISS index: flat and exact, with FAISS only narrowing down what numpy then decides.

FAISS returns equal scores in reverse order, rounds in float32 and pads with -1. So it is asked for
a few more than k, their distances are computed again in float64, and the search is widened until
the rest cannot reach the k-th place, ties and rounding included.

It is made from the vectors whenever a partition is opened, which takes half the time of reading one
that was saved, and there are no bytes of it that somebody could have forged.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.index.vectors.numpy_index import ExactIndex, Rows

#: Neighbours asked for beyond k.
_SLACK = 16
#: Of k-means: more rounds, or more vectors for each centre, find hardly better centres.
_ROUNDS, _PER_CENTRE = 10, 64


class FaissIndex(ExactIndex):
    """Exact L2 search with FAISS.

    Queries go to FAISS one by one: one query runs on one thread whatever the OpenMP setting is,
    which is faster at this size, and takes the direct sum of squares rather than the expanded
    form that loses digits.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self._index = _faiss().IndexFlatL2(self.dim)
        self._index.add(rows.vectors)

    def _nearest(
        self, query: NDArray[np.float32], barred: NDArray[np.int64], k: int
    ) -> tuple[list[str], NDArray[np.float32]]:
        total = len(self._rows.ids)
        only = _all_but(barred, total)
        left = total - barred.size
        ask = k + _SLACK
        # A FAISS score is off by fewer than d + 8 roundings, or by underflow in each of d terms.
        slip = (self.dim + 8) * float(np.finfo(np.float32).eps)
        floor = self.dim * float(np.finfo(np.float32).tiny)
        while ask * 4 < left:
            scores, places = self._index.search(query[None, :], ask, params=only)
            if places[0, -1] < 0:
                break  # scores beyond float32 are dropped
            found, far = self._rows.nearest(query, places[0], k)
            # Nobody left out scores below the last score: are they all beyond the k-th place?
            if float(far[-1]) ** 2 * (1 + slip) < float(scores[0, -1]) * (1 - slip) - floor:
                return found, far
            ask *= 4
        return self._rows.nearest(query, np.delete(np.arange(total), barred), k)


def centres_of(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """float32[count,d] centres of float32[n,d] by k-means, from a fixed seed."""
    faiss = _faiss()
    made = faiss.Kmeans(
        int(vectors.shape[1]),
        count,
        niter=_ROUNDS,
        seed=1,
        min_points_per_centroid=1,
        max_points_per_centroid=_PER_CENTRE,
    )
    made.train(np.ascontiguousarray(vectors, dtype=np.float32))
    found: NDArray[np.float32] = np.asarray(made.centroids, dtype=np.float32)
    return found.reshape(count, -1)


def nearest_places(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> NDArray[np.int64]:
    """int64[q,k] places of the nearest of float32[n,d], k of n, as float32 tells them apart."""
    found: NDArray[np.int64] = _faiss().knn(queries, vectors, k)[1]
    return found


@cache
def _faiss() -> Any:
    with warnings.catch_warnings():
        # SWIG types without __module__ warn on Python 3.12 and later; nothing to do about it.
        warnings.filterwarnings("ignore", "builtin type .*wig", DeprecationWarning)
        import faiss
    return faiss


def _all_but(barred: NDArray[np.int64], total: int) -> Any:
    """FAISS search parameters that leave those rows out; None if there are none."""
    if not barred.size:
        return None
    faiss = _faiss()
    wanted = np.ones(total, dtype=bool)
    wanted[barred] = False
    # IDSelectorBitmap keeps only a pointer: faiss's Python layer holds the array for it.
    bits = np.packbits(wanted, bitorder="little")
    return faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
