"""What is judged beside the neighbours: something that learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.records import PatternInfo
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform
from embeddb.ranking.prediction import Scorer

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
