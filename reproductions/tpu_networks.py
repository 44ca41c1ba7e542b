"""All networks of "A Learned Performance Model for Tensor Processing Units" (Section 3.2, Table 5),
of which `embeddb.tensors.encoding.predictor` describes the one that ships.

    opcode embedding, node features, kernel features  ->  f1  ->  graph layers  ->  final layers
        ->  reduction  ->  (kernel features)  ->  one number

Ours, because the paper does not state it: "module layers" of Table 6 are layers ahead of the graph
network, and "module L2 norm" follows each layer; GAT adds up one attention of each direction;
kernel features at the end ("option 2") pass a layer with ReLU together with what they are put to,
else they could not change an order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from embeddb.core.errors import UsageError
from embeddb.tensors.encoding.features import NODE, STATIC, TILE, encoding_version
from embeddb.tensors.encoding.predictor import FINAL, LAYERS, OPCODE, WAYS, NetworkSpec
from indexer.training.tensors.network import Batch, Sage, TrainedNetwork, plain_layer, scaled

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv
    from torch_geometric.utils import scatter, to_dense_batch

GNNS = ("none", "sage", "gat")
REDUCTIONS = ("per-node", "column-wise", "lstm", "transformer")
#: Where kernel features go: nowhere, into every node ("option 1"), to the kernel ("option 2").
PLACES = ("none", "nodes", "kernel")
_WORDS = {"gnn": GNNS, "reduction": REDUCTIONS, "tile": PLACES, "static": PLACES}


@dataclass(frozen=True, slots=True)
class PaperSpec(NetworkSpec):
    """The parts of a network.

    `module`: feedforward layers without neighbours before the graph network; `norm`: whether nodes
    have length 1 after each layer; `attention` and `heads`: layers and heads of the transformer;
    `gat_heads`: heads of GAT; `directed`: whether edges have directions.
    """

    gnn: str = "sage"
    reduction: str = "column-wise"
    tile: str = "nodes"
    static: str = "nodes"
    directed: bool = True
    norm: bool = False
    module: int = 0
    attention: int = 1
    heads: int = 4
    gat_heads: int = 4

    def __post_init__(self) -> None:
        """Raises: UsageError for parts that do not fit together."""
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise UsageError(f"no {name} {getattr(self, name)!r}", hint=", ".join(words))
        for heads in (self.heads, self.gat_heads):
            if self.hidden % heads:
                raise UsageError(f"{heads} heads do not divide {self.hidden}")
        if self.task == "fused" and self.tile != "none":
            raise UsageError("fused kernels have no tiles")

    @property
    def card(self) -> dict[str, Any]:
        sizes = {"opcode": OPCODE, "layers": LAYERS, "final": FINAL}
        return {**asdict(self), **sizes, "encoding": encoding_version()}

    @property
    def ways(self) -> tuple[str, ...]:
        return WAYS if self.directed else ("both",)

    def features(self, place: str) -> int:
        """How many kernel features go there."""
        return len(TILE) * (self.tile == place) + len(STATIC) * (self.static == place)

    @property
    def embedding(self) -> int:
        return self.hidden * (2 if self.reduction == "column-wise" else 1)


class Gat(nn.Module):
    """A layer of GAT for each direction, added up."""

    def __init__(self, spec: PaperSpec) -> None:
        super().__init__()
        h, heads = spec.hidden, spec.gat_heads
        self.ways = spec.ways
        for way in self.ways:
            self.add_module(way, GATConv(h, h // heads, heads, bias=False))

    def forward(self, x: Tensor, flows: Sequence[Tensor]) -> Tensor:
        passed = [
            self.get_submodule(way)(x, flow) for way, flow in zip(self.ways, flows, strict=True)
        ]
        return torch.stack(passed).sum(0)


class PaperNetwork(TrainedNetwork):
    """The network of a `PaperSpec`."""

    spec: PaperSpec

    def draw(self) -> None:
        spec, h = self.spec, self.spec.hidden
        reads = {"opcode": OPCODE, "node": len(NODE), "kernel": spec.features("nodes")}
        self.first = nn.ModuleDict({name: plain_layer(w, h) for name, w in reads.items() if w})
        self.module = nn.ModuleList(plain_layer(h, h) for _ in range(spec.module))
        layers = LAYERS if spec.gnn != "none" else 0
        self.graph = nn.ModuleList(
            Gat(spec) if spec.gnn == "gat" else Sage(h, spec.ways) for _ in range(layers)
        )
        self.final = nn.ModuleList(plain_layer(h, h) for _ in range(FINAL))
        if spec.reduction == "lstm":
            self.lstm = nn.LSTM(h, h, bias=False, batch_first=True)
        if spec.reduction == "transformer":
            layer = nn.TransformerEncoderLayer(
                h, spec.heads, h, dropout=self.dropout.p, batch_first=True, bias=False
            )
            self.transformer = nn.TransformerEncoder(
                layer, spec.attention, enable_nested_tensor=False
            )
        at_end = spec.features("kernel")
        if at_end:
            self.end = plain_layer(spec.embedding + at_end, spec.embedding)
        self.head = plain_layer(spec.embedding, 1)

    def forward(self, batch: Batch) -> Tensor:
        """float32[b], standardised by `scale.target`; lower is faster."""
        x, spec, count = self.nodes(batch), self.spec, len(batch.tiles)
        per_node = spec.reduction == "per-node"
        kappa = x if per_node else self._reduced(x, batch)
        late = self._features("kernel", batch)
        if late is not None:
            late = late[batch.owner] if per_node else late
            kappa = self.dropout(self.end(torch.cat([kappa, late], 1)).relu())
        each: Tensor = self.head(kappa)[:, 0]
        return scatter(each, batch.owner, dim_size=count, reduce="sum") if per_node else each

    def nodes(self, batch: Batch) -> Tensor:
        """float32[n,h], before the reduction."""
        x = self.read(batch, self._features("nodes", batch))
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

    def _features(self, place: str, batch: Batch) -> Tensor | None:
        parts = []
        if self.spec.tile == place:
            parts.append(scaled(batch.tiles, self.scale.tile))
        if self.spec.static == place:
            parts.append(scaled(batch.static, self.scale.static))
        return torch.cat(parts, 1) if parts else None

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
