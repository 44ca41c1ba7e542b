"""A kernel as what tiles are measured of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddb.kernels import build as cpu_build
from embeddb.tensors.computation import Computation
from embeddb.tensors.tensor_text import tensor_text
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of
from indexer.runners.compiled import building
from indexer.runners.compiled.building import Built
from indexer.runners.tile_code.generate import PRELUDE, arguments, c_function
from indexer.runners.tile_code.job import bytes_needed
from indexer.runners.tile_code.rounding import tolerance_of

__all__ = ["MeasuredKernel", "flags"]

_FAST = ("-O3", "-ffast-math", "-fwrapv")


def flags() -> tuple[str, ...]:
    """What the compiler is called with."""
    return (*_FAST, cpu_build.flags()[1])


class MeasuredKernel:
    """Keeps `indexer.runners.compiled.measuring.Measured`. Short calls are made several times in a
    row: the clock is read around at least so many seconds."""

    called = "kernel"
    least_s = 1e-4

    def __init__(self, kernel: Computation) -> None:
        self.kernel = kernel
        self.tolerance = tolerance_of(kernel)
        self.scratch = plan_of(kernel).scratch
        self.parts: Sequence[Any] = (b"%d\n" % self.scratch, tensor_text(kernel))

    def bytes_needed(self, *, check: bool) -> int:
        return bytes_needed(self.kernel, self.scratch, check=check)

    def restored_bytes(self) -> int:
        return 0

    def reference(self, folder: Path) -> str:
        """Numpy's."""
        return ""

    def build(self, variants: Sequence[Tile], folder: Path) -> dict[Tile, Built]:
        def source(tile: Tile, name: str) -> tuple[str, str]:
            return c_function(self.kernel, tile, name), arguments(self.kernel, tile)

        return building.build_all(
            variants, source, folder, prelude=PRELUDE, compiler=building.command(*_FAST)
        )
