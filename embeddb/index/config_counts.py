"""Counts by configuration: how often it was the fastest, and how often it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.reports import Progress
from embeddb.index.run_matrix import Extent, MatrixRow
from embeddb.index.scopes import run_matrix_of
from embeddb.store import Store

#: Number of patterns to which the rate of all configurations is equal beside a configuration's own.
_PSEUDO_PATTERNS = 2.0


class Wins(NamedTuple):
    """Number of wins of each configuration, each pattern on each machine counting once, and the
    `extent` of the rows where anything ran."""

    counts: Counter[Config]
    extent: Extent


def wins(store: Store, scopes: Sequence[tuple[Op, str]], progress: Progress | None = None) -> Wins:
    """Wins over scopes, each at its own op; of equal times the first configuration in order of its
    text."""
    counts, rows = Counter[Config](), list[MatrixRow]()
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress("read", at, len(scopes))
        runs = run_matrix_of(store, op, scope)
        for place, row in enumerate(runs.rows):
            column = None if row.op else runs.winner(place)
            if column is not None:
                counts[runs.configs[column]] += 1
                rows.append(row)
    return Wins(counts, Extent.of(rows))


@dataclass(frozen=True, slots=True)
class Failures:
    """Number of patterns on which each configuration failed and on which it ran, and the `rate` of
    failures of all together (0: nothing failed)."""

    counts: Mapping[Config, tuple[int, int]] = field(default_factory=dict)
    rate: float = 0.0

    @classmethod
    def of(
        cls,
        configs: Sequence[Config],
        columns: Sequence[int],
        gains: NDArray[np.float64],
        failing: NDArray[np.float64],
    ) -> Failures:
        """Failures of `configs` in `columns` of float64[p,c] gains (nan: not run) and the share of
        failed runs behind each."""
        ran = np.isfinite(gains)
        failed = ran & (failing >= 0.5)
        rate = float(failed.sum() / max(int(ran.sum()), 1))
        if not rate:
            return cls()
        each = zip(failed.sum(axis=0)[columns], ran.sum(axis=0)[columns], strict=True)
        return cls({c: (int(f), int(n)) for c, (f, n) in zip(configs, each, strict=True)}, rate)

    def chance(self, config: Config) -> float:
        """Probability of a failure on another pattern: the configuration's own share, shrunk to the
        rate of all."""
        failed, tried = self.counts.get(config, (0, 0))
        return (failed + _PSEUDO_PATTERNS * self.rate) / (tried + _PSEUDO_PATTERNS)
