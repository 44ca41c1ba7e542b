"""Shape features of an operation; counts are encoded by `log_size`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from embeddb.core.errors import TensorError
from embeddb.core.sizes import log_size
from embeddb.tensors.analysis import COMBINES, MOVING, TRANSCENDENTAL, Work, operation_work
from embeddb.tensors.edges import ConvolutionLabels
from embeddb.tensors.tensor_graph import Operation, Shape, reduced

#: Features of `form_of`. `run`: length of contiguous, consecutively visited pieces;
#: `minor`: 2 if the operation acts on the vectorised dimension, else 1; `pieces`: number of
#: alternations of batch, kept and contracted dimensions in memory; `X_batch`: batch dimensions are
#: outermost (1) or not (2); `X_even`: number of times that X can be halved.
FORM: tuple[str, ...] = (
    # Products, and operations lowered to them.
    *("rows", "columns", "terms", "batch", "lhs_minor", "rhs_minor", "summed"),
    *("lhs_pieces", "rhs_pieces", "lhs_batch", "rhs_batch"),
    # Windows and convolutions.
    *("window", "window_minor", "stride", "stride_minor", "padded", "spatial", "positions"),
    *("channels", "features", "given_holes", "window_holes", "groups", "batch_groups"),
    *("reversed", "meeting", "given_order", "window_order", "out_order"),
    *("columns_even", "terms_even", "channels_even"),
    # Reductions, data movement, gathers.
    *("minor", "run", "kept", "along", "combine", "results", "from_bytes", "from_float"),
)
#: Non-zero features by name.
Form = dict[str, float]
_MOST_HALVINGS = 6
_COMBINES = ("other", *COMBINES)


def halvings(value: int) -> float:
    """Number of times that a count can be halved, up to the width of vectors; 0 for none."""
    return float(min((value & -value).bit_length() - 1, _MOST_HALVINGS)) if value > 0 else 0.0


def combine_number(op: Operation) -> float:
    """Number of the combining operation; 1 for one without a name."""
    word = op.attributes.get("combine", "other")
    return 1.0 + _COMBINES.index(word) if word in _COMBINES else 1.0


def _transpose(op: Operation, operands: Sequence[Shape]) -> Form:
    """`run`: contiguous before and after; `along`: distance of the result's neighbours before."""
    shape, order = operands[0], op.dims("dimensions")
    before, after = shape.layout, tuple(order[d] for d in op.shape.layout)
    run = 1
    for one, other in zip(before, after, strict=True):
        if one != other:
            break
        run *= shape.dims[one]
    moved = [d for d in after if shape.dims[d] > 1]
    stays = moved == [d for d in before if shape.dims[d] > 1]
    away = 1
    for d in before:
        if not moved or d == moved[0]:
            break
        away *= shape.dims[d]
    return {
        "minor": 1.0 + (not stays),
        "run": log_size(run),
        "along": log_size(away),
        "kept": log_size(shape.dims[before[0]] if before else 1),
    }


def _reshape(op: Operation, operands: Sequence[Shape]) -> Form:
    plain = all(s.layout == tuple(reversed(range(s.rank))) for s in (op.shape, operands[0]))
    return {"minor": 1.0 + (not plain)}


def _broadcast(op: Operation, operands: Sequence[Shape]) -> Form:
    own = op.dims("dimensions")
    run = 1
    for d in op.shape.layout:
        if d not in own:
            break
        run *= op.shape.dims[d]
    inside = bool(op.shape.rank) and op.shape.layout[0] in own
    return {"minor": 1.0 + inside, "run": log_size(run), "kept": log_size(operands[0].elements)}


def _slice(op: Operation, operands: Sequence[Shape]) -> Form:
    """Slice, pad or dynamic slice: contiguous pieces of the smaller array in the larger."""
    part, whole = op.shape, operands[0]
    if part.elements > whole.elements:
        part, whole = whole, part
    stride = op.dims("stride") or tuple(1 + inside for inside in op.dims("interior"))
    return {**_piece(part, whole), "stride": log_size(math.prod(stride) - 1)}


def _update(op: Operation, operands: Sequence[Shape]) -> Form:
    return {**_piece(operands[1], operands[0]), "kept": log_size(operands[1].elements)}


