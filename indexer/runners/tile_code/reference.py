"""A kernel evaluated by numpy in double precision, with the rounding error bound of each element.

Each value comes with the sum of the rounded magnitudes in its computation, in units of the rounding
error: running error analysis (Higham, "Accuracy and Stability of Numerical Algorithms", 3.3).
Nothing here is shared with the code generator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph


def _divide(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    by = np.where(b == 0, 1, b).astype(a.dtype)
    towards_zero = a // by + ((a % by != 0) & ((a < 0) != (by < 0)))
    return np.where(
        b == 0, np.full_like(a, -1 if a.dtype.kind == "i" else ~a.dtype.type(0)), towards_zero
    )


def _remainder(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))


def _not(a: Any) -> Any:
    return np.logical_not(a) if a.dtype == np.bool_ else np.invert(a)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "cosine": np.cos,
    "divide": _divide,
    "erf": erf,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "floor": np.floor,
    "is-finite": np.isfinite,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": _not,
    "or": np.bitwise_or,
    "power": np.power,
    "remainder": _remainder,
    "round-nearest-afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "round-nearest-even": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select": np.where,
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}


_Array = NDArray[Any]


def dot(op: Operation, lhs: _Array, rhs: _Array) -> _Array:
    """Product with batch dimensions first, then the free ones of both."""
    left, free_left = _matrices(lhs, op.dims("lhs_batch"), op.dims("lhs_contracting"), last=True)
    right, free_right = _matrices(rhs, op.dims("rhs_batch"), op.dims("rhs_contracting"), last=False)
    shared = tuple(lhs.shape[d] for d in op.dims("lhs_batch"))
    return np.asarray(np.matmul(left, right).reshape((*shared, *free_left, *free_right)))


def _matrices(
    array: _Array, batch: Sequence[int], summed: Sequence[int], *, last: bool
) -> tuple[_Array, tuple[int, ...]]:
    """[batch, free, summed], or summed before free, and the lengths of the free dimensions."""
    free = [d for d in range(array.ndim) if d not in (*batch, *summed)]
    lengths = [int(np.prod([array.shape[d] for d in dims])) for dims in (batch, free, summed)]
    order = (*batch, *free, *summed) if last else (*batch, *summed, *free)
    shape = lengths if last else [lengths[0], lengths[2], lengths[1]]
    return array.transpose(order).reshape(shape), tuple(array.shape[d] for d in free)


def padded(
    array: _Array, low: Sequence[int], high: Sequence[int], gap: Sequence[int], fill: Any
) -> _Array:
    """The array with `gap` - 1 elements between any two, and more (or fewer) at the ends."""
    spread = tuple((n - 1) * g + 1 for n, g in zip(array.shape, gap, strict=True))
    wide = np.full(spread, fill, array.dtype)
    wide[tuple(slice(None, None, g) for g in gap)] = array
    around = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    wide = np.pad(wide, around, constant_values=fill)
    cut = [(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, wide.shape, strict=True)]
    return wide[tuple(slice(a, b) for a, b in cut)]


def window_terms(op: Operation, array: _Array, fill: Any) -> Iterator[_Array]:
    """Elements under a window over all dimensions, for each position in the window."""
    window = _window(op, array.ndim)
    wide = padded(array, window["low"], window["high"], window["lhs_dilate"], fill)
    yield from (part for _, part in _seen(wide, op.dims("size"), window))


_USUAL = {"stride": 1, "low": 0, "high": 0, "lhs_dilate": 1, "rhs_dilate": 1, "reversal": 0}


def _window(op: Operation, rank: int) -> dict[str, tuple[int, ...]]:
    return {name: op.dims(name) or (usual,) * rank for name, usual in _USUAL.items()}


def _seen(
    wide: _Array, size: Sequence[int], window: dict[str, tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], _Array]]:
    """Position in the window, and the elements under it, over the first dimensions."""
    steps, strides = window["rhs_dilate"], window["stride"]
    for at in itertools.product(*map(range, size)):
        places = zip(wide.shape, at, size, steps, strides, strict=False)
        part = tuple(
            slice(a * step, max(0, n - (s - 1 - a) * step), stride)
            for n, a, s, step, stride in places
        )
        yield at, wide[part]


def convolution(op: Operation, lhs: _Array, kernel: _Array) -> _Array:
    """Convolution, in groups of features if it has any."""
    rank = len(op.dims("size"))
    spatial = [str(n) for n in range(rank)]
    labels = str(op.attributes["labels"])
    of_lhs, _, rest = labels.partition("_")
    of_kernel, _, of_out = rest.partition("->")
    groups = int(str(op.attributes.get("feature_groups", 1)))
    window = _window(op, rank)
    image = lhs.transpose([of_lhs.index(c) for c in (*spatial, "b", "f")])
    weights = kernel.transpose([of_kernel.index(c) for c in (*spatial, "i", "o")])
    ends = (0, 0)
    image = padded(
        image, (*window["low"], *ends), (*window["high"], *ends), (*window["lhs_dilate"], 1, 1), 0
    )
    weights = np.flip(weights, tuple(np.flatnonzero(window["reversal"])))
    result: Any = 0
    for at, part in _seen(image, op.dims("size"), window):
        result = result + _grouped(part, weights[at], groups)
    order = [[*spatial, "b", "f"].index(c) for c in of_out]
    return np.asarray(result).transpose(order)


def _grouped(part: _Array, weights: _Array, groups: int) -> _Array:
    """[..., f] by [i, o]."""
    if groups == 1:
        return np.asarray(np.matmul(part, weights))
    apart = part.reshape(*part.shape[:-1], groups, -1)
    of_group = weights.reshape(weights.shape[0], groups, -1)
    product = np.einsum("...gi,igo->...go", apart, of_group)
    return np.asarray(product.reshape(*part.shape[:-1], -1))


DTYPE_OF: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "pred": np.bool_,
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
#: Function of each `combine` for two arrays, and along dimensions.
_COMBINES: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
_VIEWS = frozenset(
    "broadcast transpose reshape bitcast slice reverse copy optimization-barrier".split()  # noqa: SIM905
)


class Bounded(NamedTuple):
    """A value and its error bound; None if it is exact."""

    value: _Array
    error: _Array | None = None


def logical(flat: _Array, shape: Shape) -> _Array:
    """Elements in memory order as an array of the shape's dimensions."""
    order = tuple(reversed(shape.layout))
    return flat.reshape([shape.dims[d] for d in order]).transpose(np.argsort(order))


