"""Element-wise operations in numpy, by their opcodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf

__all__ = ["FUNCTIONS"]


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
