"""The few configurations that a rule chooses among."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["greedy_portfolio"]

#: A configuration that adds less, in mean log gain, is not worth its code.
_LEAST = 1e-3


def greedy_portfolio(gains: NDArray[np.float64], default: int, most: int) -> list[int]:
    """At most `most` positions of configurations, the default first: each next one is that which
    raises the geometric mean of the best of them the most. `gains` float64[r,c] are log gains over
    the default; nan, where a configuration was not run, counts as no gain.

    Greedy submodular maximisation (Nemhauser, Wolsey, Fisher 1978), as for algorithm portfolios.
    """
    known = np.nan_to_num(gains, nan=0.0)
    chosen, best = [default], known[:, default].copy()
    while len(chosen) < most:
        means = np.maximum(best[:, None], known).mean(axis=0)
        at = int(means.argmax())
        if means[at] < best.mean() + _LEAST:
            break
        chosen.append(at)
        best = np.maximum(best, known[:, at])
    return chosen
