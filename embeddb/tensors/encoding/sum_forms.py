"""The forms of what sums: products, convolutions, reductions, windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from embeddb.tensors.analysis import operation_work
from embeddb.tensors.encoding.form import Form, combine_number, counted, halvings, whole_number
from embeddb.tensors.operation import Operation, Shape
from embeddb.tensors.reduced import reduced
from embeddb.tensors.windows import ConvolutionLabels

__all__ = ["SUM_FORMS"]


def _dot(op: Operation, given: Sequence[Shape]) -> Form:
    lhs, rhs = given[0], given[1]
    sides = [
        (lhs, op.dims("lhs_contracting"), op.dims("lhs_batch")),
        (rhs, op.dims("rhs_contracting"), op.dims("rhs_batch")),
    ]
    terms = math.prod(lhs.dims[d] for d in sides[0][1])
    batch = math.prod(lhs.dims[d] for d in sides[0][2])
    rows, columns = (shape.elements // max(terms * batch, 1) for shape, _, _ in sides)
    return {
        "rows": counted(rows),
        "columns": counted(columns),
        "terms": counted(terms),
        "batch": counted(batch),
        "lhs_minor": _about_minor(*sides[0]),
        "rhs_minor": _about_minor(*sides[1]),
        "lhs_pieces": _pieces(*sides[0]),
        "rhs_pieces": _pieces(*sides[1]),
        "lhs_batch": _outermost(sides[0][0], sides[0][2]),
        "rhs_batch": _outermost(sides[1][0], sides[1][2]),
        "summed": float(len(sides[0][1])),
        "columns_even": halvings(columns),
        "terms_even": halvings(terms),
    }


def _about_minor(shape: Shape, contracting: Sequence[int], batch: Sequence[int]) -> float:
    """Whether the minor dimension is summed over (1), one for each product (2) or kept (3)."""
    if not shape.rank:
        return 0.0
    minor = shape.layout[0]
    return 1.0 if minor in contracting else 2.0 if minor in batch else 3.0


def _pieces(shape: Shape, contracting: Sequence[int], batch: Sequence[int]) -> float:
    """Runs of dimensions of one kind, from the minor one on; those of size 1 are none."""
    walked = [d for d in shape.layout if shape.dims[d] > 1]
    kinds = [1 if d in contracting else 2 if d in batch else 3 for d in walked]
    return float(sum(one != other for one, other in zip(kinds, [0, *kinds], strict=False)))


def _outermost(shape: Shape, batch: Sequence[int]) -> float:
    if not batch:
        return 0.0
    return 1.0 if tuple(reversed(shape.layout))[: len(batch)] == tuple(batch) else 2.0


def _convolution(op: Operation, given: Sequence[Shape]) -> Form:
    labels = ConvolutionLabels.of(op)
    lhs, weights, out = given[0], given[1], op.shape
    channels, features = weights.dims[labels.weights_in], weights.dims[labels.weights_out]
    positions = math.prod(out.dims[d] for d in labels.out_spatial)
    window = math.prod(op.dims("size"))
    batch = out.dims[labels.out_batch]
    dense = batch * positions * window * channels * features
    orders = (
        ("given_order", lhs, labels.batch, labels.feature),
        ("window_order", weights, labels.weights_out, labels.weights_in),
        ("out_order", out, labels.out_batch, labels.out_feature),
    )
    return {
        **_window(op, len(labels.spatial) - 1),
        "rows": counted(batch * positions),
        "columns": counted(features),
        "terms": counted(window * channels),
        "batch": counted(batch),
        "spatial": float(len(labels.spatial)),
        "positions": counted(positions),
        "channels": counted(channels),
        "features": counted(features),
        "columns_even": halvings(features),
        "terms_even": halvings(window * channels),
        "channels_even": halvings(channels),
        "given_holes": counted(math.prod(op.dims("lhs_dilate")) - 1),
        "window_holes": counted(math.prod(op.dims("rhs_dilate")) - 1),
        "groups": counted(whole_number(op, "feature_groups") - 1),
        "batch_groups": counted(whole_number(op, "batch_groups") - 1),
        "reversed": float(any(op.dims("reversal"))),
        "meeting": operation_work(op, given).flops / max(2 * dense, 1),
        **{name: _place(shape, one, other) for name, shape, one, other in orders},
    }


def _place(shape: Shape, one: int, other: int) -> float:
    """Which dimension is the minor one: the first (1), the second (2), a spatial one (3)."""
    minor = shape.layout[0]
    return 1.0 if minor == one else 2.0 if minor == other else 3.0


def _window(op: Operation, minor: int) -> Form:
    size, stride = op.dims("size"), op.dims("stride")
    found = {
        "window": counted(math.prod(size)),
        "stride": counted(math.prod(stride)),
        "padded": float(any(op.dims("low")) or any(op.dims("high"))),
    }
    if 0 <= minor < len(size):
        found["window_minor"] = counted(size[minor])
        found["stride_minor"] = counted(stride[minor] if minor < len(stride) else 1)
    return found


def _reduce_window(op: Operation, given: Sequence[Shape]) -> Form:
    minor = given[0].layout[0] if given[0].rank else -1
    return {**_window(op, minor), "combine": combine_number(op), "results": float(len(op.results))}


def _reduce(op: Operation, given: Sequence[Shape]) -> Form:
    shape, over = given[0], frozenset(op.dims("dimensions"))
    inside = bool(shape.rank) and shape.layout[0] in over
    run = 1
    for d in shape.layout:
        if (d in over) != inside:
            break
        run *= shape.dims[d]
    return {
        "minor": 1.0 + inside,
        "run": counted(run),
        "terms": counted(reduced(op, given)),
        "along": counted(shape.dims[shape.layout[0]] if shape.rank else 1),
        "combine": combine_number(op),
        "results": float(len(op.results)),
    }


SUM_FORMS: Mapping[str, Callable[[Operation, Sequence[Shape]], Form]] = MappingProxyType(
    {
        "dot": _dot,
        "convolution": _convolution,
        "reduce": _reduce,
        "reduce-window": _reduce_window,
        "select-and-scatter": _reduce_window,
    }
)
