"""The predictions of two cost models as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.config import Config
from embeddb.cost_model import Problem
from embeddb.cost_model.model import CostModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Smallest standard deviation by which a model is weighted.
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Combined:
    """The mean of a model of every machine and one of a machine's own runs, weighted by precision
    (1 / variance, as a meta-analysis weights studies). `vector` float32[d] are the workload's
    features for the second."""

    every: CostModel
    own: CostModel
    vector: NDArray[np.float32]

    @property
    def guard(self) -> float:
        """The guard of the first, which was judged on more groups."""
        return self.every.guard

    @property
    def reads_lengths(self) -> bool:
        return self.every.reads_lengths or self.own.reads_lengths

    def score(self, problem: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Log gains float64[c] over their mean and standard deviations float64[c], for which both
        models err alike, which overestimates them.

        Raises: as `CostModel.score`.
        """
        gain, spread = self.every.score(problem, configs)
        own_gain, own_spread = self.own.score(self._here(problem), configs)
        share = own_share(spread, own_spread)
        rest = 1.0 - share
        return rest * gain + share * own_gain, rest * spread + share * own_spread

    @property
    def correlation(self) -> Callable[[Problem, Sequence[Config]], Floats] | None:
        """`CostModel.correlation` of the second: trees do not know theirs."""
        own = self.own.correlation
        return None if own is None else lambda problem, configs: own(self._here(problem), configs)

    def _here(self, problem: Problem) -> Problem:
        return problem._replace(vector=self.vector)


def own_share(spread: Floats, own_spread: Floats) -> float:
    """Weight of the second of two models, 0 to 1, from the standard deviations float64[c] of each.
    All configurations have the same: other weights would change differences that both predict."""
    if not spread.size:
        return 0.0
    precision = np.maximum(spread, _LEAST) ** -2
    own = np.maximum(own_spread, _LEAST) ** -2
    return float(np.median(own / (precision + own)))
