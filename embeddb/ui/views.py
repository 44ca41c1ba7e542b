"""Values of an answer that text, page and notebook format; names and values of features as text,
in their own unit: featurizers store heavy-tailed ones as logarithms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from embeddb.core.config import Config
from embeddb.core.sizes import Sizes
from embeddb.core.wording import factor, shown, when
from embeddb.explain.explanation import fails, paid_off
from embeddb.ranking.kernel_view import KernelView
from embeddb.ranking.order_reason import rests_on
from embeddb.ranking.recommendation import Diagnostics, Occluded, Recommendation
from embeddb.store.provenance import HERE, Provenance
from embeddb.ui import draw


class RankRow(NamedTuple):
    """A candidate at its `rank` from 1, or the default (None). Gains are factors over the default,
    `low` to `high` is the 10..90 % interval; `seconds` and `measured_gain` are of runs for this
    answer."""

    rank: int | None
    config: dict[str, Any]
    gain: float | None
    low: float | None = None
    high: float | None = None
    rests_on: str = "default"
    fails: str = "-"
    pays_off: str = "-"
    seconds: float | None = None
    status: str = ""
    measured_gain: float | None = None


class Ranking(NamedTuple):
    """The candidates of an answer, and the default as `last` row if it is none of them. The flags
    say which columns have values."""

    rows: list[RankRow]
    last: list[RankRow]
    measured: bool
    fails: bool
    pays_off: bool

    @property
    def every(self) -> list[RankRow]:
        return self.rows + self.last

    @classmethod
    def of(cls, answer: Recommendation) -> Ranking:
        candidates, base = answer.candidates, answer.default_seconds
        rows = [
            RankRow(
                rank,
                c.config,
                c.expected_gain,
                c.gain_low,
                c.gain_high,
                rests_on(c, answer.default),
                fails(c),
                paid_off(c.break_even_calls),
                c.seconds,
                c.status or "",
                base / c.seconds if base and c.seconds else None,
            )
            for rank, c in enumerate(candidates, 1)
        ]
        own = RankRow(None, answer.default, 1.0, seconds=base, measured_gain=base and 1.0)
        return cls(
            rows,
            [] if answer.default in [c.config for c in candidates] else [own],
            any(c.status for c in candidates),
            any(c.failure is not None for c in candidates),
            any(c.break_even_calls is not None for c in candidates),
        )


def differing(config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters whose value differs from the answer's, with the value; None: not used."""
    # A stored answer has lists for permutations: as configurations the two compare.
    there, here = Config(config), Config(answer)
    return [(n, there.get(n)) for n in sorted({*there, *here}) if there.get(n) != here.get(n)]


def subject_line(name: str, sizes: Sizes) -> str:
    """A workload's name and sizes: `G14: 800 x 800, 4,694 nonzeros`."""
    if sizes.named:
        return f"{name}: {sizes}"
    if min(sizes) < 0:
        return f"{name} (sizes unknown)"
    return f"{name}: {sizes.m:,} x {sizes.n:,}, {sizes.nnz:,} nonzeros"


_MOST_NAME = 40


def whose_runs(provenance: Sequence[Provenance]) -> str:
    """Number of runs by source: `ann@cluster7 12, run or read in here 3`."""
    return ", ".join(f"{shown(p.source or HERE, _MOST_NAME)} {p.runs:,}" for p in provenance)


def each_source(provenance: Iterable[Provenance]) -> list[str]:
    """A line for each source and machine: number of runs, users who pushed them, dates."""
    every: dict[tuple[str, str], list[Provenance]] = {}
    for one in provenance:
        every.setdefault((one.source, one.machine), []).append(one)
    lines = []
    for _, group in sorted(every.items()):
        whens = [moment for one in group for moment in (one.first, one.last) if moment > 0]
        days = sorted({when(min(whens))[:10], when(max(whens))[:10]}) if whens else []
        both = msgspec.structs.replace(group[0], runs=sum(one.runs for one in group))
        lines.append(shown(both.words + (f", measured {' to '.join(days)}" if days else ""), 400))
    return lines


# -- drawing of a tensor kernel --------------------------------------------------------------------

#: Most important operations that are marked.
_MOST_MARKED = 3
#: Natural logarithm of the largest factor or count.
_MOST_LOG = 60.0
_HEADS = {
    "model": "important operations: predicted gain of the best tile if the model does not see one",
    "operations": "important operations: how far the embedding moves if one is hidden",
    "sizes": "important sizes: how far the embedding moves if one is replaced by its average",
}


def drawn_kernel(
    view: KernelView, *, title: str, marked: Mapping[int, str] = {}, key: str = "kernel"
) -> str:
    """An SVG element; `marked` has a note for operations by their places."""
    if not view.operations:
        rows = [draw.Bar(opcode, count) for opcode, count in view.opcodes.items()]
        return draw.bars(rows, title=title, width=540, key=key)
    nodes = [
        draw.Node(
            op.opcode,
            f"{marked[at]}, {op.shape}" if at in marked else op.shape,
            tuple(op.operands),
            strong=op.is_output,
            marked=at in marked,
        )
        for at, op in enumerate(view.operations)
    ]
    return draw.graph(nodes, title=title, key=key)


def kernel_caption(view: KernelView, insight: Diagnostics | None = None) -> str:
    """Caption of the drawing, one sentence without its full stop."""
    if not view.operations:
        return f"count of each opcode among its {view.count:,} operations, too many to draw"
    caption = "its operations; a thick frame marks outputs"
    if insight is not None and marked_operations(insight):
        return f"{caption}, a bar at the side marks those most important for the answer"
    return caption


def marked_operations(insight: Diagnostics) -> dict[int, str]:
    """A note on each of the most important operations, by place; empty without diagnostics."""
    important = [one for one in insight.occluded[:_MOST_MARKED] if one.place >= 0 and one.moved]
    return {one.place: occluded_figure(one, insight.occluded_by) for one in important}


def occluded_head(by: str) -> str:
    return _HEADS.get(by, by)


def occluded_part(one: Occluded, view: KernelView | None) -> str:
    """The occluded part: an operation with its shape and place, or a statistic in words."""
    if one.place < 0:
        return feature_words(one.what)
    operations = view.operations if view is not None else []
    shape = f" {operations[one.place].shape}" if one.place < len(operations) else ""
    return f"{one.what}{shape}, at {one.place}"


def occluded_figure(one: Occluded, by: str) -> str:
    """Effect of an occlusion: a factor on the predicted gain, or a distance."""
    if by == "model":
        return factor(math.exp(min(one.moved, _MOST_LOG)), sign="×")
    return f"{one.moved:.2g}"


# -- features --------------------------------------------------------------------------------------


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
