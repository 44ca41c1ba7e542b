"""Which rows are held out together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["split_groups"]


def split_groups(groups: NDArray[np.str_], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold int64[r] of each row; a group is in one fold, folds are of near equal size."""
    names, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member)
    load = np.zeros(folds)
    fold = np.zeros(len(names), dtype=np.int64)
    for at in np.random.default_rng(seed).permutation(len(names)):
        fold[at] = int(np.argmin(load))
        load[fold[at]] += size[at]
    chosen: NDArray[np.int64] = fold[member]
    return chosen
