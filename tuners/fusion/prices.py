"""What a model of kernels says a cut takes: the sum of its kernels' predicted seconds."""

from __future__ import annotations

import math
from typing import Protocol

from embeddb.core.errors import ModelError
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import placed_kernel

__all__ = ["CutPrices", "PredictsKernels"]


class PredictsKernels(Protocol):
    """A model of op `fused` (`embeddb.cost_model.graph_model.GraphModel`)."""

    @property
    def version(self) -> str:
        """Of its weights: what it says of a kernel is the same under the same version."""

    def seconds(self, kernel: Computation) -> float:
        """Raises: ModelError where it cannot say."""


class CutPrices:
    """Of one program. Each kernel is predicted once: neighbouring cuts share all but a few, and
    equal ones are predicted by id."""

    def __init__(self, program: Computation, model: PredictsKernels) -> None:
        self.program, self.model = program, model
        self._by_members: dict[tuple[int, ...], float] = {}
        self._by_id: dict[str, float] = {}

    @property
    def kernels(self) -> int:
        """Different kernels that were predicted."""
        return len(self._by_id)

    def seconds(self, cut: Cut) -> float:
        """Of a legal cut; infinite if the model cannot say what one of its kernels takes."""
        members: dict[int, list[int]] = {}
        for place, label in enumerate(edges_of(self.program).labels(cut)):
            if label >= 0:
                members.setdefault(label, []).append(place)
        return sum(self._kernel(tuple(places)) for places in members.values())

    def _kernel(self, members: tuple[int, ...]) -> float:
        if members not in self._by_members:
            kernel = placed_kernel(self.program, members).kernel
            if kernel.id not in self._by_id:
                self._by_id[kernel.id] = self._predicted(kernel)
            self._by_members[members] = self._by_id[kernel.id]
        return self._by_members[members]

    def _predicted(self, kernel: Computation) -> float:
        try:
            seconds = self.model.seconds(kernel)
        except ModelError:
            return math.inf
        return seconds if 0 < seconds < math.inf else math.inf
