"""Tiles of tensor kernels on one of this machine's processors: generated C, compiled by gcc."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.records import Measurement
from embeddb.kernels.tiles.generate import GENERATION, flags
from embeddb.tensors.tiles import Tile, untiled, why_not
from indexer.runners.base import RunOptions
from indexer.runners.harness.local import LocalRunner
from indexer.runners.harness.measuring import Measuring
from indexer.runners.tile_code.job import MeasuredKernel

if TYPE_CHECKING:
    from embeddb.tensors.tensor_graph import TensorGraph

#: Tiles compiled at a time, before any of them is timed.
_AT_ONCE = 128


class TileRunner(LocalRunner):
    """Measure tiles of tensor kernels, each on one thread, as runner `nest` measures nests: several
    compiled into one file, checked against numpy, timed in alternating rounds. Compiled code of the
    last kernel is kept, so that another round of it only costs the runs."""

    name = "tile"
    fixed_threads = 1
    worker, platform_name = "indexer.runners.tile_code.job", "tile-cpu"

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[str, RunOptions, Measuring[Tile]] | None = None

    def close(self) -> None:
        """End the worker processes, and remove what was compiled."""
        super().close()
        self._forget()

    def _identity(self) -> dict[str, str]:
        return {"flags": " ".join(flags()), "kernels": str(GENERATION)}

    def run(
        self, kernel: TensorGraph, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure tiles. Raises: UsageError for another operation than `tile`; TensorError for a
        kernel without tiles, of which nothing is compiled; RunnerUnavailable, also for failures of
        the machine in the middle of it."""
        if op.name != "tile":
            raise UsageError(f"the tile runner has no {op}", hint="its operation is `tile`")
        self.require_available()
        if reason := why_not(kernel):
            raise TensorError(f"{kernel.name or kernel.id[:12]} has no tiles: {reason}")
        rank = len(untiled(kernel).sizes)
        yield from self._measuring(kernel, options).configurations(
            configs,
            space=self.space(op, kernel),
            variant=lambda config: Tile.of(config, rank),
            default=untiled(kernel),
            at_once=_AT_ONCE,
        )

    def _measuring(self, kernel: TensorGraph, options: RunOptions) -> Measuring[Tile]:
        """The measuring of the last call, if it was of the same kernel."""
        if self._last is None or self._last[:2] != (kernel.id, options):
            self.next_subject()
            self._forget()
            of = MeasuredKernel(kernel)
            fresh = Measuring(of, self.session, threads=1, options=options)
            self._last = kernel.id, options, fresh
        return self._last[2]

    def _forget(self) -> None:
        if self._last is not None:
            self._last[2].close()
        self._last = None


PLUGIN = TileRunner
