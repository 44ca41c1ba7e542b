"""Numbers of entries of a matrix's rows as a histogram, the input of derived figures and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Name and version under which they are stored among the vectors.
STORED_AS = ("row-lengths", "1")
#: Largest relative difference of sizes between a stored histogram and its matrix.
_CLOSE = 1e-3
#: Lengths up to here have a bin each; above it every octave has `_PER_OCTAVE`.
_EXACT = 32
_PER_OCTAVE = 8


class RowLengths(NamedTuple):
    """A histogram of row lengths. Shapes: `values` float64[k], the length, or the mean of a bin,
    ascending; `times` float64[k], the number of rows of each, never 0."""

    values: NDArray[np.float64]
    times: NDArray[np.float64]

    @property
    def rows(self) -> float:
        return float(self.times.sum())

    @property
    def entries(self) -> float:
        return float(self.values @ self.times)


def as_vector(lengths: RowLengths) -> NDArray[np.float32]:
    """float32[2k]: the values, then the times."""
    return np.concatenate(lengths).astype(np.float32)


def from_vector(vector: NDArray[np.float32], rows: int, entries: int) -> RowLengths | None:
    """The inverse of `as_vector`; None for a vector that is no histogram of these sizes."""
    if vector.size % 2 or not np.isfinite(vector).all() or (vector < 0).any():
        return None
    lengths = RowLengths(*vector.astype(np.float64).reshape(2, -1))
    fits = abs(lengths.rows - max(rows, 0)) <= _CLOSE * max(rows, 0)
    fits &= abs(lengths.entries - max(entries, 0)) <= _CLOSE * max(entries, 0)
    ordered = bool((np.diff(lengths.values) > 0).all() and (lengths.times > 0).all())
    return lengths if fits and ordered else None


def binned(values: NDArray[np.int64], times: NDArray[np.int64]) -> RowLengths:
    """Histogram of distinct lengths int64[k], ascending, and their numbers of rows. Short ones and
    the longest have a bin each; the others share bins, eight an octave, with edges at multiples of
    powers of two: sums of ceil(length / p) are right to about one percent, and exact where p is a
    power of two above an eighth of the length."""
    occurring = times > 0
    values, times = values[occurring], times[occurring]
    place = values.copy()
    long = values > _EXACT
    above = values[long] - 1
    octave = np.frexp(above.astype(np.float64))[1] - 1
    step = octave - (_PER_OCTAVE.bit_length() - 1)
    place[long] = ((above >> step) + 1) << step  # the upper edge, which belongs to the bin
    if values.size and long[-1]:
        place[-1] = np.iinfo(np.int64).max
    _, bins = np.unique(place, return_inverse=True)
    counts = np.bincount(bins, weights=times)
    sums = np.bincount(bins, weights=values.astype(np.float64) * times)
    return RowLengths(sums / counts, counts.astype(np.float64))


def estimated(
    rows: int, entries: int, quantiles: Sequence[tuple[float, float]] = ()
) -> RowLengths | None:
    """Histogram from the sizes of a matrix and quantiles of its row lengths, (share of the rows,
    length), ascending in both: linear between them, and scaled to the number of entries. Without
    quantiles all rows have the mean length; None where a size is unknown."""
    if rows < 0 or entries < 0:
        return None
    if rows == 0 or entries == 0:
        return RowLengths(np.zeros(min(rows, 1)), np.full(min(rows, 1), float(rows)))
    mean = entries / rows
    shares, lengths = np.array([*quantiles] or [(0.0, mean), (1.0, mean)], dtype=np.float64).T
    values = np.interp((np.arange(_POINTS) + 0.5) / _POINTS, shares, lengths)
    values = values * mean / values.mean() if values.mean() > 0 else np.full(_POINTS, mean)
    values, counts = np.unique(values, return_counts=True)
    return RowLengths(values, counts.astype(np.float64) * (rows / _POINTS))


#: Rows that an estimate stands for.
_POINTS = 64
