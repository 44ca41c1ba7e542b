"""Calibration of ranking scores as log gains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.training.tensors.samples import KernelSample


def calibration(
    samples: Sequence[KernelSample], scores: Sequence[NDArray[np.float64]]
) -> dict[str, float]:
    """`slope`: factor of scores float64[c] within a kernel, lower is faster, to log seconds (least
    squares, at least 0); `floor`: standard deviation of the residual. Every kernel has the same
    weight."""
    both = product = missed = 0.0
    pairs = [
        (own - own.mean(), s.logs - s.logs.mean()) for s, own in zip(samples, scores, strict=True)
    ]
    for one, real in pairs:
        both += float(np.mean(one * real))
        product += float(np.mean(np.square(one)))
    slope = max(both / product, 0.0) if product else 0.0
    for one, real in pairs:
        missed += float(np.mean(np.square(slope * one - real)))
    return {"slope": slope, "floor": float(np.sqrt(missed / max(len(pairs), 1)))}
