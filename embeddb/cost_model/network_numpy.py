"""The cost model's network at query time, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.errors import ModelError
from embeddb.core.nn_numpy import dense, linear, relu
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.platforms.kernel import KernelSpace

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    Arrays = Mapping[str, NDArray[Any]]
    Floats32 = NDArray[np.float32]

FUSIONS = ("add", "concat")
#: Parts of the input; those that are left out are all zeros.
PARTS = ("featurizer", "mapper", "tiles", "latent")

#: The sizes of `embeddb.cost_model.network_torch`.
_NEST, _MATRIX, _MAPPED, _HIDDEN, _BILINEAR = 65, 128, 64, 64, 32


class Mlp:
    """Inputs and scores of networks of the predictor `mlp`; `settings` are those of a model's card,
    `weights` one member's."""

    def layout(self, kernel: KernelSpace) -> Layout:
        """Columns of a configuration's own parameters."""
        return Layout(kernel)

    def network(
        self, inputs: int, latent: int, settings: Mapping[str, Any], dropout: float = 0.0
    ) -> nn.Module:
        """The same network in torch, for training, with `inputs` numbers of a matrix and `latent`
        of a configuration."""
        from embeddb.cost_model.network_torch import CostNetwork, Shape

        shape = Shape(inputs, latent, settings["fusion"], bool(settings["bilinear"]))
        return CostNetwork(shape, dropout=dropout)

    def shapes(self, d: int, e: int, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shape of every weight by name."""
        fused = _MAPPED if settings["fusion"] == "add" else _MAPPED + e
        layers = {
            "mapper.0": (_MAPPED, _NEST),
            "mapper.2": (_MAPPED, _MAPPED),
            "matrix.0": (_MATRIX, d + 1),
            "matrix.3": (_MATRIX, _MATRIX),
            "predictor.of_matrix": (_MATRIX, _MATRIX),
            "predictor.second": (_HIDDEN, _MATRIX),
            "predictor.third": (1, _HIDDEN),
        }
        if settings["bilinear"]:
            layers |= {
                "u": (_BILINEAR, _MATRIX),
                "v.0": (_MATRIX, fused),
                "v.2": (_BILINEAR, _MATRIX),
            }
        weights = {f"{name}.weight": s for name, s in layers.items()}
        biases = {f"{name}.bias": s[:1] for name, s in layers.items()}
        return {**weights, **biases, "predictor.of_config.weight": (_MATRIX, fused)}

    def prepared(
        self, weights: Arrays, nests: Floats32, latents: Floats32, settings: Mapping[str, Any]
    ) -> Any:
        """Hidden values that are independent of the matrix, of nests float32[c,65] and latents
        float32[c,e]: float32[c,128], and float32[c,32] if there is a bilinear term."""
        mapped = dense(relu(dense(nests, weights, "mapper.0")), weights, "mapper.2")
        fused = mapped + latents if settings["fusion"] == "add" else np.hstack([mapped, latents])
        first = linear(fused, weights["predictor.of_config.weight"])
        if not settings["bilinear"]:
            return first, None
        return first, dense(relu(dense(fused, weights, "v.0")), weights, "v.2")

    def scores(self, weights: Arrays, x: Floats32, prepared: Any) -> NDArray[np.float64]:
        """Scores float64[c] of one network, for one matrix float32[1,d+1] and `prepared`."""
        first, v = prepared
        matrix = dense(relu(dense(x, weights, "matrix.0")), weights, "matrix.3")
        hidden = dense(np.maximum(matrix, 0), weights, "predictor.of_matrix") + first
        second = dense(relu(hidden), weights, "predictor.second")
        score = dense(relu(second), weights, "predictor.third")[:, 0].astype(np.float64)
        return score if v is None else score + v @ dense(matrix, weights, "u")[0]


#: By predictor. `reproductions.cost_networks` adds the networks of other papers.
FORMS = {"mlp": Mlp()}


def form_of(settings: Mapping[str, Any]) -> Mlp:
    """The form of a card's networks. Raises: ModelError for one that does not ship."""
    name = settings["predictor"]
    if settings.get("embedder") or settings.get("every"):
        name = "waco"
    if name not in FORMS:
        raise ModelError(
            f"its network {name!r} is one that queries do not read",
            hint="`python -m reproductions.cost_models` trains and judges it",
        )
    return FORMS[name]


def calibration_problem(fit: Mapping[str, Any]) -> str:
    """Return what is wrong with a card's calibration, in one line; empty if nothing is.

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
