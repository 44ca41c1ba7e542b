"""The reference index: every distance, in float64, then a sort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError, UsageError


class Rows:
    """Checked ids and vectors of an index, and the order that breaks ties.

    Shapes: `vectors` float32[n,d] (a private copy), `rank` int64[n] (place of each id in sorted
    order), `place` id -> row.
    Raises: UsageError for shapes that do not fit, InputError for an id given twice or a vector
    that is not finite; the message names the id.
    """

    __slots__ = ("ids", "place", "rank", "vectors")

    def __init__(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.ids = tuple(ids)
        self.vectors = np.array(vectors, dtype=np.float32, order="C")
        if self.vectors.ndim != 2 or self.vectors.shape[1] < 1:
            raise UsageError(f"an index needs vectors of shape [n, d], not {self.vectors.shape}")
        if len(self.ids) != self.vectors.shape[0]:
            raise UsageError(f"{len(self.ids)} ids for {self.vectors.shape[0]} vectors")
        self.place = {name: row for row, name in enumerate(self.ids)}
        if len(self.place) != len(self.ids):
            twice = next(n for row, n in enumerate(self.ids) if self.place[n] != row)
            raise InputError(f"id {twice!r} is given twice", where="index")
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        if bad.size:
            raise InputError(f"the vector of {self.ids[bad[0]]!r} is not finite", where="index")
        self.rank = np.empty(len(self.ids), dtype=np.int64)
        self.rank[sorted(range(len(self.ids)), key=self.ids.__getitem__)] = np.arange(len(self.ids))

    def checked(self, queries: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        """The queries as float32[q,d]. Raises: as `VectorIndex.search` says."""
        given = np.ascontiguousarray(queries, dtype=np.float32)
        if given.ndim != 2 or given.shape[1] != self.vectors.shape[1]:
            raise UsageError(f"queries of shape {given.shape}, not [q, {self.vectors.shape[1]}]")
        if k < 1:
            raise UsageError(f"cannot search for {k} neighbours")
        if not np.isfinite(given).all():
            row = int(np.flatnonzero(~np.isfinite(given).all(axis=1))[0])
            raise InputError(f"query {row} is not finite", where="search")
        return given

    def excluded(self, ids: Collection[str]) -> NDArray[np.int64]:
        """Rows of those ids that the index holds, int64[x], ascending."""
        rows = sorted({self.place[i] for i in ids if i in self.place})
        return np.array(rows, dtype=np.int64)

    def nearest(
        self, query: NDArray[np.float32], among: NDArray[np.int64], k: int
    ) -> tuple[list[str], NDArray[np.float32]]:
        """The k best of the rows `among` by (distance, id), and their distances float32[k]."""
        found = distances(self.vectors[among], query)
        if k < found.size:
            close = np.flatnonzero(found <= np.partition(found, k - 1)[k - 1])
            among, found = among[close], found[close]
        order = np.lexsort((self.rank[among], found))[:k]
        return [self.ids[row] for row in among[order]], found[order]


def distances(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2 distances float32[n] of float32[n,d] to float32[d], summed in float64.

    Rounded to float32 before anything is compared, so that what is shown as equal is a tie.
    """
    gap = vectors.astype(np.float64) - query.astype(np.float64)
    with np.errstate(over="ignore"):  # beyond float32 a distance is infinite, and still ordered
        return np.asarray(np.sqrt((gap * gap).sum(axis=1)), dtype=np.float32)


class ExactIndex(ABC):
    """Exact L2 search over checked rows; see `embeddb.index.vectors.VectorIndex`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @classmethod
    def build(cls, ids: Sequence[str], vectors: NDArray[np.float32]) -> Self:
        """Raises: UsageError, InputError as `Rows` says."""
        return cls(Rows(ids, vectors))

    @abstractmethod
    def _nearest(
        self, query: NDArray[np.float32], barred: NDArray[np.int64], k: int
    ) -> tuple[list[str], NDArray[np.float32]]:
        """The k nearest of all rows but the `barred` int64[x], and their distances float32[k]."""

    @property
    def dim(self) -> int:
        return int(self._rows.vectors.shape[1])

    @property
    def ids(self) -> tuple[str, ...]:
        return self._rows.ids

    def search(
        self, queries: NDArray[np.float32], k: int, *, exclude: Collection[str] = ()
    ) -> tuple[list[list[str]], NDArray[np.float32]]:
        """See `VectorIndex.search`."""
        given = self._rows.checked(queries, k)
        barred = self._rows.excluded(exclude)
        count = min(k, len(self._rows.ids) - barred.size)
        names: list[list[str]] = []
        far = np.zeros((given.shape[0], count), dtype=np.float32)
        for at, query in enumerate(given):
            nearest, far[at] = self._nearest(query, barred, count) if count else ([], far[at])
            names.append(nearest)
        return names, far


class NumpyIndex(ExactIndex):
    """Exact search by brute force."""

    def _nearest(
        self, query: NDArray[np.float32], barred: NDArray[np.int64], k: int
    ) -> tuple[list[str], NDArray[np.float32]]:
        left = np.delete(np.arange(len(self._rows.ids)), barred)
        return self._rows.nearest(query, left, k)
