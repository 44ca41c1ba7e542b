"""From one cut of a program to the next, where a model says which of some neighbours is run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embeddb.tensors.edges import Cut
from tuners.fusion.cut_steps import CutSteps
from tuners.fusion.prices import CutPrices

__all__ = ["DRAWN", "ScreenedSteps"]

#: Neighbours of which one is run.
DRAWN = 12


class ScreenedSteps:
    """Of one program (`tuners.hardware.annealing.Steps`): of `DRAWN` neighbours that did not run,
    the one whose price, corrected by what ran, is least. Where the model is wrong about a kernel,
    that leads astray once: then the kernel is known.

    Beyond the paper ("A Learned Performance Model for Tensor Processing Units", Section 7.3), where
    the hardware runs what the model liked best and nothing is learned from that.
    """

    def __init__(self, prices: CutPrices) -> None:
        self.prices = prices
        self._ran: set[Cut] = set()
        self._steps = CutSteps(prices.program)

    def told(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """A cut ran: as `CutPrices.told`."""
        self._ran.add(cut)
        self.prices.told(cut, kernel_seconds)

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        """One that ran where all did."""
        drawn = [self._steps.near(state, rng) for _ in range(DRAWN)]
        fresh = [cut for cut in dict.fromkeys(drawn) if cut not in self._ran]
        return min(fresh, key=self.prices.corrected) if fresh else drawn[0]

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return self._steps.anywhere(rng)
