"""What has learned from measured kernels, as queries ask it."""

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
    """Weights and their card, ready to be asked. Says the same on every call, from any thread."""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Raises: ModelError for weights that are not those of the card's model, naming `where`."""
        self.card: dict[str, Any] = dict(card)
        with refusing(ModelError, where=where, hint=TRAIN_AGAIN):
            self._open(self.card["network"], weights)

    @abstractmethod
    def _open(self, network: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        """Check and take the weights of a `network` as the card describes it. Raises:
        ModelError."""

    @property
    @abstractmethod
    def task(self) -> str:
        """`tile` or `fused`."""

    @abstractmethod
    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c]: lower is faster; of use only among tiles of one kernel, unless it learned
        seconds, of which these are then the natural logarithms."""

    @abstractmethod
    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[n,c]: `scores` if the n-th operation were hidden."""

    def seconds(self, kernel: TensorGraph) -> float:
        """Of a fused kernel. Raises: ModelError for what ranks tiles."""
        if self.task != "fused":
            raise ModelError(
                "this model ranks tiles and knows no seconds",
                hint="`embeddb train kernels --task fused` makes one that does",
            )
        return float(np.exp(np.float64(self.scores(kernel, [{}])[0])))


class GraphPredictor(KernelPredictor):
    """One that reads a kernel as a graph, and each of its tiles as a row."""

    @abstractmethod
    def predicted(self, graph: KernelGraph, rows: Floats) -> Floats:
        """float32[c] under tiles float32[c,t] as `rows` gives them."""

    def rows(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c,t]: what is read of a kernel beside its graph."""
        return tile_rows(kernel, tiles)

    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        return self.predicted(graph_of(kernel), self.rows(kernel, tiles))

    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """An operation that is hidden is told by its edges alone (`hidden`)."""
        graph, rows = graph_of(kernel), self.rows(kernel, tiles)
        return np.stack([self.predicted(hidden(graph, at), rows) for at in range(len(graph))])


def reads_rows(card: Mapping[str, Any]) -> bool:
    """Whether the card of a model of kernels is that of one that reads plain rows, not graphs."""
    settings = card.get("settings")
    return isinstance(settings, dict) and settings.get("predictor") in _OF_ROWS
