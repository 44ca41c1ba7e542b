"""How many terms each element of a result is the sum of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.tensors.operation import Operation, Shape

__all__ = ["reduced"]


def reduced(operation: Operation, operands: Sequence[Shape]) -> int:
    """Of a contraction, a convolution or a reduction the terms that one element of the result is
    made of; of all others 1. `operands`: their shapes, in order."""
    if not operands:
        return 1
    match operation.opcode:
        case "dot":
            return _along(operands[0], operation.dims("lhs_contracting"))
        case "convolution":
            return math.prod(operation.dims("size")) * _input_features(operation, operands)
        case "reduce":
            return _along(operands[0], operation.dims("dimensions"))
        case "reduce-window":
            return max(math.prod(operation.dims("size")), 1)
    return 1


def _along(shape: Shape, dimensions: Sequence[int]) -> int:
    return math.prod(shape.dims[d] for d in dimensions if 0 <= d < shape.rank)


def _input_features(operation: Operation, operands: Sequence[Shape]) -> int:
    """Of one group: the dimension `i` of the kernel's labels."""
    labels = str(operation.attributes.get("labels", ""))
    kernel = labels.partition("_")[2].partition("->")[0]
    at = kernel.find("i")
    return operands[1].dims[at] if len(operands) > 1 and 0 <= at < operands[1].rank else 1
