"""`embeddb.tensors.encoding.forward` in torch and torch-geometric, to be trained. Names and shapes
of the weights are the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from embeddb.tensors.encoding.features import NODE, STATIC, TILE
from embeddb.tensors.encoding.forward import CLIP
from embeddb.tensors.encoding.graph import KernelGraph
from embeddb.tensors.encoding.operation_rows import OPCODES
from embeddb.tensors.encoding.spec import NetworkSpec
from indexer.training.tensors.graph_layers import graph_layer, plain_layer

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.utils import scatter, to_dense_batch

__all__ = ["Batch", "TrainedNetwork", "collate"]

#: Opcodes' embeddings are begun no larger than the other features, which are in [0, 1].
_BEGUN = 0.1
#: The share of operations whose opcode is not told in training, so that one that was never seen has
#: an embedding that means something.
_UNTOLD = 0.05


class Batch(NamedTuple):
    """b samples, each a kernel under a tile; kernels have u operations in all, samples n.

    `opcodes` int64[u], `features` float32[u,f]; `node` int64[n] which operation it is, `owner`
    int64[n] of which sample; `operands`, `users` int64[2,e]; `tiles` float32[b,t], `static`
    float32[b,4].
    """

    opcodes: Tensor
    features: Tensor
    node: Tensor
    owner: Tensor
    operands: Tensor
    users: Tensor
    tiles: Tensor
    static: Tensor


def collate(graphs: Sequence[KernelGraph], tiles: Sequence[NDArray[np.float32]]) -> Batch:
    """Kernels, each under its tiles float32[c,t]; samples are in that order."""
    node, owner, operands, users = [], [], [], []
    first = place = sample = 0
    for graph, own in zip(graphs, tiles, strict=True):
        n, c = len(graph), len(own)
        node.append(np.tile(np.arange(first, first + n), c))
        owner.append(np.repeat(np.arange(sample, sample + c), n))
        shifts = place + n * np.arange(c)
        operands.append((graph.operands[:, None] + shifts[:, None]).reshape(2, -1))
        users.append((graph.users[:, None] + shifts[:, None]).reshape(2, -1))
        first, place, sample = first + n, place + n * c, sample + c
    static = [
        np.broadcast_to(g.static, (len(t), len(STATIC))) for g, t in zip(graphs, tiles, strict=True)
    ]
    parts = (
        np.concatenate([graph.opcodes for graph in graphs]),
        np.concatenate([graph.features for graph in graphs]),
        np.concatenate(node),
        np.concatenate(owner),
        np.concatenate(operands, axis=1),
        np.concatenate(users, axis=1),
        np.concatenate(tiles),
        np.concatenate(static),
    )
    return Batch(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


class TrainedNetwork(nn.Module):
    """The network that a spec describes. `scale` are no parameters: they are set once, from the
    training set, with `standardise`."""

    def __init__(self, spec: NetworkSpec, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, h = spec, spec.hidden
        self.dropout = nn.Dropout(dropout)
        self.opcode = nn.Embedding(len(OPCODES), spec.opcode)
        nn.init.normal_(self.opcode.weight, std=_BEGUN)
        reads = {"opcode": spec.opcode, "node": len(NODE), "kernel": spec.in_nodes}
        self.first = nn.ModuleDict({name: plain_layer(w, h) for name, w in reads.items() if w})
        self.module = nn.ModuleList(plain_layer(h, h) for _ in range(spec.module))
        layers = spec.layers if spec.gnn != "none" else 0
        self.graph = nn.ModuleList(graph_layer(spec) for _ in range(layers))
        self.final = nn.ModuleList(plain_layer(h, h) for _ in range(spec.final))
        if spec.reduction == "lstm":
            self.lstm = nn.LSTM(h, h, bias=False, batch_first=True)
        if spec.reduction == "transformer":
            layer = nn.TransformerEncoderLayer(
                h, spec.heads, h, dropout=dropout, batch_first=True, bias=False
            )
            self.transformer = nn.TransformerEncoder(
                layer, spec.attention, enable_nested_tensor=False
            )
        reduced = h if spec.reduction == "per-node" else spec.embedding
        if spec.at_end:
            self.end = plain_layer(reduced + spec.at_end, reduced)
        self.head = plain_layer(reduced, 1)
        self.scale = _Scales()

    def standardise(
        self,
        graphs: Sequence[KernelGraph],
        tiles: Sequence[NDArray[np.float32]],
        logs: NDArray[np.float64] | None,
    ) -> None:
        """Scales of graphs, their tiles and of what is learned, natural logarithms float64[x] of
        seconds (None: orders)."""
        self.scale.node = _range(np.concatenate([graph.features for graph in graphs]))
        self.scale.tile = _range(np.concatenate(tiles))
        self.scale.static = _range(np.stack([graph.static for graph in graphs]))
        if logs is not None:
            deviation = float(logs.std()) if logs.std() > 1e-6 else 1.0
            self.scale.target = torch.tensor([float(logs.mean()), deviation])

    def adopt_unseen(self, graphs: Sequence[KernelGraph]) -> None:
        """Give opcodes that are in none of these kernels the embedding of an unknown one, which was
        learned; theirs were not."""
        unseen = np.setdiff1d(np.arange(len(OPCODES)), np.concatenate([g.opcodes for g in graphs]))
        with torch.no_grad():
            self.opcode.weight[torch.from_numpy(unseen)] = self.opcode.weight[0].clone()

    def forward(self, batch: Batch) -> Tensor:
        """float32[b], standardised by `scale.target`; lower is faster."""
        x, spec, count = self.nodes(batch), self.spec, len(batch.tiles)
        per_node = spec.reduction == "per-node"
        kappa = x if per_node else self._reduced(x, batch)
        if spec.at_end:
            late = self._features("kernel", batch)
            late = late[batch.owner] if per_node else late
            kappa = self.dropout(self.end(torch.cat([kappa, late], 1)).relu())
        told: Tensor = self.head(kappa)[:, 0]
        return scatter(told, batch.owner, dim_size=count, reduce="sum") if per_node else told

    def nodes(self, batch: Batch) -> Tensor:
        """float32[n,h], before the reduction."""
        x = self._first(batch)
        for layer in self.module:
            x = self.dropout(layer(x).relu())
        if self.spec.norm:
            x = functional.normalize(x)
        flows = [batch.operands, batch.users]
        flows = flows if self.spec.directed else [torch.cat(flows, 1)]
        for layer in self.graph:
            x = self.dropout(layer(x, flows).relu())
            if self.spec.norm:
                x = functional.normalize(x)
        for layer in self.final:
            x = self.dropout(layer(x).relu())
        return x

    def _first(self, batch: Batch) -> Tensor:
        """f1. Operations are read once, whatever the number of tiles."""
        opcodes = batch.opcodes
        if self.training:
            opcodes = opcodes * (torch.rand(len(opcodes)) >= _UNTOLD)
        own = self.first["opcode"](self.opcode(opcodes))
        own = own + self.first["node"](_scaled(batch.features, self.scale.node))
        x: Tensor = own[batch.node]
        if self.spec.in_nodes:
            x = x + self.first["kernel"](self._features("nodes", batch))[batch.owner]
        out: Tensor = self.dropout(x.relu())
        return out

    def _features(self, place: str, batch: Batch) -> Tensor:
        parts = []
        if self.spec.tile == place:
            parts.append(_scaled(batch.tiles, self.scale.tile))
        if self.spec.static == place:
            parts.append(_scaled(batch.static, self.scale.static))
        return torch.cat(parts, 1)

    def _reduced(self, x: Tensor, batch: Batch) -> Tensor:
        """float32[b,e]"""
        count, kind = len(batch.tiles), self.spec.reduction
        if kind == "column-wise":
            both = [scatter(x, batch.owner, dim_size=count, reduce=r) for r in ("mean", "max")]
            return torch.cat(both, 1)
        dense, there = to_dense_batch(x, batch.owner, batch_size=count)
        if kind == "lstm":
            packed = nn.utils.rnn.pack_padded_sequence(
                dense, there.sum(1), batch_first=True, enforce_sorted=False
            )
            state: Tensor = self.lstm(packed)[1][0][0]
            return state
        seen: Tensor = self.transformer(dense, src_key_padding_mask=~there)
        out: Tensor = (seen * there[:, :, None]).sum(1)
        return out


class _Scales(nn.Module):
    node: Tensor
    tile: Tensor
    static: Tensor
    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, width in (("node", len(NODE)), ("tile", len(TILE)), ("static", len(STATIC))):
            self.register_buffer(name, torch.stack([torch.zeros(width), torch.ones(width)]))
        self.register_buffer("target", torch.tensor([0.0, 1.0]))


def _range(rows: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.stack([rows.min(axis=0), rows.max(axis=0)]))


def _scaled(rows: Tensor, scale: Tensor) -> Tensor:
    span = scale[1] - scale[0]
    plain = torch.where(span > 0, (rows - scale[0]) / torch.where(span > 0, span, 1), 0)
    return plain.clamp(*CLIP)
