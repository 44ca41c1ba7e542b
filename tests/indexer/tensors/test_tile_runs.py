"""Many kernels, many tiles: which tiles, how many rounds, what is kept, what is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import dot_add, row_sum
from tile_kernels import Kernel

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement
from embeddb.database import Database, open_database
from embeddb.index.recorder import Machine
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.platform import default_of, load_platform, space_of
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.measure import MeasureJob
from indexer.runners.base import RunOptions
from indexer.tensor_runs import TILE_AGREEMENT, TileDesign

OP = Op("tile")
PLATFORM = load_platform("tile-cpu")
HERE = PLATFORM.at("00000001", {"cpu": "none"})


def drawn(kernel: TensorGraph, count: int, seed: int = 0) -> list[Config]:
    space, default = space_of(PLATFORM, OP, kernel), default_of(PLATFORM, OP, kernel)
    return designed_tiles(space, default, count, rng=np.random.default_rng(seed))


def test_all_tiles_of_a_small_space() -> None:
    found = drawn(row_sum(12, 9), 80)
    sizes = {(c["t1"], c["tr"]) for c in found}
    assert sizes == {(t, r) for t in (0, 1, 2, 4, 8) for r in (0, 8)} and len(found) == 10


def test_some_tiles_of_every_size() -> None:
    kernel = dot_add(512, 512, 512)
    found = drawn(kernel, 80)
    assert len(set(found)) == 80 and found[0] == default_of(PLATFORM, OP, kernel)
    sizes = [math.prod(int(str(v)) or 512 for v in c.values()).bit_length() for c in found]
    counts = np.bincount(sizes)
    assert np.count_nonzero(counts) >= 15 and counts.max() <= 6
    space = space_of(PLATFORM, OP, kernel)
    assert all(space.reason(config) is None for config in found)
    assert drawn(kernel, 80) == found != drawn(kernel, 80, seed=1)


def test_a_design_of_one_is_the_default() -> None:
    assert drawn(dot_add(), 1) == [default_of(PLATFORM, OP, dot_add())]


class Played:
    """A runner whose times are those of the tile, times what a round's noise is."""

    def __init__(self, *noise: float) -> None:
        self.noise = list(noise)
        self.asked: list[list[Config]] = []

    def run(
        self, kernel: TensorGraph, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        rng = np.random.default_rng(len(self.asked))
        noise = self.noise[min(len(self.asked), len(self.noise) - 1)]
        self.asked.append(list(configs))
        for config in configs:
            if config["t1"] == 2:
                yield config, Measurement("timeout", error="late")
            else:
                seconds = 1 + sum(map(int, map(str, config.values()))) + noise * rng.random()
                yield config, Measurement(times_s=(seconds,))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(str(tmp_path / "k.db"), create=True) as made:
        yield made


def job(db: Any, runner: Played, tiles: int = 20, **asked: int) -> MeasureJob:
    design = TileDesign(tiles=tiles, **asked)
    return MeasureJob(
        Machine(db.index, runner, HERE, RunOptions()), design, design.rounds, TILE_AGREEMENT
    )


def test_rounds_that_agree_are_two(db: Database) -> None:
    runner = Played(0.1)
    tally = job(db, runner).run([dot_add()])
    assert (tally.measured, tally.configs, tally.again) == (1, 20, 0) and tally.taus[0] > 0.9
    assert len(runner.asked) == 2 and runner.asked[0] != runner.asked[1]
    assert set(runner.asked[1]) == {c for c in runner.asked[0] if c["t1"] != 2}
    runs = list(db.store.runs(HERE.id, OP, dot_add().id))
    assert len(runs) == tally.runs == len(runner.asked[0]) + len(runner.asked[1])
    facts = runs[0].measurement.context
    assert facts["agreement"] == round(tally.taus[0], 4)
    assert {run.measurement.context["round"] for run in runs} == {1.0, 2.0}


def test_rounds_that_do_not_agree_have_a_third(db: Database) -> None:
    runner = Played(1e6, 1e6)
    tally = job(db, runner).run([dot_add()])
    assert tally.again == 1 and len(runner.asked) == 3 and tally.taus[0] < 0.8


def test_what_was_done_is_left_out_and_what_has_no_tiles_is_named(db: Database) -> None:
    k = Kernel()
    gather = k.done(k.op("gather", (4, 5), k.given(9, 5), k.given(4, dtype="s32")), name="picked")
    kernels = [dot_add(), gather, row_sum()]
    first = job(db, Played(0.0)).run(kernels[:2])
    assert first.skipped == {"picked": "gather: gather is not supported"}
    runner = Played(0.0)
    tally = job(db, runner).run(kernels)
    assert (tally.earlier, tally.measured) == (1, 1) and len(runner.asked) == 2
    fewer = job(db, Played(0.0), tiles=5).run(kernels)
    assert (fewer.earlier, fewer.measured) == (2, 0)


def test_tiles_that_ran_in_as_many_rounds_are_left_out(db: Database) -> None:
    kernel = dot_add()
    job(db, Played(0.0)).run([kernel])
    before = {run.config for run in db.store.runs(HERE.id, OP, kernel.id)}
    runner = Played(0.0)
    more = job(db, runner, tiles=30).run([kernel])
    (first, *_), default = runner.asked, default_of(PLATFORM, OP, kernel)
    assert more.measured == 1 and more.configs == len(first) == 11
    assert first[0] == default and not before & set(first[1:])
    # A third round of the twenty: what failed in the first is not tried again.
    thrice = Played(0.0)
    job(db, thrice, rounds=3).run([kernel])
    assert set(thrice.asked[0]) == {c for c in before if c["t1"] != 2}
