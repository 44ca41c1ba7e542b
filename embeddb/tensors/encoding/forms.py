"""Numbers of the form of an operation: what `operation_forms` tells, and how it reads counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import MOVING, TRANSCENDENTAL, Work, operation_work
from embeddb.tensors.edges import ConvolutionLabels
from embeddb.tensors.tensor_graph import Operation, Shape, reduced

#: What `operation_forms.form_of` may tell. `run`: elements that lie and are walked in one piece;
#: `minor`: whether the dimension that is vectorised is the one that the operation is about;
#: `pieces`: how often what is for each product, kept and summed over take turns in memory;
#: `X_batch`: whether what is for each product is outermost (1) or not (2); `X_even`: how often X
#: can be halved.
FORM: tuple[str, ...] = (
    # Of a product, and of what is written as one.
    *("rows", "columns", "terms", "batch", "lhs_minor", "rhs_minor", "summed"),
    *("lhs_pieces", "rhs_pieces", "lhs_batch", "rhs_batch"),
    # Of a window, and of a convolution.
    *("window", "window_minor", "stride", "stride_minor", "padded", "spatial", "positions"),
    *("channels", "features", "given_holes", "window_holes", "groups", "batch_groups"),
    *("reversed", "meeting", "given_order", "window_order", "out_order"),
    *("columns_even", "terms_even", "channels_even"),
    # Of what sums, moves and picks.
    *("minor", "run", "kept", "along", "combine", "results", "from_bytes", "from_float"),
)
#: By name, of those that are not 0.
Form = dict[str, float]
_MOST_HALVINGS = 6
_COMBINES = ("other", "add", "multiply", "minimum", "maximum", "and", "or")


def counted(value: float) -> float:
    """A count, as it is read."""
    return math.log2(1 + abs(value))


def halvings(value: int) -> float:
    """How often a count can be halved, up to what fills the widest vector and more; 0 for none."""
    return float(min((value & -value).bit_length() - 1, _MOST_HALVINGS)) if value > 0 else 0.0


def combine_number(op: Operation) -> float:
    """1 for what is not told by a word."""
    word = op.attributes.get("combine", "other")
    return 1.0 + _COMBINES.index(word) if word in _COMBINES else 1.0


def whole_number(op: Operation, name: str) -> int:
    """An attribute that is one number; 1 where it is none."""
    found = op.attributes.get(name, 1)
    return found if isinstance(found, int) else 1


def _transpose(op: Operation, given: Sequence[Shape]) -> Form:
    """`run`: what lies in one piece before and after; `along`: how far apart in the operand what is
    next to each other in the result lies."""
    shape, order = given[0], op.dims("dimensions")
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
        "run": counted(run),
        "along": counted(away),
        "kept": counted(shape.dims[before[0]] if before else 1),
    }


def _reshape(op: Operation, given: Sequence[Shape]) -> Form:
    plain = all(s.layout == tuple(reversed(range(s.rank))) for s in (op.shape, given[0]))
    return {"minor": 1.0 + (not plain)}


def _broadcast(op: Operation, given: Sequence[Shape]) -> Form:
    own = op.dims("dimensions")
    run = 1
    for d in op.shape.layout:
        if d not in own:
            break
        run *= op.shape.dims[d]
    inside = bool(op.shape.rank) and op.shape.layout[0] in own
    return {"minor": 1.0 + inside, "run": counted(run), "kept": counted(given[0].elements)}


def _slice(op: Operation, given: Sequence[Shape]) -> Form:
    """Of a slice, a pad, a dynamic slice: what of the smaller lies in one piece in the larger."""
    part, whole = op.shape, given[0]
    if part.elements > whole.elements:
        part, whole = whole, part
    stride = op.dims("stride") or tuple(1 + inside for inside in op.dims("interior"))
    return {**_piece(part, whole), "stride": counted(math.prod(stride) - 1)}


def _update(op: Operation, given: Sequence[Shape]) -> Form:
    return {**_piece(given[1], given[0]), "kept": counted(given[1].elements)}


def _piece(part: Shape, whole: Shape) -> Form:
    run = 1
    for d in whole.layout:
        run *= part.dims[d]
        if part.dims[d] != whole.dims[d]:
            break
    inside = bool(whole.rank) and part.dims[whole.layout[0]] == whole.dims[whole.layout[0]]
    return {"minor": 1.0 + inside, "run": counted(run)}


def _concatenate(op: Operation, given: Sequence[Shape]) -> Form:
    at = whole_number(op, "dimension")
    inside = op.shape.layout[0] == at
    return {"minor": 1.0 + inside, "along": counted(given[0].dims[at]), "kept": float(len(given))}


def _reverse(op: Operation, given: Sequence[Shape]) -> Form:
    return {"minor": 1.0 + (op.shape.layout[0] in op.dims("dimensions"))}


def _sort(op: Operation, given: Sequence[Shape]) -> Form:
    minor = given[0].dims[given[0].layout[0]]
    return {"along": counted(minor), "results": float(len(op.results))}


def _gather(op: Operation, given: Sequence[Shape]) -> Form:
    """`run`: of what is picked or written at once."""
    part = given[2] if op.opcode == "scatter" and len(given) > 2 else op.shape
    run = part.dims[part.layout[0]] if part.rank else 1
    found = {"run": counted(run), "kept": counted(part.elements), "combine": combine_number(op)}
    return {**found, "along": counted(given[0].elements)}


def _factored(op: Operation, given: Sequence[Shape]) -> Form:
    """Of a triangular solve, a factorisation, a Fourier transform."""
    return {"along": counted(given[0].dims[-1] if given[0].rank else 1)}


def _convert(op: Operation, given: Sequence[Shape]) -> Form:
    given_type = given[0].dtype
    return {
        "from_bytes": given[0].bytes / max(given[0].elements, 1),
        "from_float": float("f" in given_type),
    }


MOVE_FORMS: Mapping[str, Callable[[Operation, Sequence[Shape]], Form]] = MappingProxyType(
    {
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
    }
)


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


#: Seconds on a core of 2020, of one multiply and add of a product, of a convolution; of a function;
#: of an element that is moved one by one, that is computed.
_PRODUCT_S, _CONVOLUTION_S, _FUNCTION_S, _MOVED_S, _COMPUTED_S = 5e-11, 1e-10, 1e-9, 5e-10, 1.5e-10
_LEAST_S = 2e-8


def rough_seconds(op: Operation, work: Work) -> float:
    """What an operation takes at a guess: what has learned tells how far that is off."""
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


def form_of(op: Operation, given: Sequence[Shape]) -> Mapping[str, float]:
    """By name, of those of `FORM` that are not 0."""
    made = SUM_FORMS.get(op.opcode) or MOVE_FORMS.get(op.opcode)
    if made is None or not given:
        return {}
    try:
        return made(op, given)
    except (TensorError, IndexError, ValueError):  # attributes that fit no operands
        return {}
