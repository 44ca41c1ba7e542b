"""Losses over the ranked configurations of a matrix, and ranking figures.

Scores and gains are float32[b,k] of k configurations on each of b matrices, higher is faster; pairs
whose gains differ by no more than `noise` (log) do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from embeddb.core.errors import UsageError
from indexer.training.cost_model.settings import LOSSES

#: Losses of a pair by the difference of the scores, positive if the faster one is ahead.
PAIRWISE: dict[str, Callable[[Tensor], Tensor]] = {
    # COGNATE, Appendix A.4, by its words: a margin ranking loss. As printed the sign multiplies the
    # whole term, which would reward pairs in the wrong order.
    "margin": lambda ahead: functional.relu(1 - ahead)
}
#: Gains within about this much of the best share its weight in the listwise loss.
TEMPERATURE = 0.05
#: Number of others that each configuration is compared with, drawn for every batch.
_COMPARED = 4
#: Configurations of a matrix between which all pairs are compared in the figures.
_MOST_COMPARED = 512


def loss_of(
    name: str, scores: Tensor, gains: Tensor, *, noise: float, every_pair: bool = False
) -> Tensor:
    """The scalar to be minimised. With `every_pair` each pair of a matrix counts, as the papers
    have it, including those within the noise; else `_COMPARED` others of each configuration.

    Raises: UsageError for an unknown name.
    """
    if name == "listwise":
        return listwise(scores, gains)
    if name not in PAIRWISE:
        raise UsageError(f"no loss {name!r}", hint=f"losses: {', '.join(LOSSES)}")
    if every_pair:
        i, j = torch.triu_indices(scores.shape[1], scores.shape[1], 1).unbind()
        apart = (gains[:, i] - gains[:, j], scores[:, i] - scores[:, j])
        return pairwise(name, apart[1], apart[0], noise=0.0)
    shifts = torch.randperm(scores.shape[1] - 1)[:_COMPARED] + 1
    met = [(scores.roll(int(s), 1), gains.roll(int(s), 1)) for s in shifts]
    pairs = [pairwise(name, scores - s, gains - g, noise=noise) for s, g in met]
    return torch.stack(pairs).mean()


def listwise(scores: Tensor, gains: Tensor) -> Tensor:
    """Cross entropy between softmax(gains / T) and softmax(scores / T), which weights the order
    near the top (ListNet; with T = 0.05 a gain of 5 % counts e times)."""
    wanted = functional.softmax(gains / TEMPERATURE, dim=1)
    return -(wanted * functional.log_softmax(scores / TEMPERATURE, dim=1)).sum(1).mean()


def pairwise(name: str, scores: Tensor, gains: Tensor, *, noise: float) -> Tensor:
    """Mean over pairs, given as differences of scores and of gains."""
    sure = (gains.abs() > noise).to(scores.dtype)
    ahead = scores * gains.sign()
    return (PAIRWISE[name](ahead) * sure).sum() / sure.sum().clamp(min=1)


def figures(
    scores: NDArray[np.float64], gains: NDArray[np.float64], noise: float
) -> tuple[float, float, float] | None:
    """Pairwise ranking loss (PRL), ordered pair accuracy (OPA) and Kendall's tau-a of scores
    float64[k] for gains float64[k] of one matrix, over the pairs that count; None if no pair does.
    Of more than 512 configurations, evenly spaced ones are compared.

    Source: COGNATE, Figure 6.
    """
    step = -(-len(gains) // _MOST_COMPARED)
    s, g = scores[::step], gains[::step]
    i, j = np.triu_indices(len(g), 1)
    apart = g[i] - g[j]
    sure = np.abs(apart) > noise
    if not sure.any():
        return None
    ahead = ((s[i] - s[j]) * np.sign(apart))[sure]
    right, wrong = float((ahead > 0).mean()), float((ahead < 0).mean())
    return float(np.maximum(0, 1 - ahead).mean()), right, right - wrong


def mean_figures(each: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """Means by name over the `figures` of matrices."""
    means = np.mean(each, axis=0).tolist()
    return dict(zip(("valid_prl", "valid_opa", "valid_tau"), means, strict=True))
