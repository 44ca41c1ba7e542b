"""Latent encoder: a platform's own parameters as a vector of fixed size (COGNATE, Section 3.3).

An autoencoder (`ae`; `vae` and `pca` are read like it) is fitted to the distinct rows of one kernel
space and gives 64 numbers. Latents are centred on the rows it was fitted to and scaled by one
factor to a root mean square of 1, so a model fine-tuned on another platform reads latents of the
same size. `reproductions.cost_networks` has the paper's feature augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Weights float32[in,out] and biases float32[out].
Layer = tuple["NDArray[np.float32]", "NDArray[np.float32]"]
#: With ReLU in between.
Layers = tuple[Layer, ...]

KINDS = ("ae", "vae", "pca")
#: Readers of encoders that do not ship, by kind.
READERS: dict[str, Callable[[Mapping[str, NDArray[Any]]], LatentEncoder]] = {}
#: Numbers of a latent vector (Table 6 of COGNATE).
LATENT_DIM = 64
#: Spaces up to this many configurations are enumerated, of others this many are drawn.
_ROWS = 4096
#: Numbers of one table of rows: a space of many columns is represented by fewer rows.
_MAX_CELLS = 1 << 24
_MAX_LAYERS = 4


class LatentEncoder(Protocol):
    """Latent encoder, fitted or read by `from_tensors`. h is its width, e = `dim`."""

    @property
    def dim(self) -> int: ...

    def encode(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[c,e] from raw float32[c,h]. Raises: UsageError for another width."""

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Tensors from which `from_tensors` restores it."""


def space_rows(platform: Platform, op: Op, *, rng: np.random.Generator) -> NDArray[np.float32]:
    """float32[r,h]: the distinct rows of `Layout.raw` over the space of one op, for any matrix:
    all of a space of at most 4096 configurations, else those of 4096 drawn.

    Raises: UsageError if the platform does not run this kernel.
    """
    kernel = platform.kernel(op)
    layout, space = Layout(kernel), platform.space(op)
    most = max(1, min(_ROWS, _MAX_CELLS // max(layout.width, 1)))
    whole = space.size(most) is not None
    configs = [*space.enumerate()] if whole else space.sample(most, rng=rng)
    return np.unique(layout.raw(configs), axis=0)


def from_tensors(kind: str, tensors: Mapping[str, Any]) -> LatentEncoder:
    """Encoder whose `to_tensors` returned these (arrays, or tensors on the CPU).

    Raises: ModelError for an unknown kind, tensors that are missing, extra, of another shape or
    type, or not finite.
    """
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    if kind in READERS:
        return READERS[kind](arrays)
    if kind not in KINDS:
        raise ModelError(
            f"no latent encoder {kind!r}: kinds are {', '.join(KINDS)}",
            hint="reproductions.cost_models has others",
        )
    # Files of earlier versions have the decoder, too.
    own = {name: array for name, array in arrays.items() if not name.startswith("decoder.")}
    fitted = Fitted(kind, _read(kind, own))
    if 2 * len(fitted.encoder) != len(own):
        raise ModelError(f"latent encoder {kind}: there are tensors that belong to no layer")
    if fitted.dim != LATENT_DIM:
        raise ModelError(f"latent encoder {kind}: it gives {fitted.dim} numbers, not {LATENT_DIM}")
    return fitted


@dataclass(frozen=True, eq=False)
class Fitted:
    """An encoder with weights: `ae`, `vae` (the means) and `pca` are all products with ReLU in
    between, so a model file is used without torch."""

    kind: str
    encoder: Layers

    @property
    def width(self) -> int:
        return int(self.encoder[0][0].shape[0])

    @property
    def dim(self) -> int:
        return int(self.encoder[-1][0].shape[1])

    def encode(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        return forward(self.encoder, checked(raw, self.width))

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(self.encoder):
            tensors |= {f"encoder.{i}.weight": weight, f"encoder.{i}.bias": bias}
        return tensors


def checked(raw: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The rows float32[c,width]. Raises: UsageError for another number of columns."""
    if raw.ndim != 2 or raw.shape[1] != width:
        raise UsageError(
            f"the latent encoder reads {width} numbers per configuration, not {raw.shape[1:]}",
            hint="it was fitted to another platform, op or version of the platform file",
        )
    return raw


def forward(layers: Layers, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[c,e] from rows float32[c,h], with ReLU between layers."""
    for i, (weight, bias) in enumerate(layers):
        rows = (np.maximum(rows, 0) if i else rows) @ weight + bias
    return rows


def _read(kind: str, arrays: Mapping[str, NDArray[Any]]) -> Layers:
    layers: list[Layer] = []
    while f"encoder.{len(layers)}.weight" in arrays and len(layers) < _MAX_LAYERS:
        name = f"encoder.{len(layers)}"
        weight, bias = arrays[f"{name}.weight"], arrays.get(f"{name}.bias")
        if bias is None or weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise ModelError(f"latent encoder {kind}: {name} is not a weight with its bias")
        if layers and layers[-1][0].shape[1] != weight.shape[0]:
            raise ModelError(f"latent encoder {kind}: {name} does not fit the layer before it")
        for array in (weight, bias):
            if array.dtype != np.float32 or not np.isfinite(array).all():
                raise ModelError(f"latent encoder {kind}: {name} is not finite float32")
        layers.append((weight, bias))
    if not layers:
        raise ModelError(f"latent encoder {kind}: encoder.0.weight is missing")
    return tuple(layers)
