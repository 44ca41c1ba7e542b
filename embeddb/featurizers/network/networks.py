"""Networks from the sites of a pattern to its embedding, by name.

`cognate` is COGNATE's input featurizer (paper, Table 5), `waco` the one of its base model. A
network is described by a spec of plain JSON in the card of its weights:

- `name`: one of `NETWORKS`; `in_channels`: features per site; `dim`: length of the embedding;
- `shape`: true if log rows, columns and nonzeros enter the last layer. False for `cognate`, as in
  its table, true for `waco`, as in its authors' code. Global averages do not depend on the number
  of sites, so without it only the features of the sites distinguish a large pattern from a small
  one;
- `dtype`: `float32` or `float64`.

Own choices, since no paper at hand states them: biases, ReLU after every convolution (in `cognate`
thus before pooling), one linear layer as projection (WACO's code has two, and two for the shape),
and the first weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from embeddb.core.errors import ModelError
from embeddb.featurizers.network import sparse_conv
from embeddb.featurizers.network.reduction import Input
from embeddb.featurizers.network.sparse_conv import SparseTensor
from embeddb.featurizers.network.sparse_maps import Level

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Largest value of each size in a spec, which comes from untrusted files.
_MOST = {"in_channels": 64, "dim": 4096}
#: Initialisation: fraction of a site's variance from the site itself, and assumed fraction of
#: occupied neighbour offsets. With equal weights for all offsets, as for images, the outputs of a
#: dense and a scattered pattern differ 10^5 times after 12 layers; with these, 200 times. 69 real
#: matrices had 5.2 to 6.1 of 8 neighbours in a 128 x 128 grid and 1.9 to 3.6 at full
#: resolution (geometric means, by depth).
_OWN = 0.5
_OCCUPIED = 0.6
_SHAPE = 3


class _Head(nn.Module):
    """[b,dim] from features [b,c] and shapes [b,3] of the patterns."""

    def __init__(self, channels: int, dim: int, *, shape: bool) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(channels + _SHAPE * shape, dim)

    def forward(self, pooled: Tensor, shapes: Tensor) -> Tensor:
        if self.shape:
            pooled = torch.cat([pooled, shapes.to(pooled.dtype)], dim=1)
        projected: Tensor = self.project(pooled)
        return projected


class _Layers(NamedTuple):
    """Convolutions of a network, the first of 5x5 by stride 1, the others of 3x3 by `stride`."""

    channels: tuple[int, ...]
    stride: int
    #: Numbers of the convolutions before which there is max pooling (2x2 by stride 2).
    pooled: tuple[int, ...]
    #: True if the global averages of all layers are used, not of the last alone.
    every: bool
    #: Default of `shape` in a spec.
    shape: bool


#: By the name in a spec.
NETWORKS = {
    # COGNATE's input featurizer: 12 submanifold convolutions in four blocks of three; max pooling
    # after the first three blocks (its stride: our choice), the global average after the last. (The
    # text pools after each block; this follows Table 5.)
    "cognate": _Layers(
        (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256), 1, (3, 6, 9), False, False
    ),
    # WACO's input featurizer: 14 convolutions of 32 channels, down to one site for all patterns up
    # to 8192 a side; the averages of all layers are concatenated, 448 numbers, with the shape.
    "waco": _Layers((32,) * 14, 2, (), True, True),
}


class SparseNetwork(nn.Module):
    """The convolutions of one of `NETWORKS`, averages over the sites, and one linear layer."""

    def __init__(
        self, plan: _Layers, layers: Any, *, in_channels: int, dim: int, shape: bool
    ) -> None:
        super().__init__()
        self.plan = plan
        self.convolutions = nn.ModuleList(
            layers.SparseConv2d(cin, cout, *((3, plan.stride) if number else (5, 1)))
            for number, (cin, cout) in enumerate(pairwise([in_channels, *plan.channels]))
        )
        self.pool = layers.SparseMaxPool2d(2, 2)
        averaged = sum(plan.channels) if plan.every else plan.channels[-1]
        self.head = _Head(averaged, dim, shape=shape)
        self._average = layers.global_average

    def forward(self, tensor: SparseTensor, shapes: Tensor) -> Tensor:
        """[b,dim] from the sites and `shapes` [b,3]."""
        features = tensor.features.to(self.head.project.weight.dtype)
        tensor, averages = SparseTensor(features, tensor.level), []
        last = len(self.convolutions) - 1
        for number, convolution in enumerate(self.convolutions):
            if number in self.plan.pooled:
                tensor = self.pool(tensor)
            tensor = convolution(tensor)
            # In place: the result of a convolution has no other use.
            tensor = SparseTensor(nn.functional.relu_(tensor.features), tensor.level)
            if self.plan.every or number == last:
                averages.append(self._average(tensor))
        embedded: Tensor = self.head(torch.cat(averages, dim=1), shapes)
        return embedded


def complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with every key, checked. Raises: ModelError for an unknown name or key, or an invalid
    value."""
    name = spec.get("name")
    if not isinstance(name, str) or name not in NETWORKS:
        raise ModelError(f"network {name!r} is none of {', '.join(NETWORKS)}", where="network")
    full = {"name": name, "dim": 128, "shape": NETWORKS[name].shape, "dtype": "float32", **spec}
    unknown = full.keys() - {"name", "in_channels", "dim", "shape", "dtype"}
    if unknown:
        raise ModelError(f"networks have no {min(unknown)!r}", where="network")
    for key, most in _MOST.items():
        value = full.get(key)
        if type(value) is not int or not 1 <= value <= most:
            raise ModelError(f"{key} is {value!r}, not 1..{most}", where="network")
    if type(full["shape"]) is not bool:
        raise ModelError(f"shape is {full['shape']!r}, not true or false", where="network")
    if full["dtype"] not in tuple(_DTYPES):
        raise ModelError(
            f"dtype {full['dtype']!r} is none of {', '.join(_DTYPES)}", where="network"
        )
    return full


