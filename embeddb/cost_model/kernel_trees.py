"""Boosted trees on flat features of kernels and tiles, in the place of a network: which tiles are
faster.

Trees whose card names a machine tell what the analytical model misses there: what that says are
columns of theirs, and is added to what they say. Trees have no embedding of a kernel. Their file
has a member's tensors (`trees_numpy.TENSORS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.files.gate import refusing
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.cost_model.trees_numpy import Forest
from embeddb.tensors.computation import Computation
from embeddb.tensors.encoding.features import TILE, encoding_version
from embeddb.tensors.encoding.flat import STATISTICS, TILED, flat_rows
from embeddb.tensors.encoding.forward import KernelNetwork
from embeddb.tensors.encoding.graph import KernelGraph
from embeddb.tensors.encoding.predictor import GraphPredictor, KernelPredictor, reads_rows
from embeddb.tensors.roofline.analysis import ANALYSIS_VERSION, TOLD, Analysis

_AGAIN = "train it again with `embeddb train kernels`"


class KernelTrees(GraphPredictor):
    """Of one member, of tiles."""

    task = "tile"

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Raises: ModelError for what are no trees over rows of tiles."""
        self.card = dict(card)
        with refusing(ModelError, where=where, hint=_AGAIN):
            read = self.card["network"]
            if read["task"] != self.task:
                raise ModelError(f"its trees are of {read['task']!r}")
            if read["encoding"] != encoding_version():
                raise ModelError("its trees read kernels that are encoded otherwise")
            self._analysis = _analysis(read)
            # What is the same for all tiles of a kernel is looked at once.
            told = 0 if self._analysis is None else TOLD
            blocks = [slice(0, STATISTICS), slice(STATISTICS, TILED + told)]
            self._forest = Forest([weights], blocks)

    def rows(self, kernel: Computation, tiles: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """float32[c,t], the last columns what the analytical model says, where there is one."""
        rows = super().rows(kernel, tiles)
        if self._analysis is None:
            return rows
        told = self._analysis.rows(kernel, tiles).astype(np.float32)
        return np.concatenate([rows, told], axis=1)

    def predicted(self, graph: KernelGraph, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        told = rows[:, len(TILE) :] if self._analysis is not None else None
        table = table_of(graph, rows[:, : len(TILE)], told)
        missed = np.asarray(self._forest.score(table)[0], dtype=np.float32)
        return missed if told is None else told[:, 0] + missed


def table_of(
    graph: KernelGraph,
    tiles: NDArray[np.float32],
    told: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """float32[c,f] that trees read of a kernel under tiles float32[c,t]; `told` float32[c,12] is
    what the analytical model says of them (`Analysis.rows`), if it is asked."""
    table = flat_rows(graph, tiles)
    return table if told is None else np.concatenate([table, told], axis=1)


def _analysis(read: Mapping[str, Any]) -> Analysis | None:
    """Raises: ModelError for facts of a machine that are none, and for another version of it."""
    facts = read.get("machine")
    if facts is None:
        return None
    if not (isinstance(facts, dict) and all(isinstance(v, str) for v in facts.values())):
        raise ModelError("the machine in its card is none")
    if read.get("analysis") != ANALYSIS_VERSION:
        raise ModelError("its trees mend another version of the analytical model")
    return Analysis(facts)


def predictor_from(
    card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
) -> KernelPredictor:
    """The network, trees or sums that a card tells of.

    Raises: ModelError for weights of another.
    """
    if not reads_rows(card):
        return KernelNetwork(card, weights, where=where)
    kind = OperationSums if card.get("kernel") == OperationSums.task else KernelTrees
    return kind(card, weights, where=where)


def predictor_of(path: str | Path) -> KernelPredictor:
    """The network, trees or sums of a file. Raises: ModelError naming it."""
    file = model_file.read(path, kind="kernels")
    return predictor_from(file.card, file.tensors, where=str(path))
