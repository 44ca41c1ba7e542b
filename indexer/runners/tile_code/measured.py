"""A kernel as what tiles are measured of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddb.kernels.accuracy import kernel_error
from embeddb.kernels.tiles.generate import FLAGS, PRELUDE, arguments, c_function
from embeddb.tensors.computation import Computation
from embeddb.tensors.tensor_text import tensor_text
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of
from indexer.runners.harness import building
from indexer.runners.harness.building import Built
from indexer.runners.tile_code.job import bytes_needed

__all__ = ["MeasuredKernel"]


class MeasuredKernel:
    """Keeps `indexer.runners.harness.measuring.Measured`. Short calls are made several times in a
    row: the clock is read around at least so many seconds."""

    called = "kernel"
    least_s = 1e-4

    def __init__(self, kernel: Computation) -> None:
        self.kernel = kernel
        self.tolerance = kernel_error(kernel)
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
            variants, source, folder, prelude=PRELUDE, compiler=building.command(*FLAGS)
        )
