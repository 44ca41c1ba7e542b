"""MinkowskiEngine for `embeddb.featurizers.network.sparse_conv`: same weights, same results, for
parity tests and speed comparisons. CPU only; the package does not need it.

The engine keeps its own table of sites per resolution. It receives the sites of our `Level`, in
their order; by itself it numbers the sites after a stride arbitrarily. Its own choice of sites is
checked by the stored parity vectors, without this file. Global poolings are our own: the engine's
are wrong for some batches, as `docs/howto/train.md` describes.

Source: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional Neural Networks"
(CVPR 2019); version 0.5.4.
"""

from __future__ import annotations

import collections
import collections.abc
import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from embeddb.core.errors import InputError, MissingDependency
from embeddb.featurizers.network import sparse_conv
from embeddb.featurizers.network.sparse_conv import SparseTensor, global_average
from embeddb.featurizers.network.sparse_maps import Level

__all__ = [
    "MAX_COORDINATE",
    "SparseConv2d",
    "SparseMaxPool2d",
    "SparseTensor",
    "engine",
    "global_average",
]

#: The engine floors coordinates in float32; beyond this, sites would merge silently.
MAX_COORDINATE = 1 << 24


@cache
def engine() -> Any:
    """The package `MinkowskiEngine`.

    Raises: MissingDependency if it is not installed or was built for another torch.
    """
    # Removed from `collections` in Python 3.10; the engine imports it from there.
    vars(collections).setdefault("Sequence", collections.abc.Sequence)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has no CUDA
            return importlib.import_module("MinkowskiEngine")
    except ImportError as e:
        raise MissingDependency(
            f"the minkowski backend: {e}",
            hint="build it with `make minkowski` in a checkout, or use the backend own",
        ) from e
    finally:
        vars(collections).pop("Sequence", None)


class SparseConv2d(sparse_conv.SparseConv2d):
    """`embeddb.featurizers.network.sparse_conv.SparseConv2d`, computed by MinkowskiEngine.

    Raises: InputError also for features that are not on the CPU or do not fit the sites, and for
    coordinates from 2^24 on.
    """

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        target = tensor.level.coarser(self.stride)
        _check(tensor, self.weight.shape[1])
        if not tensor.level.sites:  # the engine ends the process on these
            out = tensor.features @ self.weight[0]
        else:
            source, at = _pair(tensor.level, target)
            out = engine().MinkowskiConvolutionFunction.apply(
                tensor.features,
                self.weight,
                _offsets(self.kernel, self.stride),
                _backend().ConvolutionMode.DEFAULT,
                source.key,
                at.key,
                source.manager,
            )
        return SparseTensor(out if self.bias is None else out + self.bias, target)


class SparseMaxPool2d(sparse_conv.SparseMaxPool2d):
    """`sparse_conv.SparseMaxPool2d`, computed by MinkowskiEngine. Among equal values any may
    receive the gradient."""

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        target = tensor.level.coarser(self.stride)
        _check(tensor, tensor.features.shape[1])
        if not tensor.level.sites:
            return SparseTensor(tensor.features, target)
        source, at = _pair(tensor.level, target)
        out = engine().MinkowskiLocalPoolingFunction.apply(
            tensor.features,
            engine().PoolingMode.LOCAL_MAX_POOLING,
            _offsets(self.kernel, self.stride),
            source.key,
            at.key,
            source.manager,
        )
        return SparseTensor(out, target)


@dataclass(frozen=True, slots=True)
class _Table:
    """The engine's table of one level's sites: its manager, and its key there."""

    manager: Any
    key: Any


def _table(level: Level) -> _Table:
    """Table of a level, created on first use and cached with it, as its kernel maps are."""
    if "minkowski" not in level._cache:
        # By default it sets torch and itself to a thread per processor.
        manager = engine().CoordinateManager(D=2, num_threads=torch.get_num_threads())
        level._cache["minkowski"] = _insert(level, manager)
    table: _Table = level._cache["minkowski"]
    return table


def _pair(level: Level, target: Level) -> tuple[_Table, _Table]:
    """Tables of both levels under one manager: the engine has no maps between others."""
    source = _table(level)
    cached = target._cache.get("minkowski")
    if cached is None or cached.manager is not source.manager:
        target._cache["minkowski"] = _insert(target, source.manager)
    return source, target._cache["minkowski"]


def _insert(level: Level, manager: Any) -> _Table:
    if int(level.coords.max()) >= MAX_COORDINATE:
        raise InputError(
            "the minkowski backend takes coordinates below 2^24",
            hint="reduce the pattern to a grid, or use the backend own",
        )
    key, _ = manager.insert_and_map(level.coords.int(), [level.stride] * 2)
    return _Table(manager, key)


def _check(tensor: SparseTensor, channels: int) -> None:
    features, sites = tensor.features, tensor.level.sites
    if features.device.type != "cpu":
        raise InputError(
            "the minkowski backend runs on the CPU only",
            hint="move network and features to the CPU, or use the backend own",
        )
    if features.shape != (sites, channels):
        raise InputError(
            f"{sites} sites and a layer of {channels} channels "
            f"do not take features of shape {tuple(features.shape)}"
        )


@cache
def _offsets(kernel: int, stride: int) -> Any:
    """The engine's description of a square kernel, without sites."""
    return engine().KernelGenerator(kernel_size=kernel, stride=stride, dimension=2)


@cache
def _backend() -> Any:
    """The engine's compiled part, for the only name that it does not export."""
    engine()
    return importlib.import_module("MinkowskiEngineBackend._C")
