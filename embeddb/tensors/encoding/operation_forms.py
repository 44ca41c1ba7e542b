"""What decides how long one operation takes: how its operands lie in memory, and what it walks over
them; and a guess at its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import MOVING, TRANSCENDENTAL, Work
from embeddb.tensors.encoding.move_forms import MOVE_FORMS
from embeddb.tensors.encoding.sum_forms import SUM_FORMS
from embeddb.tensors.operation import Operation, Shape

__all__ = ["form_of", "rough_seconds"]

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