def physical(array: _Array, shape: Shape) -> _Array:
    """The inverse: flat, in memory order."""
    return np.ascontiguousarray(array.transpose(tuple(reversed(shape.layout)))).reshape(-1)


def evaluate(kernel: TensorGraph, arrays: Sequence[_Array]) -> list[Bounded]:
    """The outputs, as arrays of their dimensions, from the parameters, each flat in memory order,
    which are not changed.

    Raises: TensorError for an unsupported operation.
    """
    values: dict[int, Bounded] = {}
    left = [len(users) for users in kernel.users]
    numbers = {at: n for n, at in enumerate(kernel.parameters)}
    with np.errstate(all="ignore"):
        for at, op in enumerate(kernel.operations):
            if at in numbers:
                array = logical(arrays[numbers[at]], op.shape)
                values[at] = Bounded(array.astype(_type(op.shape), copy=False))
            else:
                value = _value(op, [values[o] for o in op.operands], kernel.operand_shapes(at))
                values[at] = _overflowed(value) if op.shape.dtype == "f32" else value
            for operand in dict.fromkeys(op.operands):
                left[operand] -= 1
                if not left[operand] and operand not in kernel.outputs:
                    del values[operand]
    return [values[at] for at in kernel.outputs]


_LARGEST = float(np.finfo(np.float32).max)


def _overflowed(of: Bounded) -> Bounded:
    """An f32 value with infinities, of unbounded error, where it is too large for its type."""
    large = np.isfinite(of.value) & (np.abs(of.value) > _LARGEST)
    if not large.any():
        return of
    value = np.where(large, np.copysign(np.inf, of.value), of.value)
    return Bounded(value, np.where(large, np.inf, error_of(*of)))


