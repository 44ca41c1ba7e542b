"""Tiles of tensor kernels on one of this machine's processors: generated C, compiled by gcc."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.records import Measurement
from embeddb.kernels.tiles.generate import GENERATION, flags
from embeddb.platforms.platform import space_of
from embeddb.tensors.tiles import Tile, untiled, why_not
from indexer.runners.base import RunOptions
from indexer.runners.harness.local import LocalRunner
from indexer.runners.harness.measuring import Measuring
from indexer.runners.tile_code.job import MeasuredKernel

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform
    from embeddb.tensors.tensor_graph import TensorGraph

_WORKER = "indexer.runners.tile_code.job"
_PLATFORM = "tile-cpu"
#: Tiles compiled at a time, before any of them is timed.
_AT_ONCE = 128


class TileRunner(LocalRunner):
    """Measure tiles of tensor kernels, each on one thread, as runner `nest` measures nests: several
    compiled into one file, checked against numpy, timed in alternating rounds. Compiled code of the
    last kernel is kept, so that another round of it only costs the runs."""

    name = "tile"
    kinds = ("kernel",)
    fixed_threads = 1

    def __init__(self) -> None:
        super().__init__(_WORKER, _PLATFORM)
        self._remove: Callable[[], object] = lambda: None
        self._last: tuple[str, RunOptions, Measuring[Tile]] | None = None

    def close(self) -> None:
        """End the worker processes, and remove what was compiled."""
        super().close()
        self._last = None
        self._remove()

    def platform(self, *, threads: int = 0) -> Platform:
        """Platform `tile-cpu` (`LocalRunner.platform_as`), always of one thread."""
        identity = {"flags": " ".join(flags()), "kernels": str(GENERATION)}
        return self.platform_as(identity, threads=threads)

    def run(
        self, kernel: TensorGraph, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure tiles. Raises: UsageError for another operation than `tile`; TensorError for a
        kernel without tiles, of which nothing is compiled; RunnerUnavailable, also for failures of
        the machine in the middle of it."""
        from embeddb.platforms.platform import load_platform

        if op.name != "tile":
            raise UsageError(f"the tile runner has no {op}", hint="its operation is `tile`")
        self.require_available()
        if reason := why_not(kernel):
            raise TensorError(f"{kernel.name or kernel.id[:12]} has no tiles: {reason}")
        space = space_of(load_platform(_PLATFORM), op, kernel)
        rank = len(untiled(kernel).sizes)
        yield from self._measuring(kernel, options).configurations(
            configs,
            space=space,
            variant=lambda config: Tile.of(config, rank),
            default=untiled(kernel),
            at_once=_AT_ONCE,
        )

    def _measuring(self, kernel: TensorGraph, options: RunOptions) -> Measuring[Tile]:
        """The measuring of the last call, if it was of the same kernel."""
        if self._last is not None and self._last[:2] == (kernel.id, options):
            return self._last[2]
        self.next_subject()
        self._last = None
        self._remove()
        folder = mkdtemp(prefix="embeddb-tile-")
        # Also if the runner is not closed, and at exit.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        measuring = Measuring(
            MeasuredKernel(kernel),
            self.session,
            Path(folder),
            threads=1,
            options=options,
        )
        self._last = kernel.id, options, measuring
        return measuring


PLUGIN = TileRunner
