"""Accuracy of ranked tiles and of predicted seconds: the figures of "A Learned Performance Model
for Tensor Processing Units" (Section 5), per program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.training.tensors.samples import KernelSample

#: Kernels that take less are left out of the figures of `fused`: they add nothing to a program's
#: time (5 microseconds in the paper).
LEAST_S = 50e-6

Floats = NDArray[np.float64]
Scores = Sequence[NDArray[np.floating]]


def kendall(one: NDArray[np.floating], other: NDArray[np.floating]) -> float | None:
    """Kendall's tau-b of [c] with [c], equal infinities being ties; None if one is constant."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(one, other).statistic) if len(one) > 1 else np.nan
    return None if np.isnan(tau) else tau


def figures_of(
    task: str,
    samples: Sequence[KernelSample],
    predictions: Scores,
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


def tile_figures(
    samples: Sequence[KernelSample], scores: Scores, k: int = 1
) -> dict[str, dict[str, float]]:
    """Figures by program: `ape`, in percent (Eq. 2), the loss if every kernel runs the top-ranked
    tile, or with `k` the best of the top k; and `tau` within its kernels, on average. `scores`
    float[c] of each sample, lower is faster."""
    chosen = program_seconds(samples, scores, k)
    best = program_seconds(samples, [sample.seconds for sample in samples])
    figures = {}
    for program, places in _by_program(samples).items():
        taus = [kendall(scores[at], samples[at].seconds) for at in places]
        defined = [tau for tau in taus if tau is not None]
        figures[program] = {"ape": 100 * (chosen[program] / best[program] - 1)}
        if defined:
            figures[program]["tau"] = float(np.mean(defined))
    return figures


def program_seconds(
    samples: Sequence[KernelSample], scores: Scores, k: int = 1
) -> dict[str, float]:
    """Sum by program over its kernels of the seconds of the best of the top k tiles."""
    seconds: dict[str, float] = {}
    for program, places in _by_program(samples).items():
        orders = (np.argsort(scores[at], kind="stable")[:k] for at in places)
        taken = zip(places, orders, strict=True)
        seconds[program] = sum(float(samples[at].seconds[order].min()) for at, order in taken)
    return seconds


def fused_figures(
    samples: Sequence[KernelSample], seconds: Sequence[float], least_s: float = LEAST_S
) -> dict[str, dict[str, float]]:
    """Figures by program: `mape`, in percent, and `tau` among its kernels, of those that take
    `least_s` or more. `seconds` are predictions, one per sample."""
    figures = {}
    for program, places in _by_program(samples).items():
        real = np.array([float(samples[at].seconds.min()) for at in places])
        predicted = np.array([seconds[at] for at in places])
        there = real >= least_s
        if not there.any():
            continue
        off = np.abs(predicted[there] - real[there]) / real[there]
        figures[program] = {"mape": 100 * float(off.mean())}
        tau = kendall(predicted[there], real[there])
        if tau is not None:
            figures[program]["tau"] = tau
    return figures


def summary(by_program: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means and medians over programs: `ape`, `ape_median`, `tau`, ... as far as present."""
    names = sorted({name for figures in by_program.values() for name in figures})
    values_by_name = {}
    for name in names:
        values = [figures[name] for figures in by_program.values() if name in figures]
        values_by_name[name] = float(np.mean(values))
        values_by_name[f"{name}_median"] = float(np.median(values))
    return values_by_name


def _by_program(samples: Sequence[KernelSample]) -> dict[str, list[int]]:
    indices: dict[str, list[int]] = {}
    for at, sample in enumerate(samples):
        indices.setdefault(sample.program, []).append(at)
    return dict(sorted(indices.items()))