def _piece(part: Shape, whole: Shape) -> Form:
    run = 1
    for d in whole.layout:
        run *= part.dims[d]
        if part.dims[d] != whole.dims[d]:
            break
    inside = bool(whole.rank) and part.dims[whole.layout[0]] == whole.dims[whole.layout[0]]
    return {"minor": 1.0 + inside, "run": log_size(run)}


def _concatenate(op: Operation, operands: Sequence[Shape]) -> Form:
    at = op.number("dimension")
    inside = op.shape.layout[0] == at
    return {
        "minor": 1.0 + inside,
        "along": log_size(operands[0].dims[at]),
        "kept": float(len(operands)),
    }


def _reverse(op: Operation, operands: Sequence[Shape]) -> Form:
    return {"minor": 1.0 + (op.shape.layout[0] in op.dims("dimensions"))}


def _sort(op: Operation, operands: Sequence[Shape]) -> Form:
    minor = operands[0].dims[operands[0].layout[0]]
    return {"along": log_size(minor), "results": float(len(op.results))}


def _gather(op: Operation, operands: Sequence[Shape]) -> Form:
    """`run`: number of elements gathered or written together."""
    part = operands[2] if op.opcode == "scatter" and len(operands) > 2 else op.shape
    run = part.dims[part.layout[0]] if part.rank else 1
    form = {"run": log_size(run), "kept": log_size(part.elements), "combine": combine_number(op)}
    return {**form, "along": log_size(operands[0].elements)}


def _factored(op: Operation, operands: Sequence[Shape]) -> Form:
    """Features of a triangular solve, a factorisation or a Fourier transform."""
    return {"along": log_size(operands[0].dims[-1] if operands[0].rank else 1)}


def _convert(op: Operation, operands: Sequence[Shape]) -> Form:
    given_type = operands[0].dtype
    return {
        "from_bytes": operands[0].bytes / max(operands[0].elements, 1),
        "from_float": float("f" in given_type),
    }


