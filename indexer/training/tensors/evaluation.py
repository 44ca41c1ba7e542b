"""Predictions of a kernels' network outside of its training, and their accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.training.tensors.figures import LEAST_S, fused_figures, summary, tile_figures
from indexer.training.tensors.network import TrainedNetwork, collate
from indexer.training.tensors.samples import KernelSample
from indexer.training.tensors.settings import Loss

#: Operations per batch outside of training.
_AT_ONCE = 16_384
#: Tiles of one kernel that a loss compares.
_COMPARED = 64

#: Scores float64[c] of each sample, lower is faster.
Predictions = Sequence[NDArray[np.float64]]


def predictions_of(
    network: TrainedNetwork, samples: Sequence[KernelSample]
) -> list[NDArray[np.float64]]:
    """float64[c] of each sample, as by `KernelNetwork.scores`: lower is faster."""
    mean, deviation = network.scale.target.tolist()
    predictions = []
    network.eval()
    with torch.no_grad():
        for sample in samples:
            step = max(1, _AT_ONCE // len(sample.graph))
            starts = range(0, len(sample.tiles), step)
            parts = [network(collate([sample.graph], [sample.tiles[s : s + step]])) for s in starts]
            predictions.append(torch.cat(parts).double().numpy() * deviation + mean)
    return predictions


def figures_of(
    task: str,
    samples: Sequence[KernelSample],
    predictions: Predictions,
    *,
    least_s: float = LEAST_S,
) -> dict[str, float]:
    """Means and medians over programs of `ape` and `tau`, or of `mape` and `tau`, the latter of
    kernels that take `least_s` or more."""
    if task == "fused":
        by_program = fused_figures(
            samples, [float(np.exp(part.min())) for part in predictions], least_s
        )
    else:
        by_program = tile_figures(samples, predictions)
    return {name: round(value, 4) for name, value in summary(by_program).items()}


def loss_on(
    network: TrainedNetwork,
    samples: Sequence[KernelSample],
    predictions: Predictions,
    loss: Loss,
) -> float:
    """The training loss; every family has the same weight, and in it every kernel."""
    mean, deviation = network.scale.target.tolist()
    by_family: dict[str, list[float]] = {}
    for sample, own in zip(samples, predictions, strict=True):
        step = -(-len(own) // _COMPARED)
        one, real = (torch.from_numpy((v[::step] - mean) / deviation) for v in (own, sample.logs))
        missed = loss(one, real, torch.zeros(len(one)))
        by_family.setdefault(sample.group, []).append(float(missed))
    return float(np.mean([np.mean(each) for each in by_family.values()]))
