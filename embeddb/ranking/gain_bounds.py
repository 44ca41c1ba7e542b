"""Bounds within which a cost model can be told as gains: its file may hold any weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError

__all__ = ["MOST_LOG", "sensible", "tempered"]

#: Log gains and spreads beyond this are no predictions; e to a few times it is still a number.
MOST_LOG = 100.0


def sensible(
    gain: NDArray[np.float64], spread: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log gains and spreads that can be told as gains; a spread may be nan.

    Raises: ModelError for others.
    """
    if not (np.abs(gain) <= MOST_LOG).all() or (np.abs(spread) > MOST_LOG).any():
        said = "it predicts numbers that are not finite or too large"
        raise ModelError(said, hint="train it again")
    return gain, spread


def tempered(
    gain: NDArray[np.float64], spread: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a model whose first predictions were `sensible` says later, within the same bounds: a
    number that is none is no gain."""
    held = np.clip(np.where(np.isnan(gain), -MOST_LOG, gain), -MOST_LOG, MOST_LOG)
    return held, np.minimum(spread, MOST_LOG)
