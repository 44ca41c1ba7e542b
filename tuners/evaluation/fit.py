"""What is judged beside the neighbours: something that learns, and what it learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import PatternInfo
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform

__all__ = ["Fit", "Scorer"]

Floats = NDArray[np.float64]


class Scorer(Protocol):
    """What a ranker learned; `embeddb.cost_model.model.CostModel` is one."""

    def score(
        self,
        vector: NDArray[np.float32],
        platform: Platform,
        op: Op,
        configs: Sequence[Config],
        sizes: Sizes = UNKNOWN,
    ) -> tuple[Floats, Floats]:
        """float64[c] log gain over the mean configuration (higher is faster) and float64[c] its
        standard deviation (nan: unknown), of a matrix with raw features float32[d] and `sizes` m,
        n, nnz."""


#: Evidence, raw vectors by featurizer (one) and pattern id, what is known of the patterns, and
#: what they ran on: only of the groups to learn from.
Fit = Callable[
    [
        RunMatrix,
        Mapping[str, Mapping[str, NDArray[np.float32]]],
        Mapping[str, PatternInfo],
        Platform,
        Op,
    ],
    Scorer,
]
