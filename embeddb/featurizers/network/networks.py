"""Networks that read the sites of a pattern and give its embedding, by name.

`cognate` is COGNATE's input featurizer (paper, Table 5), `waco` the one of its base model. A
network is described by a spec of plain JSON, which travels in the card of its weights:

- `name`: one of `NETWORKS`; `in_channels`: features per site; `dim`: length of the embedding;
- `shape`: whether log rows, columns and nonzeros enter the last layer. False for `cognate`, whose
  table has none of it, true for `waco`. Global averages forget how many sites there were, so
  without it nothing but the features of the sites tells a large pattern from a small one;
- `dtype`: `float32` or `float64`.

Ours in both, because no paper states it: biases, ReLU after every convolution (in `cognate` thus
before pooling), one linear layer as projection, the mean over the entries (grid, windows) of one
pattern before it, and the first weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embeddb.core.errors import ModelError
from embeddb.featurizers.network.reduction import Input
from embeddb.featurizers.network.sparse_conv import SparseTensor
from embeddb.featurizers.network.sparse_maps import Level

#: Where the layers come from. The weights are the same.
BACKENDS = {
    "own": "embeddb.featurizers.network.sparse_conv",
    "minkowski": "embeddb.featurizers.network.minkowski",
}

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Largest value of each size in a spec: a spec is read from files of strangers.
_MOST = {"in_channels": 64, "dim": 4096}
#: First weights: share of a site's variance that comes from the site itself, and the share of the
#: other offsets that are taken to hold a site. With all offsets alike, as for images, what a dense
#: pattern gives and what a scattered one gives differ 10^5 times after 12 layers; so, 200 times.
#: 69 real matrices had 5.2 to 6.1 of 8 neighbours in a 128 x 128 grid and 1.9 to 3.6 in windows
#: (geometric means, by depth).
_OWN = 0.5
_OCCUPIED = 0.6
_SHAPE = 3


class _Head(nn.Module):
    """[b,dim] from features [entries,c] of the entries and shapes [b,3] of the patterns."""

    def __init__(self, channels: int, dim: int, *, shape: bool) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(channels + _SHAPE * shape, dim)

    def forward(self, pooled: Tensor, shapes: Tensor, owner: Tensor) -> Tensor:
        counts = torch.bincount(owner, minlength=shapes.shape[0])
        mean = pooled.new_zeros(shapes.shape[0], pooled.shape[1]).index_add(0, owner, pooled)
        mean = mean / counts.clamp(min=1)[:, None]
        if self.shape:
            mean = torch.cat([mean, shapes.to(mean.dtype)], dim=1)
        projected: Tensor = self.project(mean)
        return projected


class Cognate(nn.Module):
    """COGNATE's input featurizer: 12 submanifold convolutions in four blocks of three.

    The first kernel is 5x5, the others 3x3; channels 32, 32, 64 | 64, 64, 128 | 128, 128, 256 |
    256, 256, 256; max pooling after the first three blocks (2x2 by stride 2: ours), the global
    average after the last. (The text pools after each block, Table 5 as here.)
    """

    channels = ((32, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 256))

    def __init__(self, layers: Any, *, in_channels: int, dim: int, shape: bool) -> None:
        super().__init__()
        widths = [in_channels, *(c for block in self.channels for c in block)]
        self.convolutions = nn.ModuleList(
            layers.SparseConv2d(cin, cout, 3 if number else 5)
            for number, (cin, cout) in enumerate(pairwise(widths))
        )
        self.pool = layers.SparseMaxPool2d(2, 2)
        self.head = _Head(widths[-1], dim, shape=shape)
        self._average = layers.global_average
        self._pooled = {len(block) * k for k, block in enumerate(self.channels) if k}

    def forward(self, tensor: SparseTensor, shapes: Tensor, owner: Tensor) -> Tensor:
        """[b,dim] from the sites, `shapes` [b,3] and `owner` int64[entries]."""
        tensor = _cast(tensor, self.head)
        for number, convolution in enumerate(self.convolutions):
            if number in self._pooled:
                tensor = self.pool(tensor)
            tensor = _relu(convolution(tensor))
        embedded: Tensor = self.head(self._average(tensor), shapes, owner)
        return embedded


class Waco(nn.Module):
    """WACO's input featurizer: 14 convolutions of 32 channels; the averages of every layer count.

    Kernel 5x5 at full resolution, then 13 of 3x3 by stride 2, down to one site for all patterns up
    to 8192 a side; the global averages of all layers side by side, 448 numbers, and the shape.
    The stride of the first layer and its kernel are ours.
    """

    depth, width = 14, 32

    def __init__(self, layers: Any, *, in_channels: int, dim: int, shape: bool) -> None:
        super().__init__()
        first = layers.SparseConv2d(in_channels, self.width, 5)
        rest = (layers.SparseConv2d(self.width, self.width, 3, 2) for _ in range(self.depth - 1))
        self.convolutions = nn.ModuleList([first, *rest])
        self.head = _Head(self.depth * self.width, dim, shape=shape)
        self._average = layers.global_average

    def forward(self, tensor: SparseTensor, shapes: Tensor, owner: Tensor) -> Tensor:
        """[b,dim] from the sites, `shapes` [b,3] and `owner` int64[entries]."""
        tensor = _cast(tensor, self.head)
        averages = []
        for convolution in self.convolutions:
            tensor = _relu(convolution(tensor))
            averages.append(self._average(tensor))
        embedded: Tensor = self.head(torch.cat(averages, dim=1), shapes, owner)
        return embedded


#: By the name in a spec: the class, and whether it takes the shape unless its spec says.
NETWORKS: dict[str, tuple[type[nn.Module], bool]] = {
    "cognate": (Cognate, False),
    "waco": (Waco, True),
}


def complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with every key, checked.

    Raises: ModelError for an unknown name or key, or a value that no network has.
    """
    name = spec.get("name")
    if not isinstance(name, str) or name not in NETWORKS:
        raise ModelError(f"network {name!r} is none of {', '.join(NETWORKS)}", where="network")
    full = {"name": name, "dim": 128, "shape": NETWORKS[name][1], "dtype": "float32", **spec}
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