def _value(op: Operation, of: Sequence[Bounded], shapes: Sequence[Shape]) -> Bounded:
    if op.opcode in _VIEWS:
        value, error = of[0]
        seen = None if error is None else _view(op, error, shapes[0])
        return Bounded(_view(op, value, shapes[0]), seen)
    match op.opcode:
        case "constant":
            return Bounded(_constant(op.shape, str(op.attributes["value"])))
        case "iota":
            along = int(str(op.attributes["dimension"]))
            line = np.arange(op.shape.dims[along]).reshape(
                [-1 if d == along else 1 for d in range(op.shape.rank)]
            )
            return Bounded(np.broadcast_to(line, op.shape.dims).astype(_type(op.shape)))
        case "pad":
            low, high = op.dims("low"), op.dims("high")
            gap = tuple(g + 1 for g in op.dims("interior")) or (1,) * len(low)
            error = None if of[0].error is None else padded(of[0].error, low, high, gap, 0)
            return Bounded(padded(of[0].value, low, high, gap, of[1].value[()]), error)
        case "concatenate":
            along = int(str(op.attributes["dimension"]))
            value = np.concatenate([o.value for o in of], along)
            if all(o.error is None for o in of):
                return Bounded(value)
            return Bounded(value, np.concatenate([error_of(*o) for o in of], along))
        case "dot":
            return _bilinear(dot, op, of)
        case "convolution":
            return _bilinear(convolution, op, of)
        case "reduce":
            return _reduce(op, of)
        case "reduce-window":
            return _reduce_window(op, of)
    return _elementwise(op, of, shapes)


def _type(shape: Shape) -> Any:
    return np.float64 if shape.dtype == "f32" else DTYPE_OF[shape.dtype]


def _constant(shape: Shape, text: str) -> _Array:
    dtype = DTYPE_OF[shape.dtype]
    number: Any = text.lower()
    if shape.dtype == "pred":
        number = number in ("true", "1")
    else:
        number = float(number) if shape.dtype.startswith("f") else int(number)
    return np.broadcast_to(np.asarray(np.asarray(number, dtype), _type(shape)), shape.dims)


def _view(op: Operation, array: _Array, shape: Shape) -> _Array:
    match op.opcode:
        case "broadcast":
            to = op.dims("dimensions")
            wide = [1] * op.shape.rank
            for d, n in zip(to, array.shape, strict=True):
                wide[d] = n
            return np.broadcast_to(array.transpose(np.argsort(to)).reshape(wide), op.shape.dims)
        case "transpose":
            return array.transpose(op.dims("dimensions"))
        case "reshape":
            return array.reshape(op.shape.dims)
        case "bitcast":
            return logical(physical(array, shape), op.shape)
        case "slice":
            stride = op.dims("stride") or (1,) * op.shape.rank
            parts = zip(op.dims("start"), op.dims("limit"), stride, strict=True)
            return array[tuple(slice(*part) for part in parts)]
        case "reverse":
            return np.flip(array, op.dims("dimensions"))
    return array


def _bilinear(compute: Callable[..., _Array], op: Operation, of: Sequence[Bounded]) -> Bounded:
    """The value of a function that is linear in both of its operands."""
    (a, error_a), (b, error_b) = of
    if not op.shape.dtype.startswith("f"):
        return Bounded(compute(op, a.astype(np.int64), b.astype(np.int64)).astype(_type(op.shape)))
    value = compute(op, a, b)
    size_a, size_b = np.abs(a), np.abs(b)
    error = compute(op, size_a, size_b)
    if error_a is not None:
        error = error + compute(op, error_a, size_b)
    if error_b is not None:
        error = error + compute(op, size_a, error_b)
    return Bounded(value, error)


def _reduce(op: Operation, of: Sequence[Bounded]) -> Bounded:
    combine, along = _COMBINES[str(op.attributes["combine"])], op.dims("dimensions")
    (array, error), start = of[0], of[1].value
    value = combine(combine.reduce(array, axis=along), start).astype(array.dtype)
    if not op.shape.dtype.startswith("f"):
        return Bounded(value)
    errors = error_of(array, error)
    if combine is np.add:
        return Bounded(value, np.sum(np.abs(array) + errors, axis=along) + np.abs(start))
    if combine is np.multiply:
        count = array.size / max(value.size, 1)
        share = np.sum(np.where(errors > 0, errors / np.abs(array), 0), axis=along)
        return Bounded(value, np.abs(value) * (share + count))
    return Bounded(value, None if error is None else np.max(errors, axis=along, initial=0))


