"""Features in words and in their own unit: featurizers keep heavy-tailed ones as logarithms, people
do not read logarithms."""

from __future__ import annotations

import math
import re

__all__ = ["feature_value", "feature_words"]

_SIDES = {"row": "nonzeros per row", "col": "nonzeros per column"}
_LENGTHS = {
    "mean": "mean",
    "cv": "deviation over mean",
    "max_over_mean": "longest over mean",
    "gini": "Gini",
    "q10": "10th percentile",
    "q1": "1st quartile",
    "median": "median",
    "q3": "3rd quartile",
    "q90": "90th percentile",
    "empty": "share empty",
    "max": "most",
    "min": "fewest",
}
_WORDS = {
    "log_rows": "rows",
    "log_cols": "columns",
    "log_nnz": "nonzeros",
    "log_density": "density",
    "log_aspect": "rows over columns",
    "row_next_change": "change of length, row to row",
    "slice_padding": "padding in slices of 32 rows",
    "bandwidth": "bandwidth (logarithmic share)",
    "profile": "profile over columns",
    "row_span": "span of a row over columns",
    "diagonal_distance": "distance to diagonal",
    "diagonal_share": "share of diagonal filled",
    "symmetry": "symmetric share",
    "psym": "symmetric share",
    "run_length": "adjacent columns in a run",
    "gap_median": "gap within a row, median",
    "near_share": "gaps below 16 columns",
    "row_overlap": "columns shared with next row",
    "stripe_reuse": "columns reused in 24 rows",
    **{f"{side}_{k}": f"{of}, {v}" for side, of in _SIDES.items() for k, v in _LENGTHS.items()},
}
_NUMBERED = (
    (re.compile(r"fill_(\d+x\d+)"), "fill of {} blocks"),
    (re.compile(r"reuse_(\d+)"), "columns reused in {} nonzeros"),
    (re.compile(r"imbalance_(\d+)"), "heaviest of {} equal parts over mean"),
)
#: Kept as log(1 + x), and as log(x).
_LOG1P = re.compile(
    r"log_(rows|cols|nnz)|(row|col)_(mean|cv|q10|q1|median|q3|q90|max|min)|gap_median"
)
_LOG = re.compile(
    r"log_(density|aspect)|(row|col)_max_over_mean|slice_padding|imbalance_\d+|run_length"
)
#: No count is larger than e to this.
_MOST_LOG = 60.0


def feature_words(feature: str) -> str:
    """`row_mean` is `nonzeros per row, mean`; what is not known is itself."""
    for form, words in _NUMBERED:
        found = form.fullmatch(feature)
        if found:
            return words.format(found[1])
    return _WORDS.get(feature, feature)


def feature_value(feature: str, value: float) -> str:
    """The figure itself, not its logarithm, with three digits."""
    if abs(value) < _MOST_LOG and _LOG1P.fullmatch(feature):
        value = math.copysign(math.expm1(abs(value)), value)
    elif abs(value) < _MOST_LOG and _LOG.fullmatch(feature):
        value = math.exp(value)
    if not 1e-3 <= abs(value) < 1e12:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{min(max(digits, 0), 3)}f}"
