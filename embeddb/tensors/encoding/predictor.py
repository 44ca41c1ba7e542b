"""Interface of models trained on measured kernels, for queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files.safe_read import refusing
from embeddb.tensors.encoding.features import tile_rows
from embeddb.tensors.encoding.graph import KernelGraph, graph_of, hidden
from embeddb.tensors.encoding.spec import TRAIN_AGAIN
from embeddb.tensors.tensor_graph import TensorGraph

Floats = NDArray[np.float32]
_OF_ROWS = ("trees", "operations")


class KernelPredictor(ABC):
    """Weights and their card, ready for inference. Deterministic, and callable from any thread."""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Check weights against their card. Raises: ModelError for weights of another model, naming
        `where`."""
        self.card: dict[str, Any] = dict(card)
        with refusing(ModelError, where=where, hint=TRAIN_AGAIN):
            self._open(self.card["network"], weights)

    @abstractmethod
    def _open(self, network: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        """Check and store the weights of a `network` as described by the card. Raises:
        ModelError."""

    @property
    @abstractmethod
    def task(self) -> str:
        """`tile` or `fused`."""

    @abstractmethod
    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c]: lower is faster; comparable only among tiles of one kernel, unless the model
        predicts seconds, of which these are then the natural logarithms."""

    @abstractmethod
    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[n,c]: `scores` with the n-th operation hidden."""

    def seconds(self, kernel: TensorGraph) -> float:
        """Predicted seconds of a fused kernel. Raises: ModelError for a model that ranks tiles."""
        if self.task != "fused":
            raise ModelError(
                "this model ranks tiles and does not predict seconds",
                hint="`embeddb train kernels --task fused` trains one that does",
            )
        return float(np.exp(np.float64(self.scores(kernel, [{}])[0])))


class GraphPredictor(KernelPredictor):
    """A predictor that reads a kernel as a graph, and each tile as a row."""

    @abstractmethod
    def predicted(self, graph: KernelGraph, rows: Floats) -> Floats:
        """float32[c] under tiles float32[c,t] as `rows` returns them."""

    def rows(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c,t]: input beside the graph of a kernel."""
        return tile_rows(kernel, tiles)

    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        return self.predicted(graph_of(kernel), self.rows(kernel, tiles))

    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """Scores with each operation hidden except for its edges (`hidden`)."""
        graph, rows = graph_of(kernel), self.rows(kernel, tiles)
        return np.stack([self.predicted(hidden(graph, at), rows) for at in range(len(graph))])


def reads_rows(card: Mapping[str, Any]) -> bool:
    """Return true if the model of a card reads rows of numbers, not graphs."""
    settings = card.get("settings")
    return isinstance(settings, dict) and settings.get("predictor") in _OF_ROWS
