"""A small campaign whose outcome follows from a law, for the tests of campaigns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from builders import OP, patterns

from embeddb.config import Config, Op
from embeddb.db import Database
from embeddb.pattern import Pattern
from embeddb.platform import Platform, parse_platform
from embeddb.records import Measurement
from indexer.campaign import Campaign, Progress
from indexer.campaign_plan import Matrix, Plan, PlanOptions, make_plan
from indexer.campaign_run import CampaignJob, Settle
from indexer.runners.base import RunOptions

AMONG = patterns(2)[:5]
OPTIONS = RunOptions(threads=2)
OPS = (OP, Op("spmm", 64))

#: Sixteen configurations, enough for ranks to mean something.
BOARD = """
name = "board"
version = "1"
title = "Two numbers"

[[space]]
kernels = ["spmm"]

[space.params]
tile = { type = "int", values = [1, 2, 4, 8] }
unroll = { type = "int", values = [1, 2, 4, 8] }

[space.default]
tile = 1
unroll = 1
"""
COUNT = 12
POINTS = 2 * 2 * 5 * COUNT
TASKS = 2 * 2 * 5


def board() -> Platform:
    return parse_platform(BOARD)


class LawRunner:
    """Measures by a law; stops like a kill before the point `stop` would be told.

    `spoilt` are names of patterns whose second round is chance: the n-th time a point is asked for
    is its n-th round. `asked` and `times` may be those of an earlier runner that was stopped.
    """

    name = "law"

    def __init__(
        self,
        platform: Platform | None = None,
        *,
        stop: int = -1,
        spoilt: Sequence[str] = (),
        always: bool = False,
    ) -> None:
        self._platform = platform or board()
        self.left = stop
        self.asked: list[tuple[str, str, str]] = []
        self.rounds: Counter[tuple[str, str, str]] = Counter()
        self._spoilt, self._always = spoilt, always
        self.built: list[tuple[str, int]] = []

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        return self._platform.at("", {"threads": str(threads)})

    def prepare(self, op: Op, configs: Sequence[Config]) -> None:
        self.built.append((str(op), len(configs)))

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            point = (pattern.name, str(op), str(config))
            self.asked.append(point)
            self.rounds[point] += 1
            yield config, self._measured(pattern, op, config, self.rounds[point])

    def _measured(self, pattern: Pattern, op: Op, config: Config, number: int) -> Measurement:
        tile, unroll = int(str(config["tile"])), int(str(config["unroll"]))
        if (tile, unroll) == (4, 4) and pattern.name.endswith("a"):
            return Measurement("timeout")
        seconds = 1e-6 * op.width * (tile + unroll / 10)
        if pattern.name in self._spoilt and (self._always or number == 2):
            rng = np.random.default_rng([number, tile, unroll])
            seconds = 1e-6 * float(np.exp(rng.normal()))
        return Measurement(times_s=(seconds,))


def matrices(among: Sequence[Pattern] = AMONG) -> list[Matrix]:
    return [Matrix(f"{p.name}.mtx", p.name, p.group, *p.shape, p.nnz) for p in among]


def plan(**changes: Any) -> Plan:
    options = {"configs": COUNT, "rounds": 2, "seed": 3} | changes
    return make_plan(board(), OPS, matrices(), PlanOptions(**options))


def read(matrix: Matrix) -> Pattern:
    return next(p for p in AMONG if p.name == matrix.name)


def go(folder: Path, db: Database, runner: LawRunner, settle: Settle | None = None) -> Progress:
    return CampaignJob(Campaign(folder), db, runner, OPTIONS, read).run(settle)
