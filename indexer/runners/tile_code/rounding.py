"""How far rounding may take the elements of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.computation import Computation

__all__ = ["elementwise", "may_jump", "of", "tolerance_of"]

_Array = NDArray[Any]
_UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}
#: Roundings that one operation may cost: vector functions and reciprocals are not exact.
_COST = 16.0
#: What turns rounded numbers into whole ones or into a decision.
_DECIDES = frozenset(
    "ceil compare floor is-finite remainder round-nearest-afz round-nearest-even sign".split()  # noqa: SIM905
)
_EXACT = frozenset(
    """
    parameter constant iota broadcast transpose reshape bitcast slice reverse copy pad concatenate
    maximum minimum negate abs select clamp
    """.split()  # noqa: SIM905 - a table of words
)


def of(value: _Array, error: _Array | None) -> _Array:
    """An error as an array."""
    return np.zeros(np.shape(value)) if error is None else error


def tolerance_of(kernel: Computation) -> float:
    """The relative error that rounding explains, of the type that computes and as often as its
    longest sum adds up: random as its root, and beyond that in one direction. 0: whole numbers."""
    types = {shape.dtype for op in kernel.operations for shape in op.results}
    if not types & set(_UNITS):
        return 0.0
    unit = _UNITS["f32" if "f32" in types else "f64"]
    length = kernel.reduced
    return float(unit * (_COST + 4 * length**0.5 + length / 32))


def may_jump(kernel: Computation) -> bool:
    """Whether rounding can turn a decision; a few elements may then be anything."""
    exact: list[bool] = []
    for op in kernel.operations:
        before = all(exact[o] for o in op.operands)
        real = any(kernel.operations[o].shape.dtype.startswith("f") for o in op.operands)
        whole = op.opcode == "convert" and not op.shape.dtype.startswith("f")
        if real and not before and (op.opcode in _DECIDES or whole):
            return True
        exact.append(before and op.opcode in _EXACT)
    return False


def elementwise(opcode: str, value: _Array, operands: Sequence[Any]) -> _Array | None:
    """The error of an element-wise operation; each of `operands` is a value and its error."""
    values = [operand.value for operand in operands]
    if opcode in ("select", "clamp", "maximum", "minimum", "negate", "abs") and all(
        operand.error is None for operand in operands
    ):
        return None
    errors = [of(*operand) if operand.value.dtype.kind == "f" else 0.0 for operand in operands]
    found = _passed_on(opcode, value, values, errors)
    if opcode in ("select", "clamp", "maximum", "minimum", "negate", "abs"):
        return np.broadcast_to(found, value.shape)
    return np.broadcast_to(found, value.shape) + np.abs(value)


def _passed_on(opcode: str, value: _Array, a: list[_Array], e: list[Any]) -> Any:
    """What the errors of the operands become: by the derivative in each."""
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
        case "exponential":
            return e[0] * value
        case "exponential-minus-one":
            return e[0] * (value + 1)
        case "log":
            return e[0] / np.abs(a[0]) + 1
        case "log-plus-one":
            return e[0] / np.abs(1 + a[0]) + 1
        case "tanh":
            return e[0] * (1 - value * value)
        case "logistic":
            return e[0] * value
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
