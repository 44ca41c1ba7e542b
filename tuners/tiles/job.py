"""Kernels tuned: the tiles that an analytical model, a learned one or the neighbours like best run
beside the untiled kernel, the fastest of them again ("A Learned Performance Model for Tensor
Processing Units", Section 7.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Run, in_context
from embeddb.index.lookup import Lookup
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.query.build import build_query
from embeddb.query.fallback import answer
from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.roofline.tiled import TileModel
from embeddb.tensors.tiles import why_not
from indexer.runners.base import RunOptions

__all__ = ["ANALYSED", "RanksTiles", "TileTuneRequest", "TileTuned", "TileTuning"]

_OP = Op("tile")
#: Tiles that a model is asked about; of more legal ones, some of every size.
_MOST_RANKED = 2000
#: The same for the analytical model, which takes some 1.5 ms a tile.
_MOSTANALYSED = 600
#: What it is written for: the code of this platform.
ANALYSED = "tile-cpu"


class RanksTiles(Protocol):
    """A model of op `tile` (`embeddb.cost_model.graph_model.GraphModel`)."""

    version: str

    def predict(self, kernel: Computation, configs: Sequence[Config]) -> NDArray[np.float64]:
        """float64[c], lower is faster. Raises: ModelError where it cannot say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTuneRequest:
    """The first `count` tiles run once, then the fastest of them and the default in so many
    `rounds`. `seed` is that of what is drawn where there are too many tiles, or nothing is known.
    `by` says who chooses: `analytical`, which knows the code of `tile-cpu` alone, `model` or
    `neighbours`; empty: the first of these that there is.
    """

    by: str = ""
    count: int = 10
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(
        default_factory=lambda: RunOptions(repeats=2, max_repeats=5, min_time_s=0.002, threads=1)
    )


@dataclass(slots=True, kw_only=True)
class TileTuned:
    """Of one kernel. `by` says who chose the tiles: `analytical`, `model`, `neighbours` or, where
    nothing is known, `sizes`, for some of every size. `tried` are seconds by tile of the first
    turn, infinite for what failed; `rounds` those of the default and the fastest after it. `fresh`
    tiles ran now.
    """

    kernel: Computation
    default: Config
    by: str
    ranked: int
    tried: dict[Config, float] = field(default_factory=dict)
    rounds: dict[Config, list[float]] = field(default_factory=dict)
    fresh: int = 0

    @property
    def best(self) -> Config:
        """The fastest of the first turn."""
        return min(self.tried, key=lambda one: self.tried[one], default=self.default)

    def again_s(self, tile: Config) -> float:
        """The median of its rounds, else what it took at first; infinite without."""
        held = [one for one in self.rounds.get(tile, ()) if math.isfinite(one)]
        return median(held) if held else self.tried.get(tile, math.inf)

    @property
    def gain(self) -> float | None:
        """Of the fastest over the default; None where either failed."""
        default_s, best_s = self.again_s(self.default), self.again_s(self.best)
        both = math.isfinite(default_s) and math.isfinite(best_s)
        return default_s / best_s if both else None


