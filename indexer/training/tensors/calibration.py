"""What the scores of a ranking say in log gains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.training.tensors.samples import KernelSample


def calibration(
    samples: Sequence[KernelSample], said: Sequence[NDArray[np.float64]]
) -> dict[str, float]:
    """`slope`: by what scores float64[c] within a kernel, lower is faster, are multiplied to be
    log seconds (least squares, 0 at least); `floor`: the standard deviation of what is then missed.
    Every kernel counts the same."""
    both = product = missed = 0.0
    pairs = [
        (own - own.mean(), s.logs - s.logs.mean()) for s, own in zip(samples, said, strict=True)
    ]
    for one, real in pairs:
        both += float(np.mean(one * real))
        product += float(np.mean(np.square(one)))
    slope = max(both / product, 0.0) if product else 0.0
    for one, real in pairs:
        missed += float(np.mean(np.square(slope * one - real)))
    return {"slope": slope, "floor": float(np.sqrt(missed / max(len(pairs), 1)))}