def _dot(op: Operation, operands: Sequence[Shape]) -> Form:
    lhs, rhs = operands[0], operands[1]
    sides = [
        (shape, op.dims(f"{side}_contracting"), op.dims(f"{side}_batch"))
        for side, shape in (("lhs", lhs), ("rhs", rhs))
    ]
    terms = math.prod(lhs.dims[d] for d in sides[0][1])
    batch = math.prod(lhs.dims[d] for d in sides[0][2])
    rows, columns = (shape.elements // max(terms * batch, 1) for shape, _, _ in sides)
    return {
        "rows": log_size(rows),
        "columns": log_size(columns),
        "terms": log_size(terms),
        "batch": log_size(batch),
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


def _about_minor(shape: Shape, first: Sequence[int], second: Sequence[int]) -> float:
    """Role of the minor dimension: one of the first (1), contracted or the batch, of the second
    (2), or another (3)."""
    if not shape.rank:
        return 0.0
    minor = shape.layout[0]
    return 1.0 if minor in first else 2.0 if minor in second else 3.0


def _pieces(shape: Shape, contracting: Sequence[int], batch: Sequence[int]) -> float:
    """Runs of dimensions of one role, from the minor one; dimensions of size 1 are skipped."""
    walked = [d for d in shape.layout if shape.dims[d] > 1]
    kinds = [1 if d in contracting else 2 if d in batch else 3 for d in walked]
    return float(sum(one != other for one, other in zip(kinds, [0, *kinds], strict=False)))


def _outermost(shape: Shape, batch: Sequence[int]) -> float:
    if not batch:
        return 0.0
    return 1.0 if tuple(reversed(shape.layout))[: len(batch)] == tuple(batch) else 2.0


def _convolution(op: Operation, operands: Sequence[Shape]) -> Form:
    labels = ConvolutionLabels.of(op)
    lhs, weights, out = operands[0], operands[1], op.shape
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
        "rows": log_size(batch * positions),
        "columns": log_size(features),
        "terms": log_size(window * channels),
        "batch": log_size(batch),
        "spatial": float(len(labels.spatial)),
        "positions": log_size(positions),
        "channels": log_size(channels),
        "features": log_size(features),
        "columns_even": halvings(features),
        "terms_even": halvings(window * channels),
        "channels_even": halvings(channels),
        "given_holes": log_size(math.prod(op.dims("lhs_dilate")) - 1),
        "window_holes": log_size(math.prod(op.dims("rhs_dilate")) - 1),
        "groups": log_size(op.number("feature_groups") - 1),
        "batch_groups": log_size(op.number("batch_groups") - 1),
        "reversed": float(any(op.dims("reversal"))),
        "meeting": operation_work(op, operands).flops / max(2 * dense, 1),
        **{name: _about_minor(shape, (one,), (other,)) for name, shape, one, other in orders},
    }


def _window(op: Operation, minor: int) -> Form:
    size, stride = op.dims("size"), op.dims("stride")
    form = {
        "window": log_size(math.prod(size)),
        "stride": log_size(math.prod(stride)),
        "padded": float(any(op.dims("low")) or any(op.dims("high"))),
    }
    if 0 <= minor < len(size):
        form["window_minor"] = log_size(size[minor])
        form["stride_minor"] = log_size(stride[minor] if minor < len(stride) else 1)
    return form


def _reduce_window(op: Operation, operands: Sequence[Shape]) -> Form:
    minor = operands[0].layout[0] if operands[0].rank else -1
    return {**_window(op, minor), "combine": combine_number(op), "results": float(len(op.results))}


def _reduce(op: Operation, operands: Sequence[Shape]) -> Form:
    shape, over = operands[0], frozenset(op.dims("dimensions"))
    inside = bool(shape.rank) and shape.layout[0] in over
    run = 1
    for d in shape.layout:
        if (d in over) != inside:
            break
        run *= shape.dims[d]
    return {
        "minor": 1.0 + inside,
        "run": log_size(run),
        "terms": log_size(reduced(op, operands)),
        "along": log_size(shape.dims[shape.layout[0]] if shape.rank else 1),
        "combine": combine_number(op),
        "results": float(len(op.results)),
    }


_FORMS: Mapping[str, Callable[[Operation, Sequence[Shape]], Form]] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _slice,
    "dynamic-slice": _slice,
    "dynamic-update-slice": _update,
    "concatenate": _concatenate,
    "reverse": _reverse,
    "sort": _sort,
    "gather": _gather,
    "scatter": _gather,
    "cholesky": _factored,
    "triangular-solve": _factored,
    "fft": _factored,
    "convert": _convert,
    "compare": _convert,
    "dot": _dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _reduce_window,
}


#: Seconds on a core of 2020 for one multiply-add of a product, one of a convolution, a function
#: call, an element moved one by one, and an element computed.
_PRODUCT_S, _CONVOLUTION_S, _FUNCTION_S, _MOVED_S, _COMPUTED_S = 5e-11, 1e-10, 1e-9, 5e-10, 1.5e-10
_LEAST_S = 2e-8


def rough_seconds(op: Operation, work: Work) -> float:
    """Rough estimate of an operation's time in seconds; models learn the log ratio to it."""
    elements = op.shape.elements
    size = max(op.shape.bytes / max(elements, 1), 1) / 4
    if op.opcode == "dot":
        return _LEAST_S + work.flops / 2 * _PRODUCT_S
    if op.opcode == "convolution":
        return _LEAST_S + work.flops / 2 * _CONVOLUTION_S
    if op.opcode in TRANSCENDENTAL:
        return _LEAST_S + work.transcendentals * _FUNCTION_S * size
    if op.opcode in MOVING:
        return _LEAST_S + elements * _MOVED_S * size
    calls = work.transcendentals * _FUNCTION_S
    return _LEAST_S + max(work.flops, elements) * _COMPUTED_S * size + calls


def form_of(op: Operation, operands: Sequence[Shape]) -> Mapping[str, float]:
    """Features of `FORM` that are not 0, by name."""
    features = _FORMS.get(op.opcode)
    if features is None or not operands:
        return {}
    try:
        return features(op, operands)
    except (TensorError, IndexError, ValueError):  # attributes that do not fit the operands
        return {}
