"""Tiles tried in the order of a model; what ran is kept, and not run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import measured_kernels as law
import numpy as np
import pytest
from numpy.typing import NDArray
from tensors import op

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.tensors.check import computation
from embeddb.tensors.roofline.analysis import TileModel
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.tune_tiles import TileTuneRequest, TileTuning

HERE = law.here()


@dataclass
class Tiles:
    """In the place of gcc; after `left` tiles somebody presses Ctrl-C, and `breaks` fail."""

    left: int = 1 << 30
    breaks: frozenset[Config] = frozenset()
    ran: int = 0

    def run(
        self, kernel: TensorGraph, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if self.ran == self.left:
                raise KeyboardInterrupt
            self.ran += 1
            told = Measurement(times_s=(law.seconds(kernel, config),), when=float(self.ran))
            bad = Measurement("wrong", error="off by 1", when=float(self.ran))
            yield config, bad if config in self.breaks else told


@dataclass
class Model:
    """Right about every tile, but for its sign."""

    sign: float = 1.0
    version: str = "0123456789abcdef"
    analysed: bool = False

    def predict(self, kernel: TensorGraph, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.sign * np.array([law.seconds(kernel, config) for config in configs])


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.in_memory() as opened:
        yield opened


def test_the_first_of_a_model(db: Database) -> None:
    runner, kernel = Tiles(), law.asked()
    (found,), skipped = TileTuning(
        db.index, runner, HERE, TileTuneRequest(by="model"), Model()
    ).run([kernel])
    assert not skipped and found.by == "model" and len(found.tried) == 11
    took = list(found.tried.values())
    assert took[1:] == sorted(took[1:]) and found.best == list(found.tried)[1]
    assert found.gain == pytest.approx(took[0] / took[1]) and found.gain > 1
    assert runner.ran == found.fresh == 11 + 2 * 3
    assert len(list(db.store.runs(HERE.id, law.OP, kernel.id))) == runner.ran
    again = Tiles()
    (same,), _ = TileTuning(db.index, again, HERE, TileTuneRequest(by="model"), Model()).run(
        [kernel]
    )
    assert again.ran == 0 and (same.best, same.gain) == (found.best, found.gain)


def test_a_model_that_is_wrong_leaves_the_default(db: Database) -> None:
    # Its first tiles are the slowest ones; the kernel of 1024 elements is best untiled.
    kernel = law.dot_add(16, 96, 64)
    (found,), _ = TileTuning(
        db.index, Tiles(), HERE, TileTuneRequest(by="model", count=3), Model(-1.0)
    ).run([kernel])
    assert found.best == found.default and found.gain == 1.0
    assert list(found.rounds) == [found.default]


def test_ctrl_c_loses_nothing_that_ran(db: Database) -> None:
    kernel, request = law.asked(), TileTuneRequest(by="model", count=4, rounds=2)
    with pytest.raises(KeyboardInterrupt):
        TileTuning(db.index, Tiles(left=3), HERE, request, Model()).run([kernel])
    assert len(list(db.store.runs(HERE.id, law.OP, kernel.id))) == 3
    rest = Tiles()
    (found,), _ = TileTuning(db.index, rest, HERE, request, Model()).run([kernel])
    assert rest.ran == found.fresh == 5 - 3 + 2 * 2 and len(found.tried) == 5


def test_what_fails_is_never_best(db: Database) -> None:
    kernel = law.asked()
    (right,), _ = TileTuning(db.index, Tiles(), HERE, TileTuneRequest(by="model"), Model()).run(
        [kernel]
    )
    with Database.in_memory() as other:
        broken = Tiles(breaks=frozenset({right.best}))
        (found,), _ = TileTuning(
            other.index, broken, HERE, TileTuneRequest(by="model"), Model()
        ).run([kernel])
    assert found.best != right.best and found.tried[right.best] == float("inf")
    assert found.gain is not None


def test_where_nothing_is_known_some_of_every_size_are_tried(db: Database) -> None:
    request = TileTuneRequest(by="neighbours", count=5)
    (found,), _ = TileTuning(db.index, Tiles(), HERE, request).run([law.asked()])
    assert found.by == "sizes" and len(found.tried) == 6


def test_the_analytical_model_needs_nothing_that_is_known(db: Database) -> None:
    kernel = law.asked()
    (found,), _ = TileTuning(db.index, Tiles(), HERE, TileTuneRequest(count=5)).run([kernel])
    assert found.by == "analytical" and len(found.tried) == 6
    analysed = TileModel(kernel, Machine.of(HERE.environment))
    said = analysed.seconds([tile for tile in found.tried if tile != found.default])
    assert said.tolist() == sorted(said)


@pytest.mark.parametrize(("analysed", "by"), [(True, "model"), (False, "analytical")])
def test_a_model_goes_first_that_knows_what_the_analytical_one_says(
    db: Database, analysed: bool, by: str
) -> None:
    model = Model(analysed=analysed)
    (found,), _ = TileTuning(db.index, Tiles(), HERE, TileTuneRequest(count=3), model).run(
        [law.asked()]
    )
    assert found.by == by


def test_kernels_without_tiles_are_named(db: Database) -> None:
    operations = [
        op("parameter", (64,), number=0),
        op("sort", (64,), 0, raw="dimensions={0}"),
    ]
    odd = computation(operations, [1], name="odd")
    found, skipped = TileTuning(db.index, Tiles(), HERE, TileTuneRequest()).run([odd])
    assert not found and "sort" in skipped["odd"]
