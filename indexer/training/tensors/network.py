"""The network of `embeddb.tensors.encoding.predictor` in torch and torch-geometric, to be trained.
Names and shapes of the weights are the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.tensors.encoding.features import NODE, STATIC, TILE, KernelGraph
from embeddb.tensors.encoding.operation_rows import OPCODES
from embeddb.tensors.encoding.predictor import CLIP, FINAL, LAYERS, OPCODE, WAYS, NetworkSpec

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.utils import scatter

#: Initial scale of opcodes' embeddings, no larger than the other features, which are in [0, 1].
_BEGUN = 0.1
#: Share of operations whose opcode is hidden in training, so that an unseen opcode has a trained
#: embedding.
_HIDDEN = 0.05


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


class Sage(nn.Module):
    """A layer of GraphSAGE: the node joined with the mean of its neighbours' messages, which are
    reached in one way or several."""

    def __init__(self, hidden: int, ways: Sequence[str] = WAYS) -> None:
        super().__init__()
        self.ways = ways
        for way in ways:
            self.add_module(way, plain_layer(hidden, hidden))
        self.join = plain_layer(hidden * (1 + len(ways)), hidden)

    def forward(self, x: Tensor, flows: Sequence[Tensor]) -> Tensor:
        messages = [x]
        for way, (sources, goals) in zip(self.ways, flows, strict=True):
            passed = self.get_submodule(way)(x).relu()[sources]
            messages.append(scatter(passed, goals, dim_size=len(x), reduce="mean"))
        out: Tensor = self.join(torch.cat(messages, 1))
        return out


def plain_layer(width: int, out: int) -> nn.Linear:
    """Linear layer initialised to preserve the scale through ReLU (He et al., 2015)."""
    layer = nn.Linear(width, out, bias=False)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return layer


class TrainedNetwork(nn.Module):
    """The network of a spec. `scale` are no parameters: they are set once, from the training set,
    with `standardise`. Layers are initialised in the order in which they are read."""

    def __init__(self, spec: NetworkSpec, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.dropout = nn.Dropout(dropout)
        self.opcode = nn.Embedding(len(OPCODES), OPCODE)
        nn.init.normal_(self.opcode.weight, std=_BEGUN)
        self.draw()
        self.scale = _Scales()

    def draw(self) -> None:
        """Initialise all layers but the opcodes' embedding."""
        h = self.spec.hidden
        reads = {"opcode": OPCODE, "node": len(NODE), "kernel": self.spec.in_nodes}
        self.first = nn.ModuleDict({name: plain_layer(w, h) for name, w in reads.items()})
        self.graph = nn.ModuleList(Sage(h) for _ in range(LAYERS))
        self.final = nn.ModuleList(plain_layer(h, h) for _ in range(FINAL))
        self.head = plain_layer(self.spec.embedding, 1)

    def standardise(
        self,
        graphs: Sequence[KernelGraph],
        tiles: Sequence[NDArray[np.float32]],
        logs: NDArray[np.float64] | None,
    ) -> None:
        """Set the scales of graphs, tiles and log seconds float64[x] (None: orders only)."""
        self.scale.node = _range(np.concatenate([graph.features for graph in graphs]))
        self.scale.tile = _range(np.concatenate(tiles))
        self.scale.static = _range(np.stack([graph.static for graph in graphs]))
        if logs is not None:
            deviation = float(logs.std()) if logs.std() > 1e-6 else 1.0
            self.scale.target = torch.tensor([float(logs.mean()), deviation])

    def adopt_unseen(self, graphs: Sequence[KernelGraph]) -> None:
        """Give opcodes in none of these kernels the trained embedding of an unknown one."""
        unseen = np.setdiff1d(np.arange(len(OPCODES)), np.concatenate([g.opcodes for g in graphs]))
        with torch.no_grad():
            self.opcode.weight[torch.from_numpy(unseen)] = self.opcode.weight[0].clone()

    def forward(self, batch: Batch) -> Tensor:
        """float32[b], standardised by `scale.target`; lower is faster."""
        x, count = self.nodes(batch), len(batch.tiles)
        both = [scatter(x, batch.owner, dim_size=count, reduce=how) for how in ("mean", "max")]
        out: Tensor = self.head(torch.cat(both, 1))[:, 0]
        return out

    def nodes(self, batch: Batch) -> Tensor:
        """float32[n,h], before the reduction."""
        x = self.read(batch, self.features(batch))
        for layer in self.graph:
            x = self.dropout(layer(x, [batch.operands, batch.users]).relu())
        for layer in self.final:
            x = self.dropout(layer(x).relu())
        return x

    def read(self, batch: Batch, kernel: Tensor | None) -> Tensor:
        """f1, of kernel features float32[b,k] if there are any. Operations are read once, whatever
        the number of tiles."""
        opcodes = batch.opcodes
        if self.training:
            opcodes = opcodes * (torch.rand(len(opcodes)) >= _HIDDEN)
        own = self.first["opcode"](self.opcode(opcodes))
        own = own + self.first["node"](scaled(batch.features, self.scale.node))
        x: Tensor = own[batch.node]
        if kernel is not None:
            x = x + self.first["kernel"](kernel)[batch.owner]
        out: Tensor = self.dropout(x.relu())
        return out

    def features(self, batch: Batch) -> Tensor:
        """float32[b,k] of kernels, which every node has."""
        static = scaled(batch.static, self.scale.static)
        if self.spec.task != "tile":
            return static
        return torch.cat([scaled(batch.tiles, self.scale.tile), static], 1)


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


def scaled(rows: Tensor, scale: Tensor) -> Tensor:
    """Scale rows as `embeddb.tensors.encoding.predictor.scaled`."""
    span = scale[1] - scale[0]
    plain = torch.where(span > 0, (rows - scale[0]) / torch.where(span > 0, span, 1), 0)
    return plain.clamp(*CLIP)
