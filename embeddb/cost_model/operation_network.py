"""A network that tells of one row of an operation how far the guess at its seconds is off, as plain
arrays: what a query needs, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files.model_file import product
from embeddb.tensors.encoding.operation_rows import OPERATION

__all__ = ["CLIP", "EPSILON", "NETWORK", "OperationNetwork", "shapes_of"]

#: What the names of its tensors begin with in a file.
NETWORK = "network."
#: Deviations from the mean beyond which a number is read as so many.
CLIP = 5.0
#: What is added to the variance of a layer.
EPSILON = 1e-5
_WIDEST, _DEEPEST = 4096, 16

Floats = NDArray[np.float32]


def shapes_of(hidden: int, layers: int) -> dict[str, tuple[int, ...]]:
    """By name, of all its tensors. `scale` is the mean and deviation of every column; `layers` come
    after the first, each added to what it reads."""
    read = {0: len(OPERATION)}
    made: dict[str, tuple[int, ...]] = {"scale": (2, len(OPERATION))}
    for at in range(layers + 1):
        made[f"layers.{at}.weight"] = (hidden, read.get(at, hidden))
        for name in (f"layers.{at}.bias", f"norms.{at}.weight", f"norms.{at}.bias"):
            made[name] = (hidden,)
    return {**made, "head.weight": (1, hidden), "head.bias": (1,)}


class OperationNetwork:
    """Layers with their outputs normalised (Ba et al., "Layer Normalization", 2016)."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Raises: ModelError for tensors that are not those of such a network; KeyError for one
        that is missing."""
        layers = sum(name.startswith("norms.") and name.endswith(".bias") for name in weights)
        hidden = len(weights["head.weight"].reshape(-1))
        if not 0 < hidden <= _WIDEST or not 0 < layers <= _DEEPEST:
            raise ModelError(f"its network has {layers} layers of {hidden}")
        for name, shape in shapes_of(hidden, layers - 1).items():
            array = weights[name]
            if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
                raise ModelError(f"{name!r} is no float32{list(shape)} of numbers")
        self._mean, self._deviation = weights["scale"]
        if not (self._deviation > 0).all():
            raise ModelError("'scale' has a deviation that is not above 0")
        self._layers = [_Layer(weights, at) for at in range(layers)]
        self._head, self._bias = weights["head.weight"][0], weights["head.bias"][0]

    def told(self, rows: Floats) -> NDArray[np.float64]:
        """float64[x] natural logarithms, of rows float32[x,f] as `operation_rows` gives them."""
        x = np.clip((rows - self._mean) / self._deviation, -CLIP, CLIP)
        first, *others = self._layers
        x = first(x)
        for layer in others:
            x += layer(x)
        return np.asarray(x @ self._head + self._bias, dtype=np.float64)


class _Layer:
    def __init__(self, weights: Mapping[str, NDArray[Any]], at: int) -> None:
        self._weight = weights[f"layers.{at}.weight"]
        self._bias = weights[f"layers.{at}.bias"]
        self._scale, self._shift = weights[f"norms.{at}.weight"], weights[f"norms.{at}.bias"]

    def __call__(self, x: Floats) -> Floats:
        x = product(x, self._weight) + self._bias
        x -= x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + np.float32(EPSILON))
        return np.asarray(np.maximum(x * self._scale + self._shift, 0), dtype=np.float32)