@dataclass(frozen=True, slots=True)
class TileTuning:
    """Tunes kernels into `db` with a runner of `tile-cpu` on `here`, the platform as this machine
    is. Each run is written back, also where it is stopped: the same tuning again goes on there.
    """

    db: Lookup
    runner: Any
    here: Platform
    request: TileTuneRequest
    model: RanksTiles | None = None
    progress: Callable[[str, int, int], None] | None = None

    def run(self, kernels: Sequence[Computation]) -> tuple[list[TileTuned], dict[str, str]]:
        """The tuned ones, and by name why others have no tiles.

        Raises: ModelError from the model; RunnerUnavailable if the machine fails in the middle.
        """
        tuned: list[TileTuned] = []
        skipped: dict[str, str] = {}
        for at, kernel in enumerate(kernels):
            if self.progress is not None:
                self.progress(f"tune {kernel.name}", at, len(kernels))
            if reason := why_not(kernel):
                skipped[kernel.name or kernel.id[:12]] = reason
            else:
                tuned.append(self._one(kernel))
        return tuned, skipped

    def _one(self, kernel: Computation) -> TileTuned:
        known = self._known(kernel)
        made = self._chosen(kernel, list(known))
        wanted = list(made.tried)
        made.tried = {tile: known[tile][0] for tile in wanted if tile in known}
        for tile, seconds in self._measured(kernel, [t for t in wanted if t not in known]):
            made.tried[tile] = seconds
            made.fresh += 1
        pair = list(dict.fromkeys((made.default, made.best)))
        made.rounds = {tile: known.get(tile, [])[1:] for tile in pair}
        for at in range(min(map(len, made.rounds.values())), self.request.rounds):
            for tile, seconds in self._measured(kernel, pair if at % 2 else pair[::-1]):
                made.rounds[tile].append(seconds)
                made.fresh += 1
        return made

    def _chosen(self, kernel: Computation, before: Sequence[Config]) -> TileTuned:
        """What to try, as `tried` without seconds: the default, then the others in order. What this
        tuning ran before comes first: neighbours are asked no more once a kernel has runs."""
        asked = self.request
        space, default = space_of(self.here, _OP, kernel), default_of(self.here, _OP, kernel)
        rng = np.random.default_rng(asked.seed)
        legal = designed_tiles(space, default, _MOST_RANKED, rng=rng)
        by = asked.by or (self.model is not None and "model") or "neighbours"
        if not asked.by and self.here.name == ANALYSED:
            by = "analytical"
        if by == "analytical":
            legal = designed_tiles(space, default, _MOSTANALYSED, rng=rng)
            analysed = TileModel(kernel, Machine.of(self.here.environment))
            first = sorted(legal, key=analysed.seconds)
        elif by == "model" and self.model is not None:
            order = np.argsort(self.model.predict(kernel, legal), kind="stable")
            first = [legal[int(at)] for at in order]
        else:
            told = answer(build_query(self.db, kernel, self.here, _OP), asked.count + 1, rng=rng)
            by, first = "neighbours", [*before, *(Config(c.config) for c in told.candidates)]
            if told.link == "default":
                by, first = "sizes", designed_tiles(space, default, asked.count + 1, rng=rng)
        others = [tile for tile in dict.fromkeys(first) if tile != default]
        tried = dict.fromkeys([default, *others[: asked.count]], math.inf)
        return TileTuned(kernel=kernel, default=default, by=by, ranked=len(legal), tried=tried)

    def _measured(self, kernel: Computation, tiles: Sequence[Config]) -> list[tuple[Config, float]]:
        if not tiles:
            return []
        before = state_now(self.runner, threads=1)
        runs: list[Run] = []
        try:
            for tile, found in self.runner.run(kernel, _OP, tiles, options=self.request.options):
                runs.append(Run(kernel.id, _OP, self.here.id, tile, found, self._campaign()))
        finally:  # an interrupt loses nothing that was measured
            state = between(before, state_now(self.runner, threads=1))
            told = [replace(r, measurement=in_context(r.measurement, state)) for r in runs]
            if told:
                self.db.record(told, kernel, self.here)
        return [(run.config, run.measurement.seconds) for run in runs]

    def _known(self, kernel: Computation) -> dict[Config, list[float]]:
        """Seconds of this tuning's runs by tile, in the order in which they were made."""
        found: dict[Config, list[float]] = {}
        if self.db.store.tensor(kernel.id) is None:
            return found
        runs = self.db.store.runs(self.here.id, _OP, kernel.id)
        own = [run for run in runs if run.campaign == self._campaign()]
        for run in sorted(own, key=lambda run: run.measurement.when):
            found.setdefault(run.config, []).append(run.measurement.seconds)
        return found

    def _campaign(self) -> str:
        version = "" if self.model is None else self.model.version[:8]
        return f"tune:tiles/{self.request.by}/{version}/{self.request.seed}"