def _reduce_window(op: Operation, of: Sequence[Bounded]) -> Bounded:
    combine = _COMBINES[str(op.attributes["combine"])]
    (array, error), start = of[0], of[1].value[()]
    value: Any = start
    for term in window_terms(op, array, start):
        value = combine(value, term)
    value = np.asarray(value, array.dtype)
    if not op.shape.dtype.startswith("f"):
        return Bounded(value)
    errors: Any = 0
    sizes = np.abs(array) if combine is np.add else np.zeros_like(array)
    for term in window_terms(op, error_of(array, error) + sizes, 0):
        errors = errors + term if combine is np.add else np.maximum(errors, term)
    return Bounded(value, np.asarray(errors))


def _elementwise(op: Operation, of: Sequence[Bounded], shapes: Sequence[Shape]) -> Bounded:
    values = [o.value for o in of]
    function: Callable[..., Any] | None = FUNCTIONS.get(op.opcode)
    if op.opcode == "compare":
        function = _COMPARISONS[str(op.attributes["direction"])]
    if op.opcode == "convert":
        return Bounded(_converted(values[0], op.shape), of[0].error)
    if function is None:
        raise TensorError(f"{op.opcode} is not supported by the reference")
    value = np.asarray(function(*values))
    value = np.broadcast_to(value, op.shape.dims).astype(_type(op.shape), copy=False)
    if not op.shape.dtype.startswith("f"):
        return Bounded(value)
    return Bounded(value, elementwise_error(op.opcode, value, of))


def _converted(array: _Array, shape: Shape) -> _Array:
    if shape.dtype == "f32":
        return array.astype(np.float32).astype(np.float64) if array.dtype.kind != "f" else array
    if array.dtype.kind == "f" and shape.dtype != "f64" and shape.dtype != "pred":
        range_ = np.iinfo(DTYPE_OF[shape.dtype])
        outside = [np.isnan(array), array <= range_.min, array >= float(range_.max)]
        inside = np.where(np.any(outside, axis=0), 0, np.trunc(array)).astype(_type(shape))
        ends = [np.asarray(end, _type(shape)) for end in (0, range_.min, range_.max)]
        return np.select(outside, ends, inside)
    return array.astype(_type(shape))


_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def error_of(value: _Array, error: _Array | None) -> _Array:
    """An error as an array."""
    return np.zeros(np.shape(value)) if error is None else error


def elementwise_error(opcode: str, value: _Array, operands: Sequence[Any]) -> _Array | None:
    """The error of an element-wise operation; each of `operands` is a value and its error."""
    values = [operand.value for operand in operands]
    exact = opcode in ("select", "clamp", "maximum", "minimum", "negate", "abs")
    if exact and all(operand.error is None for operand in operands):
        return None
    errors = [
        error_of(*operand) if operand.value.dtype.kind == "f" else 0.0 for operand in operands
    ]
    propagated = np.broadcast_to(_passed_on(opcode, value, values, errors), value.shape)
    return propagated if exact else propagated + np.abs(value)


def _passed_on(opcode: str, value: _Array, a: list[_Array], e: list[Any]) -> Any:
    """Propagated errors of the operands, by the derivative in each."""
    match opcode:
        case "add" | "subtract" | "maximum" | "minimum" | "remainder":
            return e[0] + e[1]
        case "multiply":
            return e[0] * np.abs(a[1]) + e[1] * np.abs(a[0])
        case "divide":
            return (e[0] + e[1] * np.abs(value)) / np.abs(a[1])
        case "select":
            return np.where(a[0], e[1], e[2])
        case "clamp":
            return e[1]
        case "exponential" | "logistic":
            return e[0] * value
        case "exponential-minus-one":
            return e[0] * (value + 1)
        case "log":
            return e[0] / np.abs(a[0]) + 1
        case "log-plus-one":
            return e[0] / np.abs(1 + a[0]) + 1
        case "tanh":
            return e[0] * (1 - value * value)
        case "sqrt":
            return e[0] / np.where(value > 0, value, 1)
        case "rsqrt":
            return e[0] * value**3
        case "cbrt":
            return e[0] * np.abs(value / a[0])
        case "sine" | "cosine":
            return e[0] + np.abs(a[0])
        case "tan":
            return (e[0] + np.abs(a[0])) * (1 + value * value)
        case "power":
            size = np.abs(np.log(np.abs(a[0])))
            return np.abs(value) * (e[0] * np.abs(a[1] / a[0]) + (e[1] + np.abs(a[1])) * size)
        case "atan2":
            return (e[0] + e[1]) / np.hypot(a[0], a[1])
        case "erf":
            return e[0] * 1.2
    return e[0]
