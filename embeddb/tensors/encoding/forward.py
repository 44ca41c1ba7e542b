"""The learned performance model of tensor kernels in numpy, for queries without torch.

"A Learned Performance Model for Tensor Processing Units" (Section 3.2); `spec` lists our additions.
All tiles of a kernel are evaluated together: its graph is encoded once, and only the parts that a
tile changes are computed for each. `indexer.training.tensors.network` is the same in torch.

Nodes are float32[n,c,h]: n operations, c tiles of one kernel, h numbers each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from embeddb.core.files import model_file
from embeddb.core.nn_numpy import check_weights, linear, relu
from embeddb.tensors.encoding.features import KernelGraph
from embeddb.tensors.encoding.predictor import (
    FINAL,
    LAYERS,
    WAYS,
    GraphPredictor,
    NetworkSpec,
    shapes_of,
)

#: Range to which features scaled by the training set are clipped.
CLIP = (-1.0, 2.0)
#: Number of nodes times tiles computed together, to fit into a core's caches.
_TOGETHER = 4096
Floats = NDArray[np.float32]


def scaled(rows: Floats, scale: Floats) -> Floats:
    """[..., f] in [0, 1] by the minimum and maximum float32[2,f] of the training set; 0 for a
    constant feature."""
    span = scale[1] - scale[0]
    plain = np.where(span > 0, (rows - scale[0]) / np.where(span > 0, span, 1), 0)
    return np.clip(plain, *CLIP).astype(np.float32)


class KernelNetwork(GraphPredictor):
    """The graph network. `version` is that of its file, empty without one."""

    version = ""

    def _open(self, network: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        self.spec = NetworkSpec.of(network)
        check_weights(weights, shapes_of(self.spec))
        # In the memory order of products with many rows.
        self._weights = {name: np.asfortranarray(array) for name, array in weights.items()}
        first = self._weights["first.opcode.weight"]
        self._opcodes = linear(weights["opcode.weight"], first)

    @classmethod
    def load(cls, path: str | Path) -> KernelNetwork:
        """The network of a file. Raises: ModelError naming the file."""
        file = model_file.read(path, kind="kernels")
        network = cls(file.card, file.tensors, where=str(path))
        network.version = file.version
        return network

    @property
    def task(self) -> str:
        return self.spec.task

    def predicted(self, graph: KernelGraph, tiles: Floats) -> Floats:
        mean, deviation = self._weights["scale.target"]
        head = self._weights["head.weight"]
        parts = [linear(kernels, head)[:, 0] for kernels in self._parts(graph, tiles)]
        out: Floats = np.concatenate(parts) * deviation + mean
        return out

    def embeddings(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[c,e]"""
        return np.concatenate(list(self._parts(graph, tiles)))

    def _parts(self, graph: KernelGraph, tiles: Floats) -> Iterator[Floats]:
        """`embeddings` of the tiles, in groups computed together."""
        step = max(1, _TOGETHER // max(len(graph), 1))
        flows = [_mean_of(edges, len(graph)) for edges in (graph.operands, graph.users)]
        for start in range(0, max(len(tiles), 1), step):
            x = self._first(graph, tiles[start : start + step])
            for at in range(LAYERS):
                x = self._passed(f"graph.{at}", x, flows)
            for at in range(FINAL):
                x = relu(linear(x, self._weights[f"final.{at}.weight"]))
            yield np.concatenate([x.mean(axis=0), x.max(axis=0)], axis=1)

    def _first(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """f1: terms that are the same for all tiles, or for all nodes, are computed once."""
        weights = self._weights
        own = self._opcodes[graph.opcodes] + linear(
            scaled(graph.features, weights["scale.node"]), weights["first.node.weight"]
        )
        static = scaled(graph.static, weights["scale.static"])
        kernel = np.broadcast_to(static, (len(tiles), len(static)))
        if self.task == "tile":
            kernel = np.concatenate([scaled(tiles, weights["scale.tile"]), kernel], axis=1)
        return relu(own[:, None] + linear(kernel, weights["first.kernel.weight"])[None])

    def _passed(self, name: str, x: Floats, flows: Sequence[csr_array]) -> Floats:
        """One layer of GraphSAGE: a node joined with the means of its neighbours' messages."""
        h, join = self.spec.hidden, self._weights[f"{name}.join.weight"]
        joined = linear(x, join[:, :h])
        for part, (way, flow) in enumerate(zip(WAYS, flows, strict=True), start=1):
            sent = relu(linear(x, self._weights[f"{name}.{way}.weight"]))
            mean = np.asarray(flow @ sent.reshape(len(x), -1), dtype=np.float32).reshape(x.shape)
            joined += linear(mean, join[:, part * h : (part + 1) * h])
        return relu(joined)


def _mean_of(edges: NDArray[np.int64], count: int) -> csr_array:
    """float32[n,n] that averages over the sources of each node's edges int64[2,e]; 0 for a node
    without edges."""
    order = np.argsort(edges[1], kind="stable")
    sources, goals = edges[0][order], edges[1][order]
    degrees = np.bincount(goals, minlength=count).astype(np.float32)
    share = 1 / np.maximum(degrees, 1)
    return csr_array((share[goals], (goals, sources)), shape=(count, count))
