"""The learned featurizer of tensor kernels: the embedding of an untiled kernel by the network of
tiles ("A Learned Performance Model for Tensor Processing Units", Section 3.2, the kernel
embedding).

The weights are those of the database's own model of tiles (`embeddb train kernels --task tile`);
without one there is no such featurizer. The version is the digest of that file: when the model is
trained again, `embeddb embed` computes the vectors again. Torch is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.files.model_file import read_card
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import FromWeights, finite
from embeddb.tensors.encoding.features import KernelGraph, graph_of, hidden, tile_rows
from embeddb.tensors.encoding.predictor import KernelNetwork, reads_rows
from embeddb.tensors.tensor_graph import TensorGraph

#: Path of models of tiles below the database's folder.
OWN = "models/kernels-*-tile.safetensors"


class KernelEmbedding:
    """The network's embedding of an untiled kernel as a raw vector, float32[d], with d the width of
    the network; standardise before comparing. Thread-safe.

    `learned_from` are the groups of the training runs: evaluation on them is biased.
    """

    name = "kernel-embedding"
    kinds = ("kernel",)

    def __init__(self, weights: Path) -> None:
        """Read the weights. Raises: ModelError if they are invalid."""
        self.weights = weights
        self.network = KernelNetwork.load(weights)
        self.version = self.network.version
        self.dim = self.network.spec.embedding
        self.names = tuple(f"{self.version[:8]}.{at}" for at in range(self.dim))
        self.learned_from = _families(self.network.card)

    @classmethod
    def for_database(cls, folder: Path | None) -> KernelEmbedding | None:
        """Featurizer with the database's own network of tiles, the first by name; None without one:
        trees have no embedding. Raises: ModelError if it is invalid."""
        there = sorted(folder.glob(OWN)) if folder is not None else []
        networks = (path for path in there if not reads_rows(read_card(path, kind="kernels")))
        first = next(networks, None)
        return None if first is None else cls(first)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `TensorGraph` of kind `kernel`; its names and group do not enter. Raises:
        ModelError if the result is not finite."""
        kernel: TensorGraph = pattern
        return self._embedded(kernel, graph_of(kernel))

    def without(self, kernel: TensorGraph) -> list[NDArray[np.float32]]:
        """Vectors of the kernel with each of its operations hidden. Raises: as `embed`."""
        graph = graph_of(kernel)
        return [self._embedded(kernel, hidden(graph, at)) for at in range(len(graph))]

    def _embedded(self, kernel: TensorGraph, graph: KernelGraph) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            vector = self.network.embeddings(graph, tile_rows(kernel, [{}]))[0]
        return finite(vector, self.weights)

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """Return None: the vector depends on this database's own model and is not exported."""


PLUGIN: type[FromWeights] = KernelEmbedding


def _families(card: Any) -> frozenset[str]:
    """Groups of the training data, from an untrusted card."""
    parts = card.get("parts")
    train = parts.get("train") if isinstance(parts, dict) else None
    families = train.get("families") if isinstance(train, dict) else None
    listed = families if isinstance(families, list) else []
    return frozenset(family for family in listed if isinstance(family, str))
