"""Seconds of fused kernels as sums over their operations, each told by boosted trees.

A kernel takes the sum over its call and its operations of exp(usual + trees(row)): `usual` is a
guess (`operation_forms.rough_seconds`), rows are those of `operation_rows`. That sums are right
where operations of a kind never met together is what flat rows of whole kernels cannot say. The
file has a member's tensors (`trees_numpy.TENSORS`).

Source: ours; "A Learned Performance Model for Tensor Processing Units" (Section 3.2) sums over
operations in its per-node reduction, of a graph network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files.gate import refusing
from embeddb.cost_model.trees_numpy import Forest
from embeddb.tensors.computation import Computation
from embeddb.tensors.encoding.operation_rows import (
    OPERATION,
    USUAL,
    operation_places,
    operation_rows,
    operations_version,
)
from embeddb.tensors.encoding.predictor import KernelPredictor

__all__ = ["OperationTrees"]

_AGAIN = "train it again with `embeddb train kernels`"
#: A part that is nothing, where logarithms are taken of what is left.
_LEAST_S = 1e-9


class OperationTrees(KernelPredictor):
    """Of one member."""

    task = "fused"

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Raises: ModelError for what are no trees over the rows of operations."""
        self.card = dict(card)
        with refusing(ModelError, where=where, hint=_AGAIN):
            read = self.card["network"]
            if read["task"] != self.task:
                raise ModelError(f"its trees are of {read['task']!r}")
            if read.get("operations") != operations_version():
                raise ModelError("its trees read operations that are told otherwise")
            self._forest = Forest([weights], [slice(0, len(OPERATION))])

    def parts(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[x] seconds of rows float32[x,f] as `operation_rows` gives them, of however many
        kernels."""
        told: NDArray[np.float64] = self._forest.score(rows)[0]
        with np.errstate(over="ignore"):  # of weights that make no number: whoever asks looks
            return np.exp(rows[:, USUAL] + told)

    def by_operation(self, kernel: Computation) -> tuple[float, dict[int, float]]:
        """Seconds of the call of a kernel, and by place of the operations that take any."""
        call, *each = self.parts(operation_rows(kernel)).tolist()
        return call, dict(zip(operation_places(kernel), each, strict=True))

    def scores(
        self, kernel: Computation, tiles: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float32]:
        total = self.parts(operation_rows(kernel)).sum()
        return np.full(len(tiles), np.log(total), dtype=np.float32)

    def without(
        self, kernel: Computation, tiles: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float32]:
        """An operation that is hidden takes no time."""
        parts = self.parts(operation_rows(kernel))
        left = np.full(len(kernel.operations), parts.sum())
        left[list(operation_places(kernel))] -= parts[1:]
        logs = np.log(np.maximum(left, _LEAST_S)).astype(np.float32)
        return np.repeat(logs[:, None], len(tiles), axis=1)
