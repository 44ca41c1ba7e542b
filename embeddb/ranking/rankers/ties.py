"""Which of several comes first that score the same: always the same one, by a fixed rule.

Only scores that are equal but for rounding count as ties. Within the noise of a measurement the
first five would be worse off on some machines: with the rule there, first answers on Zen 3 lost
0.2 (SpMM) and 0.5 points (SpMV) of the optimum, and those of the starter gained 0.1 to 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.ranking.query import Query

__all__ = ["settled"]

#: Log gains that differ by less are rounding.
_EQUAL = 1e-9


def settled(
    query: Query,
    configs: Sequence[Config],
    order: Sequence[int] | NDArray[np.int64],
    gain: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The order int64[u] with those that gain as much as the best (log gains float64[c]) before
    all others: first what is cheaper to prepare, then what differs less from the default, then by
    canonical JSON."""
    places = np.asarray(order, dtype=np.int64)
    if len(places) < 2:
        return places
    equal = gain[places] >= gain[places].max() - _EQUAL
    near = places[equal].tolist()
    if len(near) == 1:
        return np.concatenate([places[equal], places[~equal]])
    cost = (
        query.vote.preparation.of([configs[at] for at in near]) if query.vote.preparation else None
    )
    price = dict(zip(near, [0.0] * len(near) if cost is None else cost.tolist(), strict=True))
    default = set(query.default.items())
    near.sort(key=lambda at: (price[at], len(default ^ set(configs[at].items())), configs[at].json))
    return np.concatenate([np.array(near, dtype=np.int64), places[~equal]])