def build(spec: Mapping[str, Any], *, seed: int = 0, layers: Any = sparse_conv) -> nn.Module:
    """The network of a spec with initial weights drawn from `seed`, on the CPU.

    `forward(tensor, shapes float32[b,3]) -> [b,dim]`, as `collate` returns them. Equal
    specs and seeds give equal weights, also with the `layers` of another module
    (`tools/minkowski.py`); the global random state is unchanged.

    Raises: ModelError for an invalid spec.
    """
    full = complete(spec)
    sizes = {key: full[key] for key in ("in_channels", "dim", "shape")}
    with torch.random.fork_rng(devices=[]):
        module = SparseNetwork(NETWORKS[full["name"]], layers, **sizes)
    _first_weights(module, torch.Generator().manual_seed(seed))
    return module.to(_DTYPES[full["dtype"]])


def collate(
    inputs: Sequence[Input], *, device: str | torch.device = "cpu"
) -> tuple[SparseTensor, Tensor]:
    """One batch of at least one pattern: its sites, and `shapes` float32[b,3]."""
    numbers = np.repeat(np.arange(len(inputs)), [len(item.coords) for item in inputs])
    coords = np.insert(np.concatenate([item.coords for item in inputs]), 0, numbers, axis=1)
    features = torch.from_numpy(np.concatenate([item.features for item in inputs]))
    shapes = torch.from_numpy(np.stack([item.shape for item in inputs]))
    level = Level.of(torch.from_numpy(coords).to(device), entries=len(inputs))
    return SparseTensor(features.to(device), level), shapes.to(device)


def _first_weights(module: nn.Module, rng: torch.Generator) -> None:
    """Normal weights that preserve the scale of activations (as He et al. 2015 for images, but with
    a separate variance for the centre of a kernel), biases zero. Drawn by name, in float32 for any
    type."""
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            if parameter.ndim == 3:
                area, cin, _ = parameter.shape
                around = (1 - _OWN) / (_OCCUPIED * (area - 1))
                parameter.normal_(0, math.sqrt(2 * around / cin), generator=rng)
                parameter[area // 2] *= math.sqrt(_OWN / around)
            elif parameter.ndim == 2:
                parameter.normal_(0, math.sqrt(1 / parameter.shape[1]), generator=rng)
            else:
                parameter.zero_()
