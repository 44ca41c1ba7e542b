"""Layers of trained networks in numpy, for queries without torch.

Weights have torch's names and shapes: `NAME.weight` float32[out,in], `NAME.bias` float32[out].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError

#: Added to the variance of a layer, as torch does.
NORM_EPSILON = 1e-5
#: Multiplications of one product up to which OpenBLAS stays on one thread (its interface/gemm.c).
_ONE_THREAD = 4 * 65536

Floats = NDArray[np.float32]
Weights = Mapping[str, NDArray[Any]]


def below(tensors: Weights, prefix: str) -> dict[str, NDArray[Any]]:
    """The tensors whose names begin with the prefix, without it."""
    return {n[len(prefix) :]: a for n, a in tensors.items() if n.startswith(prefix)}


def linear(x: Floats, weight: Floats) -> Floats:
    """float32[...,out] of x float32[...,in] by weight float32[out,in].

    Computed in parts that OpenBLAS runs on one thread: on busy cores, waiting for its other threads
    takes 20 ms instead of 1.
    """
    rows = x.reshape(-1, x.shape[-1])
    at_once = max(1, _ONE_THREAD // weight.size)
    out = np.empty((len(rows), len(weight)), dtype=np.float32)
    whole = len(rows) // at_once * at_once
    if whole:
        parts = rows[:whole].reshape(-1, at_once, rows.shape[1])
        np.matmul(parts, weight.T, out=out[:whole].reshape(-1, at_once, out.shape[1]))
    if whole < len(rows):
        np.matmul(rows[whole:], weight.T, out=out[whole:])
    return out.reshape(*x.shape[:-1], -1)


def dense(x: Floats, weights: Weights, name: str) -> Floats:
    """Apply the linear layer of that name, with its bias."""
    out: Floats = linear(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]
    return out


def relu(x: Floats) -> Floats:
    """ReLU, in place."""
    return np.maximum(x, 0, out=x)


def layer_norm(x: Floats, weights: Weights, name: str) -> Floats:
    """Rows of x float32[n,h] with mean 0 and variance 1, then scaled and shifted (Ba et al., "Layer
    Normalization", 2016)."""
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    plain = centred / np.sqrt(variance + np.float32(NORM_EPSILON))
    out: Floats = plain * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return out


def check_weights(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check names, shapes and values of weights. Raises: ModelError unless they are finite float32
    of these names and shapes."""
    actual = {name: tuple(array.shape) for name, array in weights.items()}
    if actual != shapes:
        name = min(n for n in shapes.keys() | actual if shapes.get(n) != actual.get(n))
        raise ModelError(f"tensor {name!r} does not fit its network")
    for name, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise ModelError(f"tensor {name!r} is not finite float32")
