"""Seconds of fused kernels as sums over their operations, from boosted trees, a network or both.

A kernel's seconds are the sum over its call and its operations of exp(rough + error(row)):
`rough` is `tensors.encoding.forms.rough_seconds`, rows are those of `operation_rows`, and trees or
a network predict the error of the rough estimate. Unlike flat rows of whole kernels, a sum
extrapolates to operations that never occurred together. With both, the prediction is the geometric
mean of the two sums: trees fit jumps of the time, a network interpolates between them.

Source: ours; "A Learned Performance Model for Tensor Processing Units" (Section 3.2) sums over
operations in its per-node reduction, of a graph network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.nn_numpy import below, check_weights, dense, layer_norm, relu
from embeddb.cost_model.trees_numpy import Forest
from embeddb.tensors.encoding.operation_rows import (
    BLOCKS,
    CALL,
    OPERATION,
    USUAL,
    operation_places,
    operation_rows,
    operations_version,
)
from embeddb.tensors.encoding.predictor import KernelPredictor
from embeddb.tensors.tensor_graph import TensorGraph

#: Prefixes of the tensors of the network and of the trees (`trees_numpy.TENSORS`) in a file.
NETWORK, TREES = "network.", "trees."
#: Bound of standardised inputs.
CLIP = 5.0
_WIDEST, _DEEPEST = 4096, 16

Floats = NDArray[np.float32]


def shapes_of(hidden: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of an `OperationNetwork` by name. `scale` is the mean and deviation of
    every column; `layers` residual layers follow the first."""
    shapes: dict[str, tuple[int, ...]] = {"scale": (2, len(OPERATION))}
    for at in range(layers + 1):
        shapes[f"layers.{at}.weight"] = (hidden, hidden if at else len(OPERATION))
        for name in (f"layers.{at}.bias", f"norms.{at}.weight", f"norms.{at}.bias"):
            shapes[name] = (hidden,)
    return {**shapes, "head.weight": (1, hidden), "head.bias": (1,)}


class OperationNetwork:
    """Normalised layers, residual but for the first."""

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

    def predict(self, rows: Floats) -> NDArray[np.float64]:
        """Predicted log error float64[x] of the rough seconds of rows float32[x,f]."""
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


#: Lower bound of seconds before taking logarithms.
_LEAST_S = 1e-9


class OperationSums(KernelPredictor):
    """Predictor of fused kernels from the trees, the network or both of a model file."""

    task = "fused"

    def _open(self, network: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        if network["task"] != self.task:
            raise ModelError(f"it predicts operations and is of {network['task']!r}")
        if network.get("operations") != operations_version():
            raise ModelError("it reads operations that are encoded otherwise")
        self._members = _members(weights)
        if not self._members:
            raise ModelError("it has neither trees nor a network of operations")

    def parts(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Seconds float64[x] of the rows float32[x,f] (`operation_rows`) of one or more kernels,
        each of which begins with its call."""
        first = np.flatnonzero(rows[:, CALL])
        counts = np.diff(np.append(first, len(rows)))
        logs, shares = np.zeros(len(first)), np.zeros(len(rows))
        with np.errstate(over="ignore", invalid="ignore"):  # of weights that overflow
            for member in self._members:
                each = np.exp(rows[:, USUAL] + member(rows))
                total = np.add.reduceat(each, first)
                logs += np.log(total) / len(self._members)
                shares += each / np.repeat(total, counts) / len(self._members)
            return np.asarray(shares * np.repeat(np.exp(logs), counts))

    def by_operation(self, kernel: TensorGraph) -> tuple[float, dict[int, float]]:
        """Seconds of the call of a kernel, and by place of the operations that take any."""
        call, *each = self.parts(operation_rows(kernel)).tolist()
        return call, dict(zip(operation_places(kernel), each, strict=True))

    def apart(self, kernel: TensorGraph) -> float:
        """Ratio of the largest to the smallest ensemble prediction; 1 of a single member, infinite
        where one predicts nothing. Far from 1 the predicted seconds are less certain."""
        rows = operation_rows(kernel)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = [float(np.exp(rows[:, USUAL] + member(rows)).sum()) for member in self._members]
        least = min(sums)
        return max(sums) / least if least > 0 else math.inf

    def scores(
        self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float32]:
        total = self.parts(operation_rows(kernel)).sum()
        return np.full(len(tiles), np.log(total), dtype=np.float32)

    def without(
        self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float32]:
        """An operation that is hidden takes no time."""
        parts = self.parts(operation_rows(kernel))
        left = np.full(len(kernel.operations), parts.sum())
        left[list(operation_places(kernel))] -= parts[1:]
        logs = np.log(np.maximum(left, _LEAST_S)).astype(np.float32)
        return np.repeat(logs[:, None], len(tiles), axis=1)


#: From rows float32[x,f] to the log error float64[x] of the rough seconds.
_Member = Callable[[NDArray[np.float32]], NDArray[np.float64]]


def _members(weights: Mapping[str, NDArray[Any]]) -> list[_Member]:
    """Raises: ModelError, or KeyError for a tensor that is missing."""
    members: list[_Member] = []
    if trees := below(weights, TREES):
        forest = Forest([trees], BLOCKS)
        members.append(lambda rows: forest.score(rows)[0])
    if network := below(weights, NETWORK):
        members.append(OperationNetwork(network).predict)
    return members
