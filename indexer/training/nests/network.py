"""`embeddb.nests.encoding.forward` in torch and torch-geometric, to be trained. Names and shapes
of the weights are the same."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.nests.encoding.features import FEATURES
from embeddb.nests.encoding.forward import DIM, shapes_of
from embeddb.nests.encoding.graph import NestGraph

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import AttentionalAggregation, TransformerConv


class Batch(NamedTuple):
    """b nests: `features` float32[n,f] and `edges` int64[2,e] of all their nodes, `owner` int64[n]
    which nest a node is of, `counters` float32[b,2c]."""

    features: Tensor
    edges: Tensor
    owner: Tensor
    counters: Tensor


class TrainedNetwork(nn.Module):
    """The network that a card's `network` describes. `counter_mean` and the like are no parameters:
    they are set once, from the training set, with `standardise`."""

    feature_scale: Tensor
    counter_mean: Tensor
    counter_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises: ModelError as `shapes_of`."""
        super().__init__()
        shapes_of(spec)
        self.inputs = str(spec["inputs"])
        layers, heads, counters = (int(spec[key]) for key in ("layers", "heads", "counters"))
        targets = len(spec["targets"])
        self.first = nn.Linear(len(FEATURES), DIM)
        self.layers = nn.ModuleList(
            TransformerConv(DIM, DIM // heads, heads=heads) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(layers))
        self.pool = AttentionalAggregation(nn.Linear(DIM, 1), nn.Linear(DIM, DIM))
        self.dynamic = nn.Linear(2 * counters, DIM)
        self.join = nn.Sequential(nn.Linear(2 * DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.head = nn.Linear(DIM, targets)
        for name, count in (("feature", len(FEATURES)), ("counter", counters), ("target", targets)):
            if name != "feature":
                self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_scale", torch.ones(count))

    def standardise(
        self,
        graphs: Sequence[NestGraph],
        counters: NDArray[np.float32],
        targets: NDArray[np.float32],
    ) -> None:
        """Scales of graphs, of counters float32[s,c] and targets float32[s,t] (nan: absent)."""
        most = np.max([np.abs(graph.features).max(axis=0) for graph in graphs], axis=0)
        self.feature_scale = torch.from_numpy(np.where(most > 0, most, 1).astype(np.float32))
        self.counter_mean, self.counter_scale = _scales(np.log2(1 + counters))
        self.target_mean, self.target_scale = _scales(targets)

    def node_embeddings(self, features: Tensor, edges: Tensor) -> Tensor:
        """float32[n,128]"""
        x: Tensor = self.first(features / self.feature_scale)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x, edges).relu())
        return x

    def embedding(self, batch: Batch) -> Tensor:
        """float32[b,128]"""
        count = len(batch.counters)
        static = batch.features.new_zeros(count, DIM)
        dynamic = static
        if self.inputs != "dynamic":
            nodes = self.node_embeddings(batch.features, batch.edges)
            static = self.pool(nodes, batch.owner, dim_size=count)
        if self.inputs != "static":
            dynamic = self.dynamic(batch.counters)
        out: Tensor = self.join(torch.cat([static, dynamic], 1))
        return out

    def forward(self, batch: Batch) -> Tensor:
        """float32[b,t], targets standardised by `target_mean` and `target_scale`."""
        out: Tensor = self.head(self.embedding(batch))
        return out


def collate(graphs: Sequence[NestGraph], counters: NDArray[np.float32]) -> Batch:
    """A batch of graphs, with `counter_inputs` float32[b,2c]."""
    sizes = [len(graph.nodes) for graph in graphs]
    offsets = np.cumsum([0, *sizes[:-1]])
    edges = [graph.edges + offset for graph, offset in zip(graphs, offsets, strict=True)]
    return Batch(
        torch.from_numpy(np.concatenate([graph.features for graph in graphs])),
        torch.from_numpy(np.concatenate(edges, axis=1)),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
        torch.from_numpy(counters),
    )


def counter_inputs(network: TrainedNetwork, counters: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[s,2c] of counters float32[s,c], nan where absent: standardised logarithms, then
    which of them are there."""
    there = ~np.isnan(counters)
    logs = np.log2(1 + np.where(there, counters, 0))
    plain = (logs - network.counter_mean.numpy()) / network.counter_scale.numpy()
    return np.concatenate([np.where(there, plain, 0), there], axis=1).astype(np.float32)


def _scales(values: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column, of what is there; 0 and 1 where nothing is or all is the
    same."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, values, 0).sum(axis=0, dtype=np.float64) / count
    off = np.where(there, values - mean, 0)
    deviation = np.sqrt(np.square(off).sum(axis=0) / count)
    scale = np.where(deviation > 1e-6, deviation, 1)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(scale.astype(np.float32))
