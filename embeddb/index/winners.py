"""How often each configuration is the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.index.scopes import run_matrix_of
from embeddb.store import Store

__all__ = ["wins"]


def wins(
    store: Store,
    scopes: Sequence[tuple[Op, str]],
    progress: Callable[[str, int, int], None] | None = None,
) -> Counter[Config]:
    """On how many patterns of a platform each configuration was the fastest, over all scopes; of
    equal times the first in order of its text counts."""
    counts: Counter[Config] = Counter()
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress("read", at, len(scopes))
        runs = run_matrix_of(store, op, scope)
        for start, end in zip(runs.indptr[:-1], runs.indptr[1:], strict=True):
            seconds = runs.seconds[start:end]
            if np.isfinite(seconds).any():
                counts[runs.configs[runs.column[start + int(seconds.argmin())]]] += 1
    return counts
