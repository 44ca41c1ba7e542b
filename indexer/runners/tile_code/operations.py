"""Operations of tensor kernels in numpy, from their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from embeddb.tensors.tensor_graph import Operation


def _divide(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    towards_zero = np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))
    return np.where(
        b == 0, np.full_like(a, -1 if a.dtype.kind == "i" else ~a.dtype.type(0)), towards_zero
    )


def _remainder(a: Any, b: Any) -> Any:
    return (
        np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))
        if a.dtype.kind != "f"
        else np.fmod(a, b)
    )


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
    batch = len(op.dims("lhs_batch"))
    left, free_left = _matrices(lhs, op.dims("lhs_batch"), op.dims("lhs_contracting"), last=True)
    right, free_right = _matrices(rhs, op.dims("rhs_batch"), op.dims("rhs_contracting"), last=False)
    shared = tuple(lhs.shape[d] for d in op.dims("lhs_batch"))
    assert batch == len(shared)
    return np.asarray(np.matmul(left, right).reshape(*shared, *free_left, *free_right))


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
    rank = array.ndim
    window = {name: op.dims(name) or (one,) * rank for name, one in _USUAL.items()}
    wide = padded(array, window["low"], window["high"], window["lhs_dilate"], fill)
    yield from (part for _, part in _seen(wide, op.dims("size"), window))


_USUAL = {"stride": 1, "low": 0, "high": 0, "lhs_dilate": 1, "rhs_dilate": 1, "reversal": 0}


def _seen(
    wide: _Array, size: Sequence[int], window: dict[str, tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], _Array]]:
    """Position in the window, and the elements under it, over the first dimensions."""
    count = [
        (n - (s - 1) * step - 1) // stride + 1
        for n, s, step, stride in zip(
            wide.shape, size, window["rhs_dilate"], window["stride"], strict=False
        )
    ]
    for at in itertools.product(*map(range, size)):
        part = tuple(
            slice(a * step, a * step + (n - 1) * stride + 1, stride)
            for a, step, n, stride in zip(
                at, window["rhs_dilate"], count, window["stride"], strict=True
            )
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
    window = {name: op.dims(name) or (one,) * rank for name, one in _USUAL.items()}
    image = lhs.transpose([of_lhs.index(c) for c in (*spatial, "b", "f")])
    weights = kernel.transpose([of_kernel.index(c) for c in (*spatial, "i", "o")])
    ends = (0, 0)
    image = padded(
        image, (*window["low"], *ends), (*window["high"], *ends), (*window["lhs_dilate"], 1, 1), 0
    )
    turned = tuple(slice(None, None, -1 if r else 1) for r in window["reversal"])
    weights = weights[turned]
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


#: A function that is linear in both of its operands.
Bilinear = Callable[[Operation, _Array, _Array], _Array]
