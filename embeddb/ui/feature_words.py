"""Names and values of features as text, in their own unit: featurizers store heavy-tailed ones as
logarithms."""

from __future__ import annotations

import math
import re

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
_STRIDES = {
    "none": "that stand still",
    "unit": "to the next element",
    "line": "within a cache line",
    "far": "farther than a cache line",
    "indirect": "by an index array",
}
#: Features of a loop nest (`embeddb.featurizers.nest_stats`).
_OF_NESTS = {
    "depth": "loops",
    "log_points": "turns of the body",
    "triangular": "bounds by other loops",
    "data_bounds": "bounds out of arrays",
    "statements": "statements",
    "masked": "share of statements masked",
    "reductions": "share of statements that reduce",
    "log_target": "elements of the smallest target",
    "log_all_bytes": "bytes of all arrays",
    "log_read_bytes": "bytes of arrays read",
    "log_written_bytes": "bytes of arrays written",
    "log_touched_bytes": "bytes touched",
    "log_arrays": "arrays",
    "log_reads": "reads a turn",
    "log_writes": "writes a turn",
    "log_groups": "groups of accesses",
    "indirect": "share of accesses by index arrays",
    "log_unevenness": "unevenness of offsets",
    "log_operations": "operations in all",
    "log_reuse": "bytes accessed over touched",
    "log_intensity": "operations a byte touched",
    "parallel_loops": "parallel loops",
    "reduction_loops": "reduction loops",
    "outermost_parallel": "outermost loop is parallel",
    "innermost_parallel": "innermost loop is parallel",
    **{
        f"indices_{name}": f"arrays of indices, {name}"
        for name in ("range", "permutation", "below", "offsets")
    },
    "log_add": "additions a turn",
    "log_multiply": "multiplications a turn",
    "log_divide": "divisions a turn",
    "log_compare": "comparisons a turn",
    "log_extreme": "minima and maxima a turn",
    "log_sign": "changes of sign a turn",
    "log_sqrt": "square roots a turn",
    "log_exp": "exponentials and logarithms a turn",
    **{
        f"{loop}_{name}": f"accesses {words}, {loop} loop"
        for loop in ("innermost", "second", "outermost")
        for name, words in _STRIDES.items()
    },
}
#: Features of a tensor kernel (`embeddb.featurizers.kernel_stats`).
_OF_KERNELS = {
    "log_rank": "dimensions of the result",
    "log_columns": "result, dimension closest in memory",
    "log_lines": "result, next dimension in memory",
    "log_batch": "result, all other dimensions",
    "log_elements": "elements of the result",
    "log_reduced": "terms of the longest sum",
    "columns_first": "last dimension is closest in memory",
    "log_flops": "arithmetic operations",
    "log_calls": "calls of transcendental functions",
    "log_bytes_in": "bytes in",
    "log_bytes_out": "bytes out",
    "log_flops_a_byte": "arithmetic operations a byte",
    "log_in_over_out": "bytes in over out",
    "log_given": "parameters",
    "log_results": "results",
    "log_nodes": "operations in the graph",
    "log_input_nodes": "parameters and constants in it",
    "log_product_nodes": "products and convolutions in it",
    "log_window_nodes": "reductions of windows in it",
    "log_reduction_nodes": "reductions and sorts in it",
    "log_spread_nodes": "broadcasts and pads in it",
    "log_order_nodes": "copies and changes of shape in it",
    "log_part_nodes": "slices in it",
    "log_lookup_nodes": "gathers and scatters in it",
    "log_choice_nodes": "comparisons and selections in it",
    "log_conversion_nodes": "conversions in it",
    "log_function_nodes": "transcendental functions in it",
    "log_arithmetic_nodes": "other arithmetic in it",
    "element_bytes": "bytes of an element",
    "floats": "elements are floating-point",
}
_NUMBERED = (
    (re.compile(r"log_dim_(\d+)"), "result, dimension {}"),
    (re.compile(r"log_trip_(\d+)"), "turns of loop {} from inside"),
    (re.compile(r"log_reach_(\d+)"), "bytes touched up to loop {} from inside"),
    (re.compile(r"share_([fi]\d+)"), "share of bytes that are {}"),
    (re.compile(r"fill_(\d+x\d+)"), "fill of {} blocks"),
    (re.compile(r"reuse_(\d+)"), "columns reused in {} nonzeros"),
    (re.compile(r"imbalance_(\d+)"), "heaviest of {} equal parts over mean"),
)
#: Stored as log(1 + x), and as log(x).
_LOG1P = re.compile(
    r"log_(rows|cols|nnz)|(row|col)_(mean|cv|q10|q1|median|q3|q90|max|min)|gap_median"
)
_LOG = re.compile(
    r"log_(density|aspect)|(row|col)_max_over_mean|slice_padding|imbalance_\d+|run_length"
)
#: Of nests and kernels: stored as log2(1 + x), and as log2(x).
_LOG2P = re.compile(
    "log_trip_\\d+|log_reach_\\d+|log_dim_\\d+|"
    + "|".join(n for n in (*_OF_NESTS, *_OF_KERNELS) if n.startswith("log_"))
)
_LOG2 = re.compile("log_reuse|log_in_over_out")
#: Natural logarithm of the largest count.
_MOST_LOG = 60.0


def feature_words(feature: str) -> str:
    """Feature name as text: `row_mean` is `nonzeros per row, mean`; unknown names stay."""
    for form, words in _NUMBERED:
        match = form.fullmatch(feature)
        if match:
            return words.format(match[1])
    return _WORDS.get(feature) or _OF_NESTS.get(feature) or _OF_KERNELS.get(feature, feature)


def feature_value(feature: str, value: float) -> str:
    """Feature value, not its logarithm, with three digits."""
    if abs(value) < _MOST_LOG:
        if _LOG1P.fullmatch(feature):
            value = math.copysign(math.expm1(abs(value)), value)
        elif _LOG.fullmatch(feature):
            value = math.exp(value)
        elif _LOG2.fullmatch(feature):
            value = 2.0**value
        elif _LOG2P.fullmatch(feature):
            value = 2.0**value - 1.0
    if not 1e-3 <= abs(value) < 1e12:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{min(max(digits, 0), 3)}f}"
