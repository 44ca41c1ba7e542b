"""The learned performance model of tensor kernels as plain arrays, for queries: no torch.

"A Learned Performance Model for Tensor Processing Units" (Section 3.2); `NetworkSpec` says what of
it is ours. All tiles of a kernel are asked about at once: its graph is encoded once, and only what
a tile changes is computed for each. `indexer.training.tensors.network` is the same in torch.
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
from embeddb.tensors.computation import Computation
from embeddb.tensors.encoding.features import tile_rows
from embeddb.tensors.encoding.graph import KernelGraph, graph_of
from embeddb.tensors.encoding.layers import Flow, attended, linear, lstm, relu, transformer, unit
from embeddb.tensors.encoding.predictor import GraphPredictor
from embeddb.tensors.encoding.spec import NetworkSpec, shapes_of

__all__ = ["CLIP", "KernelNetwork", "scaled"]

#: Numbers scaled by the training set that are further out than this are not believed.
CLIP = (-1.0, 2.0)
#: Nodes times tiles that are computed together: what a core's caches hold.
_TOGETHER = 4096
_TRAIN = "train weights anew with `embeddb train kernels`"
Floats = NDArray[np.float32]


def scaled(rows: Floats, scale: Floats) -> Floats:
    """[..., f] in [0, 1] by the least and the largest float32[2,f] of the training set; what did
    not vary there is 0."""
    span = scale[1] - scale[0]
    plain = np.where(span > 0, (rows - scale[0]) / np.where(span > 0, span, 1), 0)
    return np.clip(plain, *CLIP).astype(np.float32)


class KernelNetwork(GraphPredictor):
    """The learned model itself."""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, Floats], *, where: str = ""
    ) -> None:
        """Raises: ModelError for weights that are not those of the card's network."""
        self.card = dict(card)
        with refusing(ModelError, where=where, hint=_TRAIN):
            self.spec = NetworkSpec.of(card["network"])
            wanted = shapes_of(self.spec)
            given = {name: tuple(array.shape) for name, array in weights.items()}
            if given != wanted:
                name = min(n for n in wanted.keys() | given if wanted.get(n) != given.get(n))
                raise ModelError(f"tensor {name!r} does not fit its network")
            if any(a.dtype != np.float32 or not np.isfinite(a).all() for a in weights.values()):
                raise ModelError("its weights are not finite float32")
        self._weights = {name: _turned(name, array) for name, array in weights.items()}
        self._opcodes = linear(weights["opcode.weight"], self._weights["first.opcode.weight"])

    @classmethod
    def load(cls, path: str | Path) -> KernelNetwork:
        """The network of a file. Raises: ModelError naming the file."""
        file = model_file.read(path, kind="kernels")
        return cls(file.card, file.tensors, where=str(path))

    # -- of kernels ------------------------------------------------------------------------

    @property
    def task(self) -> str:
        return self.spec.task

    def embedding(self, kernel: Computation) -> Floats:
        """float32[e] of the kernel as one tile, before kernel features that join at the end."""
        graph = graph_of(kernel)
        found: Floats = self.embeddings(graph, tile_rows(kernel, [{}]))[0]
        return found

    @property
    def width(self) -> int:
        """Numbers of an `embedding`."""
        per_node = self.spec.reduction == "per-node"
        return self.spec.hidden if per_node else self.spec.embedding

    # -- of graphs -------------------------------------------------------------------------

    def predicted(self, graph: KernelGraph, tiles: Floats) -> Floats:
        mean, deviation = self._weights["scale.target"]
        found = [self._headed(graph, part) for part in self._parts(graph, tiles)]
        out: Floats = np.concatenate(found) * deviation + mean
        return out

    def embeddings(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[c,e]"""
        parts = self._parts(graph, tiles)
        return np.concatenate([self._reduced(self._nodes(graph, part)) for part in parts])

    def node_embeddings(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[n,c,h] of every operation, before the reduction."""
        return self._nodes(graph, tiles)

    def _parts(self, graph: KernelGraph, tiles: Floats) -> list[Floats]:
        step = max(1, _TOGETHER // max(len(graph), 1))
        return [tiles[start : start + step] for start in range(0, max(len(tiles), 1), step)]

    def _headed(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[c], standardised."""
        x, weights = self._nodes(graph, tiles), self._weights
        per_node = self.spec.reduction == "per-node"
        kappa = x if per_node else self._reduced(x)
        if self.spec.at_end:
            late = self._features("kernel", graph, tiles)
            wide = np.broadcast_to(late, (*kappa.shape[:-1], late.shape[1]))
            kappa = relu(linear(np.concatenate([kappa, wide], axis=-1), weights["end.weight"]))
        told: Floats = linear(kappa, weights["head.weight"])[..., 0]
        return np.asarray(told.sum(axis=0)) if per_node else told

    def _nodes(self, graph: KernelGraph, tiles: Floats) -> Floats:
        spec, weights = self.spec, self._weights
        x = self._first(graph, tiles)
        for at in range(spec.module):
            x = relu(linear(x, weights[f"module.{at}.weight"]))
        if spec.norm:
            x = unit(x)
        if spec.gnn != "none":
            flows = self._flows(graph)
            for at in range(spec.layers):
                x = self._passed(at, x, flows)
                if spec.norm:
                    x = unit(x)
        for at in range(spec.final):
            x = relu(linear(x, weights[f"final.{at}.weight"]))
        return x

    def _first(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """f1: what is the same under all tiles is computed once, what is the same in all nodes
        likewise."""
        weights = self._weights
        own = self._opcodes[graph.opcodes] + linear(
            scaled(graph.features, weights["scale.node"]), weights["first.node.weight"]
        )
        if not self.spec.in_nodes:
            return relu(np.repeat(own[:, None], len(tiles), axis=1))
        kernel = self._features("nodes", graph, tiles)
        return relu(own[:, None] + linear(kernel, weights["first.kernel.weight"])[None])

    def _features(self, place: str, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[c,k]: the kernel features that go there."""
        parts = []
        if self.spec.tile == place:
            parts.append(scaled(tiles, self._weights["scale.tile"]))
        if self.spec.static == place:
            row = scaled(graph.static, self._weights["scale.static"])
            parts.append(np.broadcast_to(row, (len(tiles), len(row))))
        return np.concatenate(parts, axis=1)

    def _flows(self, graph: KernelGraph) -> list[Flow]:
        edges = [graph.operands, graph.users]
        if not self.spec.directed:
            edges = [np.concatenate(edges, axis=1)]
        return [Flow(some, len(graph), loops=self.spec.gnn == "gat") for some in edges]

    def _passed(self, at: int, x: Floats, flows: Sequence[Flow]) -> Floats:
        """One layer of the graph network."""
        ways = [
            (f"graph.{at}.{way}", f) for way, f in zip(self.spec.directions, flows, strict=True)
        ]
        if self.spec.gnn == "gat":
            return relu(np.sum([attended(x, f, self._weights, name) for name, f in ways], axis=0))
        h, join = self.spec.hidden, self._weights[f"graph.{at}.join.weight"]
        joined = linear(x, join[:h])
        for part, (name, flow) in enumerate(ways, start=1):
            told = flow.mean(relu(linear(x, self._weights[f"{name}.weight"])))
            joined += linear(told, join[part * h : (part + 1) * h])
        return relu(joined)

    def _reduced(self, x: Floats) -> Floats:
        """float32[c,e] of nodes float32[n,c,h]."""
        if self.spec.reduction == "lstm":
            return lstm(x, self._weights)
        if self.spec.reduction == "column-wise":
            return np.concatenate([x.mean(axis=0), x.max(axis=0)], axis=1)
        if self.spec.reduction == "transformer":
            for at in range(self.spec.attention):
                x = transformer(x, self._weights, f"transformer.layers.{at}", self.spec.heads)
        out: Floats = x.sum(axis=0)
        return out


def _turned(name: str, array: Floats) -> Floats:
    """The matrix of a layer as `linear` takes it; all others as they are."""
    if array.ndim != 2 or name.startswith(("opcode.", "scale.")):
        return array
    return np.ascontiguousarray(array.T)
