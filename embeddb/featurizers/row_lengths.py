"""The lengths of a matrix's rows as a stored vector: a histogram, not a point among others.

It is kept and travels as the vectors of featurizers do, and it is none of them: two histograms are
not compared, so it is never a candidate for the search of neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.records import WorkloadInfo
from embeddb.core.row_lengths import (
    STORED_AS,
    RowLengths,
    as_vector,
    binned,
    estimated,
    from_vector,
)
from embeddb.featurizers.stats import Stats, row_lengths

_PREFIX = "row_lengths."
#: Quantiles of `stats`, as log(1 + length), and the share of rows that is at most as long.
_OF_STATS = {"row_q10": 0.1, "row_median": 0.5, "row_q90": 0.9}
#: Quantiles by their names among the features of a stub.
_OF_STUBS = {"row_min": 0.0, "row_q1": 0.25, "row_median": 0.5, "row_q3": 0.75, "row_max": 1.0}


class RowHistograms:
    """Histograms as vectors float32[2k]: the lengths of k bins
    (`embeddb.core.row_lengths.binned`), ascending, then how many rows each has."""

    name, version = STORED_AS
    kinds = ("matrix",)
    #: Vectors are of any length.
    dim: None = None

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[2k] of a `Pattern`."""
        return as_vector(histogram(pattern))

    def lengths(self, vector: NDArray[np.float32], info: WorkloadInfo) -> RowLengths | None:
        """The histogram of a vector; None for what is no histogram of a matrix of these sizes."""
        return from_vector(vector, info.m, info.nnz)

    def as_features(self, vector: NDArray[np.float32]) -> dict[str, float]:
        """A vector by name, keys `row_lengths.LENGTH`, as in `WorkloadInfo.features`."""
        values, times = vector.reshape(2, -1)
        counts = times.astype(np.float64).tolist()
        return {f"{_PREFIX}{value!s}": count for value, count in zip(values, counts, strict=True)}

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """The inverse of `as_features`; None where there is no histogram of these sizes."""
        cut, bins = len(_PREFIX), []
        for name, count in info.features.items():
            if name.startswith(_PREFIX):
                try:
                    bins.append((float(name[cut:]), count))
                except ValueError:
                    return None
        with np.errstate(over="ignore"):
            vector = np.array(sorted(bins), dtype=np.float32).T.reshape(-1)
        return vector if bins and self.lengths(vector, info) is not None else None


ROW_LENGTHS = RowHistograms()


def histogram(pattern: Any) -> RowLengths:
    """The histogram of a `Pattern`."""
    _, values, times = row_lengths(pattern)
    return binned(values, times)


def estimate(info: WorkloadInfo, stats: NDArray[np.float32] | None) -> RowLengths | None:
    """A histogram from quantiles: those of the vector of `stats` float32[d], else those among the
    features of a stub, else none; None where a size is not known."""
    points: list[tuple[float, float]] = []
    if stats is not None:
        points = _points(info, dict(zip(Stats.names, stats.astype(np.float64), strict=True)))
    elif all(name in info.features for name in _OF_STUBS):
        points = [(share, info.features[name]) for name, share in _OF_STUBS.items()]
    lengths = np.maximum.accumulate([0.0, *(length for _, length in points)])[1:].tolist()
    quantiles = [(share, length) for (share, _), length in zip(points, lengths, strict=True)]
    return estimated(info.m, info.nnz, quantiles)


def _points(info: WorkloadInfo, stats: dict[str, float]) -> list[tuple[float, float]]:
    """Share of the rows and the longest of these, from statistics that may be anything finite."""
    most = float(max(info.n, 0))

    def length(log: float) -> float:
        return min(max(float(np.expm1(min(log, 50.0))), 0.0), most)

    mean = info.nnz / max(info.m, 1)
    points = [(share, length(stats[name])) for name, share in _OF_STATS.items()]
    longest = min(mean * float(np.exp(min(stats["row_max_over_mean"], 50.0))), most)
    points = [(0.0, points[0][1]), *points, (1.0, longest)]
    empty = min(max(stats["row_empty"], 0.0), 1.0)
    if empty > 0:
        points = [(0.0, 0.0), (empty, 0.0), *(point for point in points if point[0] > empty)]
    return points
