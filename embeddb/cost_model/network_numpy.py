"""The cost model's default network as plain arrays: what a query needs, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.nn_numpy import dense, linear, relu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Floats32 = NDArray[np.float32]

__all__ = [
    "FUSIONS",
    "NETWORKS",
    "PARTS",
    "PREDICTORS",
    "activations_of",
    "calibration_problem",
    "member_shapes",
    "scores",
]

#: The first is computed here, the others by torch.
NETWORKS = ("mlp", "lstm", "gru", "transformer")
#: Trees are computed by `embeddb.cost_model.trees_numpy`.
PREDICTORS = (*NETWORKS, "trees")
FUSIONS = ("add", "concat")
#: What the model sees; the ablations leave one out, which is then all zeros.
PARTS = ("featurizer", "mapper", "tiles", "latent")

#: The sizes of `embeddb.cost_model.network_torch`.
_NEST, _MATRIX, _MAPPED, _HIDDEN, _BILINEAR, _PROGRAM = 65, 128, 64, 64, 32, 128


def activations_of(
    weights: Arrays, nests: Floats32, latents: Floats32, *, add: bool
) -> tuple[Floats32, Floats32 | None]:
    """What of a network's score does not depend on the matrix, of nests float32[c,65] and latents
    float32[c,e]: float32[c,128], and float32[c,32] if it has a bilinear term."""
    if "program.0.weight" in weights:
        hidden = dense(np.hstack([nests, latents]), weights, "program.0")
        fused = dense(relu(hidden), weights, "program.2")
    else:
        mapped = dense(relu(dense(nests, weights, "mapper.0")), weights, "mapper.2")
        fused = mapped + latents if add else np.hstack([mapped, latents])
    first = linear(fused, weights["predictor.of_config.weight"])
    if "u.weight" not in weights:
        return first, None
    return first, dense(relu(dense(fused, weights, "v.0")), weights, "v.2")


def scores(
    weights: Arrays, x: Floats32, activations: tuple[Floats32, Floats32 | None]
) -> NDArray[np.float64]:
    """float64[c] of one network, for one matrix float32[1,d+1] and `activations_of`."""
    first, v = activations
    matrix = dense(relu(dense(x, weights, "matrix.0")), weights, "matrix.3")
    hidden = dense(np.maximum(matrix, 0), weights, "predictor.of_matrix") + first
    second = dense(relu(hidden), weights, "predictor.second")
    out = dense(relu(second), weights, "predictor.third")[:, 0]
    found = out.astype(np.float64)
    return found if v is None else found + v @ dense(matrix, weights, "u")[0]


def member_shapes(
    d: int, e: int, fusion: str, bilinear: bool, *, embedder: bool = False
) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a network with the predictor `mlp`, by name."""
    fused = _MAPPED if fusion == "add" else _MAPPED + e
    layers = {"mapper.0": (_MAPPED, _NEST), "mapper.2": (_MAPPED, _MAPPED)}
    if embedder:
        fused = _PROGRAM
        layers = {"program.0": (_PROGRAM, _NEST + e), "program.2": (_PROGRAM, _PROGRAM)}
    layers |= {
        "matrix.0": (_MATRIX, d + 1),
        "matrix.3": (_MATRIX, _MATRIX),
        "predictor.of_matrix": (_MATRIX, _MATRIX),
        "predictor.second": (_HIDDEN, _MATRIX),
        "predictor.third": (1, _HIDDEN),
    }
    if bilinear:
        layers |= {"u": (_BILINEAR, _MATRIX), "v.0": (_MATRIX, fused), "v.2": (_BILINEAR, _MATRIX)}
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": s for name, s in layers.items()}
    found |= {f"{name}.bias": s[:1] for name, s in layers.items()}
    return {**found, "predictor.of_config.weight": (_MATRIX, fused)}


def calibration_problem(fit: Mapping[str, Any]) -> str:
    """What is wrong with the numbers that make scores log gains; empty: nothing.

    Raises: KeyError, TypeError or ValueError for one that is missing or no number.
    """
    scales = [float(fit[key]) for key in ("slope", "floor", "factor")]
    if not all(math.isfinite(value) and value > 0 for value in scales):
        return "its calibration is not of finite positive numbers"
    if not 0 <= float(fit.get("guard", 0.0)) < math.inf:
        return "the guard of its calibration is not a finite number from 0 on"
    if not 0 <= float(fit.get("trust", 1.0)) <= 1:
        return "its calibration trusts the network by a number outside 0..1"
    return ""
