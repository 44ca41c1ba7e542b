"""Which tiles of a tensor kernel are measured, beside those that were before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.core.records import Run
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import Content, default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.tiles import why_not
from indexer.measure import Design

#: Kendall's tau of two rounds below which a third one is run.
TILE_AGREEMENT = 0.8
#: Prefix of the names that runs are stored under.
_PREFIX = "tiles:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileDesign(Design):
    """So many tiles of each kernel, so many rounds; `seed` is that of the tiles and their order.
    Tiles that ran in as many rounds under any such design, or failed, are not measured again."""

    tiles: int = 80
    rounds: int = 2
    seed: int = 0

    @property
    def op(self) -> Op:
        return Op("tile")

    @property
    def campaign(self) -> str:
        return f"{_PREFIX}{self.tiles}x{self.rounds}/{self.seed}"

    def configs(
        self, here: Platform, workload: Content, stored: Sequence[Run], rng: np.random.Generator
    ) -> list[Config]:
        """The untiled form and the tiles that are left; empty if none is left.

        Raises: TensorError for a kernel without tiles.
        """
        assert isinstance(workload, Computation)
        if reason := why_not(workload):
            raise TensorError(reason)
        default = default_of(here, self.op, workload)
        space = space_of(here, self.op, workload)
        tiles = designed_tiles(space, default, self.tiles, rng=rng)
        done = self._done([run for run in stored if run.campaign.startswith(_PREFIX)])
        left = [tile for tile in tiles if tile not in done]
        return list(dict.fromkeys([default, *left])) if left else []

    def _done(self, runs: Sequence[Run]) -> set[Config]:
        rounds: dict[Config, set[object]] = {}
        for run in runs:
            rounds.setdefault(run.config, set()).add(run.measurement.context.get("round"))
        failed = {run.config for run in runs if not run.measurement.ok}
        return failed | {tile for tile, ran in rounds.items() if len(ran) >= self.rounds}
