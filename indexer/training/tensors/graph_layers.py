"""Layers of a network of kernels that pass something along edges, in torch and torch-geometric."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from embeddb.tensors.encoding.spec import NetworkSpec

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv
    from torch_geometric.utils import scatter

__all__ = ["Gat", "Sage", "graph_layer", "plain_layer"]


class Sage(nn.Module):
    """A layer of GraphSAGE: the node joined with the mean of what passes from its neighbours."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        h = spec.hidden
        self.ways = spec.directions
        for way in self.ways:
            self.add_module(way, plain_layer(h, h))
        self.join = plain_layer(h * (1 + len(self.ways)), h)

    def forward(self, x: Tensor, flows: Sequence[Tensor]) -> Tensor:
        told = [x]
        for way, (sources, goals) in zip(self.ways, flows, strict=True):
            passed = self.get_submodule(way)(x).relu()[sources]
            told.append(scatter(passed, goals, dim_size=len(x), reduce="mean"))
        out: Tensor = self.join(torch.cat(told, 1))
        return out


class Gat(nn.Module):
    """A layer of GAT for each direction, added up."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        h, heads = spec.hidden, spec.gat_heads
        self.ways = spec.directions
        for way in self.ways:
            self.add_module(way, GATConv(h, h // heads, heads, bias=False))

    def forward(self, x: Tensor, flows: Sequence[Tensor]) -> Tensor:
        passed = [
            self.get_submodule(way)(x, flow) for way, flow in zip(self.ways, flows, strict=True)
        ]
        return torch.stack(passed).sum(0)


def graph_layer(spec: NetworkSpec) -> nn.Module:
    return Sage(spec) if spec.gnn == "sage" else Gat(spec)


def plain_layer(width: int, out: int) -> nn.Linear:
    """Begun so that what passes ten layers of ReLU is neither lost nor grows (He et al., 2015)."""
    layer = nn.Linear(width, out, bias=False)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return layer
