"""From one legal cut of a program to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut
from embeddb.tensors.partition import near_cut, random_cut

__all__ = ["CutSteps"]


@dataclass(frozen=True, slots=True)
class CutSteps:
    """Of one program: an edge turned, or any cut (`tuners.hardware.annealing.Steps`)."""

    program: Computation

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        return near_cut(self.program, state, rng)

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return random_cut(self.program, rng)
