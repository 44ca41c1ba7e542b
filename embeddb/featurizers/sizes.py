"""Sizes of a matrix: rows, columns, nonzeros, the minimum that is always known.

`sizes`, `rows` and `given`, the featurizers for stubs, differ only in the names they select from
`coordinates`, for sources with more or fewer statistics. All read the canonical statistics below
from `WorkloadInfo.features` and compute the same ones from a structure, so a real pattern can be
compared with stubs.

Canonical statistics, for `row` (nonzeros per row) and `col` (per column): `row_min`, `row_q1`,
`row_median`, `row_q3`, `row_max`, one of `row_variance`, `row_std`, `row_cv`, and the standardised
central moments 3 to 6 `row_skewness`, `row_kurtosis` (3 for a normal), `row_hyperskewness`,
`row_hyperflatness` (all 0 where the variance is 0); and `psym`, the symmetric share of the
off-diagonal pattern. Means follow from the sizes. These are the definitions of Ginkgo's data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import Featurizer
from embeddb.featurizers.stats import Lengths, column_lengths, pattern_symmetry, row_lengths

#: Canonical names of other spellings in run logs.
_SPELLINGS = {
    "min_nnz_per_row": "row_min",
    "max_nnz_per_row": "row_max",
    "std_dev_nnz_per_row": "row_std",
    "cv_d": "row_cv",
}

ORDER = ("min", "q1", "median", "q3")
MOMENTS = ("skewness", "kurtosis", "hyperskewness", "hyperflatness")


class LogSizes:
    """log1p of rows, columns, nonzeros and mean row length, and the log density: float32[d].

    `rows` and `given` are this class with more names.
    """

    name = "sizes"
    version = "1"
    names: tuple[str, ...] = ("log_rows", "log_cols", "log_nnz", "log_density", "row_mean")
    dim: int = len(names)

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] from the structure, comparable with `from_info` of a stub."""
        m, n = pattern.shape
        vector = self._pick(coordinates(m, n, pattern.nnz, statistics(pattern)))
        assert vector is not None  # a structure has every statistic
        return vector

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """float32[d] from the sizes and features of a stub; None when one is missing."""
        if min(info.sizes) < 0:
            return None
        return self._pick(coordinates(info.m, info.n, info.nnz, info.features))

    def _pick(self, values: Mapping[str, float]) -> NDArray[np.float32] | None:
        if any(not math.isfinite(values.get(name, math.nan)) for name in self.names):
            return None
        return np.array([values[name] for name in self.names], dtype=np.float32)


PLUGIN: type[Featurizer] = LogSizes


def coordinates(m: int, n: int, nnz: int, stats: Mapping[str, float]) -> dict[str, float]:
    """Every coordinate that the sizes and the canonical statistics in `stats` determine."""
    stats = {_SPELLINGS.get(name, name): value for name, value in stats.items()}
    out = {
        "log_rows": math.log1p(m),
        "log_cols": math.log1p(n),
        "log_nnz": math.log1p(nnz),
        "log_density": math.log1p(nnz) - math.log1p(m) - math.log1p(n),
    }
    if "psym" in stats:
        out["psym"] = stats["psym"]
    for side, count in (("row", m), ("col", n)):
        mean = nnz / count if count else 0.0
        out[f"{side}_mean"] = math.log1p(mean)
        if f"{side}_max" in stats:
            top = stats[f"{side}_max"]
            out[f"{side}_max"] = _signed_log1p(top)
            out[f"{side}_padding"] = _signed_log1p(top / mean) if mean else 0.0
        spread = _spread(side, mean, stats)
        if spread is not None:
            out[f"{side}_cv"] = math.log1p(max(spread, 0.0))
        for name in (*ORDER, *MOMENTS):
            if f"{side}_{name}" in stats:
                out[f"{side}_{name}"] = _signed_log1p(stats[f"{side}_{name}"])
    return out


def _spread(side: str, mean: float, stats: Mapping[str, float]) -> float | None:
    """Standard deviation over mean, from any of its three forms."""
    if f"{side}_cv" in stats:
        return stats[f"{side}_cv"]
    if f"{side}_std" in stats:
        return stats[f"{side}_std"] / mean if mean else 0.0
    if f"{side}_variance" in stats:
        return math.sqrt(max(stats[f"{side}_variance"], 0.0)) / mean if mean else 0.0
    return None


def _signed_log1p(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def statistics(pattern: Pattern) -> dict[str, float]:
    """Canonical statistics of a structure, by name."""
    out = {"psym": pattern_symmetry(pattern)}
    for side, lengths in (("row", row_lengths(pattern)), ("col", column_lengths(pattern))):
        out |= {f"{side}_{k}": v for k, v in _moments(lengths).items()}
    return out


def _moments(lengths: Lengths) -> dict[str, float]:
    """Order statistics and moments of lengths."""
    total, values, times = lengths
    if not total:
        return dict.fromkeys((*ORDER, "max", "variance", *MOMENTS), 0.0)
    upto = np.cumsum(times)

    def quantile(p: float) -> float:
        at = p * (total - 1)
        low, high = values[np.searchsorted(upto, [math.floor(at), math.ceil(at)], side="right")]
        return float(low + (high - low) * (at - math.floor(at)))

    offset = values - float(values @ times) / total
    variance = float(offset**2 @ times) / total
    scaled = offset / math.sqrt(variance) if variance > 0 else np.zeros_like(offset)
    return {
        **{name: quantile(at / 4) for at, name in enumerate((*ORDER, "max"))},
        "variance": variance,
        **{name: float(scaled**k @ times) / total for k, name in enumerate(MOMENTS, start=3)},
    }


_EACH = (*ORDER, "max", "padding", "cv", *MOMENTS)


class Given(LogSizes):
    """`sizes` plus symmetry, order statistics and moments of row and column lengths, for stubs of
    sources that have them, as Ginkgo's matrix features do."""

    name = "given"
    names = (
        *LogSizes.names,
        "col_mean",
        "psym",
        *(f"{side}_{name}" for side in ("row", "col") for name in _EACH),
    )
    dim = len(names)


class Rows(LogSizes):
    """`sizes` plus longest row, its ratio to the mean (the padding of ELL) and std over mean.

    The shortest row is omitted: not every source has it, and it rarely differs.
    """

    name = "rows"
    names = (*LogSizes.names, "row_max", "row_padding", "row_cv")
    dim = len(names)
