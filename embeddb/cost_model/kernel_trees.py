"""Boosted trees on flat features of kernels, in the place of a network: seconds of fused kernels,
or which tiles are faster.

Trees have no embedding of a kernel. Their file has a member's tensors (`trees_numpy.TENSORS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.files.gate import refusing
from embeddb.core.files.model_file import arrays_of
from embeddb.cost_model.trees_numpy import Forest
from embeddb.tensors.encoding.features import encoding_version
from embeddb.tensors.encoding.flat import STATISTICS, TILED, flat_rows, statistics
from embeddb.tensors.encoding.forward import KernelNetwork
from embeddb.tensors.encoding.graph import KernelGraph
from embeddb.tensors.encoding.predictor import KernelPredictor, is_trees
from embeddb.tensors.encoding.spec import TASKS

__all__ = ["KernelTrees", "predictor_from", "predictor_of"]

_AGAIN = "train it again with `embeddb train kernels`"
#: What is the same for all tiles of a kernel is looked at once.
_BLOCKS = {
    "fused": [slice(0, STATISTICS)],
    "tile": [slice(0, STATISTICS), slice(STATISTICS, TILED)],
}


class KernelTrees(KernelPredictor):
    """Of one member."""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Raises: ModelError for what are no trees over the rows of the task that the card's
        `network` tells."""
        self.card = dict(card)
        with refusing(ModelError, where=where, hint=_AGAIN):
            read = self.card["network"]
            if read["task"] not in TASKS:
                raise ModelError(f"its trees are of {read['task']!r}")
            if read["encoding"] != encoding_version():
                raise ModelError("its trees read kernels that are encoded otherwise")
            self._forest = Forest([weights], _BLOCKS[self.task])

    @property
    def task(self) -> str:
        return str(self.card["network"]["task"])

    def predicted(self, graph: KernelGraph, tiles: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.task == "tile":
            rows = flat_rows(graph, tiles)
            return np.asarray(self._forest.score(rows)[0], dtype=np.float32)
        said = self._forest.score(statistics(graph)[None])[0]
        return np.full(len(tiles), said[0], dtype=np.float32)


def predictor_from(
    card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
) -> KernelPredictor:
    """The network or the trees that a card tells of. Raises: ModelError for weights of another."""
    kind = KernelTrees if is_trees(card) else KernelNetwork
    return kind(card, weights, where=where)


def predictor_of(path: str | Path) -> KernelPredictor:
    """The network or the trees of a file. Raises: ModelError naming it."""
    card = model_file.read_card(path, kind="kernels")
    with refusing(ModelError, where=str(path), hint=_AGAIN):
        weights = arrays_of(model_file.content_of(path))
    return predictor_from(card, weights, where=str(path))