def build(spec: Mapping[str, Any], *, seed: int = 0, backend: str = "own") -> nn.Module:
    """The network of a spec with first weights drawn from `seed`, on the CPU.

    `forward(tensor, shapes float32[b,3], owner int64[entries]) -> [b,dim]`, as `collate` makes
    them. Equal specs and seeds give equal weights with every backend; the global random state is
    left as it was.

    Raises: ModelError for a spec that is none or an unknown backend. A backend that is not
    installed says so when the network is first used.
    """
    full = complete(spec)
    if backend not in BACKENDS:
        raise ModelError(f"backend {backend!r} is none of {', '.join(BACKENDS)}", where="network")
    made, _ = NETWORKS[full["name"]]
    sizes = {key: full[key] for key in ("in_channels", "dim", "shape")}
    with torch.random.fork_rng(devices=[]):
        module = made(import_module(BACKENDS[backend]), **sizes)
    _first_weights(module, torch.Generator().manual_seed(seed))
    return module.to(_DTYPES[full["dtype"]])


def collate(
    inputs: Sequence[Input], *, device: str | torch.device = "cpu"
) -> tuple[SparseTensor, Tensor, Tensor]:
    """One batch of at least one pattern: its sites, `shapes` float32[b,3], and for each entry the
    pattern it belongs to, `owner` int64[entries]."""
    counts = [found.entries for found in inputs]
    firsts = np.cumsum([0, *counts[:-1]])
    coords = np.concatenate([found.coords for found in inputs])
    coords[:, 0] += np.repeat(firsts, [len(found.coords) for found in inputs])
    features = torch.from_numpy(np.concatenate([found.features for found in inputs]))
    shapes = torch.from_numpy(np.stack([found.shape for found in inputs]))
    owner = torch.from_numpy(np.repeat(np.arange(len(inputs)), counts))
    level = Level.of(torch.from_numpy(coords).to(device), entries=sum(counts))
    return SparseTensor(features.to(device), level), shapes.to(device), owner.to(device)


def _first_weights(module: nn.Module, made: torch.Generator) -> None:
    """Normal weights that keep the size of activations (as He et al. 2015 for images, but with the
    centre of a kernel apart), biases zero. Drawn by name, in float32 whatever the type."""
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            if parameter.ndim == 3:
                area, cin, _ = parameter.shape
                around = (1 - _OWN) / (_OCCUPIED * (area - 1))
                parameter.normal_(0, math.sqrt(2 * around / cin), generator=made)
                parameter[area // 2] *= math.sqrt(_OWN / around)
            elif parameter.ndim == 2:
                parameter.normal_(0, math.sqrt(1 / parameter.shape[1]), generator=made)
            else:
                parameter.zero_()


def _cast(tensor: SparseTensor, head: _Head) -> SparseTensor:
    return SparseTensor(tensor.features.to(head.project.weight.dtype), tensor.level)


def _relu(tensor: SparseTensor) -> SparseTensor:
    # In place: what a convolution returns is needed by nothing else.
    return SparseTensor(nn.functional.relu_(tensor.features), tensor.level)
