"""What trees and network of operations have in common: by how much sums are off, and what of that
counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embeddb.tensors.encoding.operation_rows import USUAL
from indexer.training.tensors.samples import KernelSample

#: Of log seconds: what is missed by more counts by its size, no longer by its square. Processes
#: that time the same kernel differ by less.
FAR = 0.4


def level(train: Sequence[KernelSample]) -> float:
    """By how much log seconds are above the sums of the guesses, at the median."""
    guessed = [np.log(np.exp(sample.operations[:, USUAL]).sum()) for sample in train]
    return float(np.median([s.logs.min() - g for s, g in zip(train, guessed, strict=True)]))
