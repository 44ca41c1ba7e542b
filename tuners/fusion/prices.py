"""What a model of kernels says a cut takes: the sum of its kernels' predicted seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from embeddb.core.errors import ModelError
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import placed_kernel
from tuners.fusion.corrections import Corrections

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
    equal ones are predicted by id. Once cuts ran and are `told`, `corrected` prices go by that,
    too; what the model says does not change.
    """

    def __init__(self, program: Computation, model: PredictsKernels) -> None:
        self.program, self.model = program, model
        self._kernels: dict[tuple[int, ...], Computation] = {}
        self._said: dict[str, float] = {}
        self._known: dict[str, float] = {}
        self._corrections = Corrections()

    @property
    def kernels(self) -> int:
        """Different kernels that were predicted."""
        return len(self._said)

    @property
    def known(self) -> Mapping[str, float]:
        """Seconds by id of the kernels that are told; infinite for what fails."""
        return self._known

    def told(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """A cut ran. Kernels by id, of this cut those that are not known, take so long; infinite
        for what fails."""
        self._known |= kernel_seconds
        for members, kernel in self._of(cut):
            took, said = self._known.get(kernel.id, math.inf), self._predicted(kernel)
            if 0 < took < math.inf and said < math.inf:
                self._corrections.learn(members, took / said)

    def seconds(self, cut: Cut) -> float:
        """What the model says of a legal cut; infinite if it cannot say what one of its kernels
        takes."""
        return sum(self._predicted(kernel) for _, kernel in self._of(cut))

    def corrected(self, cut: Cut) -> float:
        """The same, but kernels that are known count as what they take, and others as the model
        says times how far it was off for those that share their operations."""
        return sum(
            self._known[kernel.id]
            if kernel.id in self._known
            else self._predicted(kernel) * self._corrections.factor(members)
            for members, kernel in self._of(cut)
        )

    def _of(self, cut: Cut) -> Iterator[tuple[tuple[int, ...], Computation]]:
        """The members of each kernel, places in the program, and the kernel."""
        members: dict[int, list[int]] = {}
        for place, label in enumerate(edges_of(self.program).labels(cut)):
            if label >= 0:
                members.setdefault(label, []).append(place)
        for places in map(tuple, members.values()):
            if places not in self._kernels:
                self._kernels[places] = placed_kernel(self.program, places).kernel
            yield places, self._kernels[places]

    def _predicted(self, kernel: Computation) -> float:
        """Asked once."""
        if kernel.id not in self._said:
            try:
                seconds = self.model.seconds(kernel)
            except ModelError:
                seconds = math.inf
            self._said[kernel.id] = seconds if 0 < seconds < math.inf else math.inf
        return self._said[kernel.id]
