"""A network that tells of one row of an operation how far the guess at its seconds is off, as plain
arrays: what a query needs, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.nn_numpy import check_weights, dense, layer_norm, relu
from embeddb.tensors.encoding.operation_rows import OPERATION

#: What the names of its tensors begin with in a file.
NETWORK = "network."
#: Deviations from the mean beyond which a number is read as so many.
CLIP = 5.0
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
    """Layers of which each is normalised and, but for the first, added to what it reads."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Raises: ModelError for tensors that are not those of such a network; KeyError for one
        that is missing."""
        layers = sum(name.startswith("norms.") and name.endswith(".bias") for name in weights)
        hidden = len(weights["head.weight"].reshape(-1))
        if not 0 < hidden <= _WIDEST or not 0 < layers <= _DEEPEST:
            raise ModelError(f"its network has {layers} layers of {hidden}")
        check_weights(weights, shapes_of(hidden, layers - 1))
        self._mean, self._deviation = weights["scale"]
        if not (self._deviation > 0).all():
            raise ModelError("'scale' has a deviation that is not above 0")
        self._weights, self._count = weights, layers

    def told(self, rows: Floats) -> NDArray[np.float64]:
        """float64[x] natural logarithms, of rows float32[x,f] as `operation_rows` gives them."""
        x = np.clip((rows - self._mean) / self._deviation, -CLIP, CLIP)
        x = self._layer(0, x)
        for at in range(1, self._count):
            x += self._layer(at, x)
        head, bias = self._weights["head.weight"][0], self._weights["head.bias"][0]
        return np.asarray(x @ head + bias, dtype=np.float64)

    def _layer(self, at: int, x: Floats) -> Floats:
        return relu(
            layer_norm(dense(x, self._weights, f"layers.{at}"), self._weights, f"norms.{at}")
        )
