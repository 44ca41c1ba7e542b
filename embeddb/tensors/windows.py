"""Which positions of a window meet an element, and what a convolution's labels say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embeddb.core.errors import TensorError
from embeddb.tensors.operation import Operation

__all__ = ["ConvolutionLabels", "meeting", "spatial_meeting"]

#: Above so many positions on both sides, padding no longer matters.
_MOST_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True)
class ConvolutionLabels:
    """`b01f_01io->b01f`: which dimension of the input, the weights and the result is what. The
    spatial ones are in the order of the window."""

    batch: int
    feature: int
    spatial: tuple[int, ...]
    weights_in: int
    weights_out: int
    weights_spatial: tuple[int, ...]
    out_batch: int
    out_feature: int
    out_spatial: tuple[int, ...]

    @classmethod
    def of(cls, operation: Operation) -> ConvolutionLabels:
        """Raises: TensorError where the labels are none, or not those of the window."""
        text = str(operation.attributes.get("labels", ""))
        given, _, out = text.partition("->")
        lhs, _, weights = given.partition("_")
        rank = len(operation.dims("size"))
        digits = tuple(str(at) for at in range(rank))
        wanted = ((lhs, "bf"), (weights, "io"), (out, "bf"))
        if rank > 8 or any(sorted(part) != sorted((*digits, *ends)) for part, ends in wanted):
            raise TensorError(f"a convolution with the labels {text[:60]!r} is not known")
        return cls(
            lhs.index("b"),
            lhs.index("f"),
            tuple(map(lhs.index, digits)),
            weights.index("i"),
            weights.index("o"),
            tuple(map(weights.index, digits)),
            out.index("b"),
            out.index("f"),
            tuple(map(out.index, digits)),
        )


def spatial_meeting(operation: Operation, sizes: tuple[int, ...], outs: tuple[int, ...]) -> int:
    """Of a window over dimensions of these sizes, with so many positions of the result in each: the
    pairs of a position of the result and one of the window that meet an element, not padding and
    not a hole of a dilation."""
    parts = [operation.dims(n) for n in ("size", "stride", "low", "lhs_dilate", "rhs_dilate")]
    if any(len(part) != len(sizes) for part in parts):
        raise TensorError("the window has not as many dimensions as what it goes over")
    by_dimension = zip(sizes, outs, *parts, strict=True)
    return math.prod(meeting(*one) for one in by_dimension)


def meeting(
    size: int, out: int, window: int, stride: int, low: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """As `spatial_meeting`, of one dimension: pairs (o, k) with o below `out` and k below `window`
    for which o * stride + k * rhs_dilate - low is a multiple of `lhs_dilate` and, divided by it, a
    place below `size`."""
    if min(out, window) > _MOST_COUNTED:
        return out * window
    many, step, few, few_step = out, stride, window, rhs_dilate
    if few > many:
        many, step, few, few_step = few, few_step, many, step
    last = (size - 1) * max(lhs_dilate, 1)
    return sum(
        _multiples(at * few_step - low, max(step, 1), many, last, max(lhs_dilate, 1))
        for at in range(few)
    )


def _multiples(start: int, step: int, count: int, last: int, of: int) -> int:
    """How many of the `count` numbers from `start` by `step` are multiples from 0 to `last`."""
    lowest = max(0, -(start // step))
    highest = min(count - 1, (last - start) // step)
    common = math.gcd(step, of)
    if start % common or highest < lowest:
        return 0
    period = of // common
    first = -start // common * pow(step // common, -1, period) % period if period > 1 else 0
    lowest += (first - lowest) % period
    return 0 if lowest > highest else (highest - lowest) // period + 1
