"""Shared by the trees and the network of operations: the residual of sums, and its loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embeddb.tensors.encoding.operation_rows import USUAL
from indexer.training.tensors.samples import KernelSample

#: Threshold of Huber's loss in log seconds: larger residuals count linearly. Processes that time
#: the same kernel differ by less.
FAR = 0.4


def level(train: Sequence[KernelSample]) -> float:
    """Median of the log seconds minus the log sums of the guesses."""
    guessed = [np.log(np.exp(sample.operations[:, USUAL]).sum()) for sample in train]
    return float(np.median([s.logs.min() - g for s, g in zip(train, guessed, strict=True)]))
