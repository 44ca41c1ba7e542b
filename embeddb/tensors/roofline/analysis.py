"""What the analytical models say of kernels on one machine, in the form that learned ones take it
in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.fused import fused_seconds
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.roofline.tiled import TileModel

__all__ = ["ANALYSED", "Analysis", "analysis_of"]

#: The platform whose code the model of tiles knows.
ANALYSED = "tile-cpu"
#: A kernel is not called in less: what is shorter is as long.
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Analysis:
    """Of kernels under `task`, `tile` or `fused`; `facts` are those of the machine by name."""

    task: str
    facts: Mapping[str, str]

    def logs(
        self, kernel: Computation, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c] natural logarithms of seconds. Raises: TensorError for a kernel without
        tiles."""
        machine = Machine.of(self.facts)
        if self.task == "tile":
            return np.log(TileModel(kernel, machine).seconds(configs))
        whole = max(fused_seconds(kernel, machine), _LEAST_S)
        return np.full(len(configs), np.log(whole))


def analysis_of(platform: str, task: str, environment: Mapping[str, str]) -> Analysis | None:
    """On an instance of a platform of that name; None where tiles are run by code that the model
    does not know."""
    if task == "tile" and platform != ANALYSED:
        return None
    return Analysis(task, Machine.facts(environment))
