"""How often configurations failed on the patterns that were measured, whatever they gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config

#: Patterns as which the rate of all configurations counts beside a configuration's own.
_PSEUDO_PATTERNS = 2.0


@dataclass(frozen=True, slots=True)
class Failures:
    """By configuration on how many patterns it failed and on how many it was tried, and the `rate`
    of all together, 0 to 1: where it is 0, nothing ever failed."""

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
        """Of `configs`, that stand in `columns` of float64[p,c] gains (nan: not run there) and the
        part of the runs behind each that failed."""
        ran = np.isfinite(gains)
        failed = ran & (failing >= 0.5)
        rate = float(failed.sum() / max(int(ran.sum()), 1))
        if not rate:
            return cls()
        each = zip(failed.sum(axis=0)[columns], ran.sum(axis=0)[columns], strict=True)
        return cls({c: (int(f), int(n)) for c, (f, n) in zip(configs, each, strict=True)}, rate)

    def chance(self, config: Config) -> float:
        """That it fails on a pattern of which nothing else is known: its own share of failures,
        drawn to the rate of all where few tell."""
        failed, tried = self.counts.get(config, (0, 0))
        return (failed + _PSEUDO_PATTERNS * self.rate) / (tried + _PSEUDO_PATTERNS)
