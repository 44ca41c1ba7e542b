"""The cost model's default network as plain arrays: what a query needs, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FUSIONS", "PARTS", "PREDICTORS", "arrays_of", "linear", "member_shapes"]

#: The first is computed here, the others by torch.
PREDICTORS = ("mlp", "lstm", "gru", "transformer")
FUSIONS = ("add", "concat")
#: What the model sees; the ablations leave one out, which is then all zeros.
PARTS = ("featurizer", "mapper", "latent")

_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "|u1"}
#: The sizes of `embeddb.models.costmodel`.
_NEST, _MATRIX, _MAPPED, _HIDDEN, _BILINEAR = 53, 128, 64, 64, 32


def linear(
    tensors: Mapping[str, NDArray[Any]], name: str, rows: NDArray[np.float32]
) -> NDArray[np.float32]:
    """One layer: float32[r,out] of rows float32[r,in]."""
    out: NDArray[np.float32] = rows @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
    return out


def member_shapes(d: int, e: int, fusion: str, bilinear: bool) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a network with the predictor `mlp`, by name."""
    fused = _MAPPED if fusion == "add" else _MAPPED + e
    layers = {
        "matrix.0": (_MATRIX, d + 1),
        "matrix.3": (_MATRIX, _MATRIX),
        "mapper.0": (_MAPPED, _NEST),
        "mapper.2": (_MAPPED, _MAPPED),
        "predictor.of_matrix": (_MATRIX, _MATRIX),
        "predictor.second": (_HIDDEN, _MATRIX),
        "predictor.third": (1, _HIDDEN),
    }
    if bilinear:
        layers |= {"u": (_BILINEAR, _MATRIX), "v.0": (_MATRIX, fused), "v.2": (_BILINEAR, _MATRIX)}
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": s for name, s in layers.items()}
    found |= {f"{name}.bias": s[:1] for name, s in layers.items()}
    return {**found, "predictor.of_config.weight": (_MATRIX, fused)}


def arrays_of(data: bytes) -> dict[str, NDArray[Any]]:
    """Tensors by name of a safetensors file whose header `model_file.read_card` has checked.

    Raises: ValueError or KeyError if the bytes are not such a file after all.
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        raw = data[8 + length + start : 8 + length + stop]
        found[name] = np.frombuffer(raw, _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found
