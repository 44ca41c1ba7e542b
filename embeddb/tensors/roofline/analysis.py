"""What the analytical model says of the tiles of kernels on one machine, in the form that learned
ones take it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.roofline.tiled import TileModel
from embeddb.tensors.tiles import untiled

__all__ = ["ANALYSED", "ANALYSIS_VERSION", "TOLD", "Analysis", "analysis_of"]

#: The platform whose code the model knows.
ANALYSED = "tile-cpu"
#: Raised with every change of what it says: trees know what one version of it misses.
ANALYSIS_VERSION = "3"
#: Numbers that `Analysis.rows` tells of a tile, the first its seconds.
TOLD = 12
#: A part that is less than e^-8 of another is nothing beside it.
_CLIP = 8.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """`facts` are those of the machine by name."""

    facts: Mapping[str, str]

    def logs(
        self, kernel: Computation, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c] natural logarithms of seconds. Raises: TensorError for a kernel without
        tiles."""
        return np.log(TileModel(kernel, Machine.of(self.facts)).seconds(configs))

    def rows(
        self, kernel: Computation, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c,12], logarithms: `logs`; these over that of the untiled kernel; the share of
        the whole of each part (operations, each of four caches), and each part over that of the
        untiled kernel. So what is told of a tile does not hang on which others are asked. Raises:
        as `logs`."""
        machine = Machine.of(self.facts)
        cycles = TileModel(kernel, machine).cycles([*configs, untiled(kernel).config])
        # A part may be nothing.
        logs = np.log(np.maximum(cycles, 1e-9))
        shares, over = logs[:, 1:] - logs[:, :1], logs - logs[-1:]
        seconds = logs[:, :1] - np.log(machine.hertz)
        told = [
            seconds,
            over[:, :1],
            *(np.clip(part, -_CLIP, _CLIP) for part in (shares, over[:, 1:])),
        ]
        return np.concatenate(told, axis=1)[:-1]


def analysis_of(platform: str, task: str, environment: Mapping[str, str]) -> Analysis | None:
    """On an instance of a platform of that name; None where tiles are run by code that the model
    does not know, and for `fused` kernels, which trees predict no better with a roofline."""
    if task != "tile" or platform != ANALYSED:
        return None
    return Analysis(Machine.facts(environment))
