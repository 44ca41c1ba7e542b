"""Many tensor kernels measured on this machine, many tiles of each, in rounds that are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Run, in_context
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.tiles import why_not
from indexer.campaign.agreement import compare
from indexer.runners.base import RunOptions

__all__ = ["AGREE", "TileJob", "TileRequest", "TileTally"]

_OP = Op("tile")
#: Kendall's tau of two rounds below which a third one is run.
AGREE = 0.8
#: Tiles that two rounds must have in common before their ranks mean anything.
_FEWEST = 3
#: How the names begin under which runs are kept.
_NAME = "tiles:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRequest:
    """So many tiles of each kernel, so many rounds; `seed` is that of the tiles and their order."""

    tiles: int = 80
    rounds: int = 2
    seed: int = 0
    options: RunOptions = field(default_factory=lambda: RunOptions(repeats=2, threads=1))


@dataclass(slots=True)
class TileTally:
    """Kernels that were done before or now, tiles and runs measured now, kernels whose rounds did
    not agree and had one more, and by kernel's name why it has no tiles. `taus` are Kendall's tau
    of the first two rounds, by kernel."""

    known: int = 0
    measured: int = 0
    tiles: int = 0
    runs: int = 0
    again: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    taus: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TileJob:
    """Measures into `db` with a runner on `here`, the platform as this machine is."""

    db: Lookup
    runner: Any
    here: Platform
    request: TileRequest

    def run(
        self,
        kernels: Sequence[Computation],
        progress: Progress | None = None,
    ) -> TileTally:
        """Every kernel, one after the other, each written back when it is done. Tiles that ran in
        as many rounds before are left out, however many were asked for then, and kernels of which
        nothing else is left.

        Raises: RunnerUnavailable if the machine fails in the middle of it.
        """
        tally = TileTally()
        for at, kernel in enumerate(kernels):
            if progress is not None:
                progress(f"measure {kernel.name}", at, len(kernels))
            ran = self._ran(kernel)
            rng = np.random.default_rng(self.request.seed)
            if any(run.campaign == self._campaign() for run in ran):
                tally.known += 1
            elif reason := why_not(kernel):
                tally.skipped[kernel.told_as(tally.skipped)] = reason
            elif tiles := self._tiles(kernel, _done(ran, self.request.rounds), rng):
                self._one(kernel, tiles, rng, tally)
            else:
                tally.known += 1
        return tally

    def _campaign(self) -> str:
        asked = self.request
        return f"{_NAME}{asked.tiles}x{asked.rounds}/{asked.seed}"

    def _ran(self, kernel: Computation) -> list[Run]:
        """What ran here of a kernel when many tiles of it were measured."""
        if self.db.store.tensor(kernel.id) is None:
            return []
        runs = self.db.store.runs(self.here.id, _OP, kernel.id)
        return [run for run in runs if run.campaign.startswith(_NAME)]

    def _tiles(
        self, kernel: Computation, done: frozenset[Config], rng: np.random.Generator
    ) -> list[Config]:
        """Those of the design that are not done and, beside them, the untiled form once more; none
        where all are."""
        default = default_of(self.here, _OP, kernel)
        space = space_of(self.here, _OP, kernel)
        tiles = designed_tiles(space, default, self.request.tiles, rng=rng)
        left = [tile for tile in tiles if tile not in done]
        return list(dict.fromkeys([default, *left])) if left else []

    def _one(
        self,
        kernel: Computation,
        tiles: Sequence[Config],
        rng: np.random.Generator,
        tally: TileTally,
    ) -> None:
        """The runs of a kernel are kept together or, if it is stopped, not at all: what is there
        counts as done."""
        asked = self.request
        before = state_now(self.runner, threads=1)
        rounds = [self._round(kernel, tiles)]
        while len(rounds) < asked.rounds:
            rounds.append(self._round(kernel, _shuffled(_right(rounds[0]), rng)))
        tau = _tau(*rounds[:2]) if len(rounds) > 1 else math.nan
        if tau < AGREE:
            rounds.append(self._round(kernel, _shuffled(_right(rounds[0]), rng)))
            tally.again += 1
        state = between(before, state_now(self.runner, threads=1))
        told: list[Run] = []
        for number, runs in enumerate(rounds):
            facts = {**state, "round": float(number + 1)}
            if not math.isnan(tau):
                facts["agreement"] = round(tau, 4)
            told += [replace(r, measurement=in_context(r.measurement, facts)) for r in runs]
        self.db.record(told, kernel, self.here)
        tally.measured += 1
        tally.tiles += len(tiles)
        tally.runs += len(told)
        tally.taus.append(tau)

    def _round(self, kernel: Computation, tiles: Sequence[Config]) -> list[Run]:
        measured = self.runner.run(kernel, _OP, tiles, options=self.request.options)
        return [Run(kernel.id, _OP, self.here.id, c, m, self._campaign()) for c, m in measured]


def _done(runs: Sequence[Run], rounds: int) -> frozenset[Config]:
    """Tiles that ran in so many rounds, and those that failed, which are not tried again."""
    seen: dict[Config, set[object]] = {}
    for run in runs:
        seen.setdefault(run.config, set()).add(run.measurement.context.get("round"))
    failed = {run.config for run in runs if not run.measurement.ok}
    return frozenset(failed | {tile for tile, ran in seen.items() if len(ran) >= rounds})


def _right(runs: Sequence[Run]) -> list[Config]:
    """What failed once is not tried again."""
    return [run.config for run in runs if run.measurement.ok]


def _shuffled(tiles: list[Config], rng: np.random.Generator) -> list[Config]:
    return [tiles[int(at)] for at in rng.permutation(len(tiles))]


def _tau(first: Sequence[Run], second: Sequence[Run]) -> float:
    """Kendall's tau-b of the tiles that ran in both; nan of too few."""
    one, other = ({r.config: r.seconds for r in runs} for runs in (first, second))
    both = [c for c in one if math.isfinite(one[c]) and math.isfinite(other.get(c, math.inf))]
    if len(both) < _FEWEST:
        return math.nan
    times = (np.array([told[c] for c in both]) for told in (one, other))
    return compare(*times).kendall
