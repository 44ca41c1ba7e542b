"""How far rounding may take the elements of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["elementwise_error", "error_of"]

_Array = NDArray[Any]


def error_of(value: _Array, error: _Array | None) -> _Array:
    """An error as an array."""
    return np.zeros(np.shape(value)) if error is None else error


def elementwise_error(opcode: str, value: _Array, operands: Sequence[Any]) -> _Array | None:
    """The error of an element-wise operation; each of `operands` is a value and its error."""
    values = [operand.value for operand in operands]
    if opcode in ("select", "clamp", "maximum", "minimum", "negate", "abs") and all(
        operand.error is None for operand in operands
    ):
        return None
    errors = [
        error_of(*operand) if operand.value.dtype.kind == "f" else 0.0 for operand in operands
    ]
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
