"""The baseline of plain neighbours, beside which the product's vote has to earn its parts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embeddb.index.run_matrix import RunMatrix
from embeddb.index.vectors import VectorIndex
from embeddb.index.vote import plain_metric

#: Neighbours of the plain baseline, as in the prototype that docs/explanation/evaluation.md cites.
_PLAIN_K = 7


class PlainNeighbours:
    """Unweighted mean gain of the nearest neighbours on standardised statistics, float32[d] by
    pattern id."""

    def __init__(self, evidence: RunMatrix, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        self.vectors = vectors
        self.configs = evidence.configs
        rows = [i for i, row in enumerate(evidence.rows) if row.pattern_id in vectors]
        raw = np.array([vectors[evidence.rows[i].pattern_id] for i in rows], dtype=np.float32)
        self._metric = plain_metric(raw)
        self._gains = evidence.gains(np.array(rows, dtype=np.int64))
        self._index = VectorIndex([str(i) for i in range(len(rows))], self._metric.apply(raw))

    def vote(self, vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[c] mean log gain; what no neighbour ran comes last."""
        ids, _ = self._index.search(self._metric.apply(vector[None, :]), _PLAIN_K)
        gains = self._gains[[int(i) for i in ids[0]]]
        ran = np.isfinite(gains)
        total = np.where(ran, gains, 0.0).sum(axis=0)
        return np.where(ran.any(axis=0), total / np.maximum(ran.sum(axis=0), 1), -np.inf)
