"""Exact nearest-neighbour search over the vectors of one partition.

`NumpyIndex` is the reference, `FaissIndex` the fast one; they give the same answers to the bit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["VectorIndex"]


class VectorIndex(Protocol):
    """Requirements on every index, tested by `tests/fixtures/index_contract.py`.

    - Built with `build(ids, vectors)` from distinct ids and finite vectors, then never changed.
    - An answer is ordered by (distance, id), also where the cut at k goes through a tie.
    - An answer is never padded: all queries get min(k, ids left after `exclude`) neighbours.
    """

    @property
    def dim(self) -> int: ...

    @property
    def ids(self) -> tuple[str, ...]: ...

    def search(
        self, queries: NDArray[np.float32], k: int, *, exclude: Collection[str] = ()
    ) -> tuple[list[list[str]], NDArray[np.float32]]:
        """The k nearest ids of each query float32[q,d] and their L2 distances float32[q,k'].

        Ids in `exclude` never appear; those the index does not hold are ignored.
        Raises: UsageError for k < 1 or queries of another shape, InputError for a query that is
        not finite.
        """
