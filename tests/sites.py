"""Sites of small patterns for the tests of sparse convolution."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["PATTERNS", "SIZE", "sites_of"]

#: Rows and columns of every pattern here.
SIZE = 20

PATTERNS = ("banded", "power-law", "random", "blocked", "dense", "single", "empty", "batch")


def _mask(name: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    row, column = np.indices((SIZE, SIZE))
    if name == "banded":
        return np.abs(row - column) <= 2
    if name == "power-law":
        return rng.random((SIZE, SIZE)) < 1.5 / np.sqrt((row + 1) * (column + 1))
    if name == "random":
        return rng.random((SIZE, SIZE)) < 0.15
    if name == "blocked":
        return np.kron(rng.random((4, 4)) < 0.4, np.ones((5, 5))).astype(bool)
    if name == "dense":
        return np.ones((SIZE, SIZE), dtype=bool)
    single = np.zeros((SIZE, SIZE), dtype=bool)
    single[11, 3] = name == "single"
    return single


def sites_of(name: str) -> torch.Tensor:
    """int64[n,3]; "batch" has patterns of several sizes, one of them empty, one of one site."""
    masks = [_mask(name)]
    if name == "batch":
        masks = [_mask("banded"), _mask("empty"), _mask("single"), _mask("random")]
    found = [np.argwhere(mask) for mask in masks]
    entry = np.repeat(np.arange(len(masks)), [len(sites) for sites in found])
    return torch.from_numpy(np.column_stack((entry, np.concatenate(found))).astype(np.int64))
