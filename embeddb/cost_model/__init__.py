"""Learned cost models at query time: their interface and the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from embeddb.core.config import Op
from embeddb.core.row_lengths import RowLengths
from embeddb.core.sizes import UNKNOWN, Sizes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embeddb.platforms.platform import Platform


class Problem(NamedTuple):
    """One workload whose configurations are scored: its raw features float32[d] and sizes, the
    operation on a platform, and of a matrix the lengths of its rows, where they are known."""

    vector: NDArray[np.float32]
    platform: Platform
    op: Op
    sizes: Sizes = UNKNOWN
    lengths: RowLengths | None = None
