"""`Database.tune`: what is tuned follows from the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import measured_kernels as law
import pytest
from played_xla import HERE, Played, chain, crowded_s
from scipy import sparse

from embeddb.core.config import Config, Op
from embeddb.core.errors import MatrixError, NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.database import Database
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import load_platform
from embeddb.tensors.tensor_graph import TensorGraph
from tuners import tune_fusion as fusion
from tuners import tune_matrix as matrices
from tuners import tune_tiles as tiles
from tuners.search import Tuned
from tuners.tune_fusion import TuneRequest
from tuners.tune_matrix import MatrixTuneRequest
from tuners.tune_tiles import TileTuneRequest


class Tiles:
    """In the place of gcc."""

    ran = 0

    def run(
        self, kernel: TensorGraph, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            Tiles.ran += 1
            took = law.seconds(kernel, config)
            yield config, Measurement(times_s=(took,), when=float(Tiles.ran))


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.in_memory() as opened:
        yield opened


def test_tiles_of_a_kernel_by_name_or_given(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "this_machine", lambda *_, **__: (Tiles(), law.here()))
    kernel, notes = law.asked(), list[str]()
    made = db.tune([kernel], TileTuneRequest(count=5), note=notes.append)
    assert made.platform == law.here().id and made.times == {kernel.id: 1} and not made.skipped
    (one,) = made.kernels
    assert len(one.tried) == 6 and one.gain is not None and one.gain >= 1
    again = db.tune(kernel.name, TileTuneRequest(count=5), note=notes.append)
    assert again.kernels[0].fresh == 0 and again.kernels[0].best == one.best
    by_id = db.tune(kernel.id, TileTuneRequest(count=5), note=notes.append)
    assert by_id.kernels[0].best == one.best
    asked = TileTuneRequest(by="analytical")
    with pytest.raises(UsageError, match="analytical"):
        db.tune([kernel], asked, platform=load_platform("tpu-graphs"))


def test_a_name_of_several_programs_is_refused(db: Database) -> None:
    for steps in (3, 4):
        program = replace(chain(steps), name="twice")
        db.store.put_structure(program, WorkloadInfo.of(program))
    with pytest.raises(UsageError, match="2 patterns are called twice"):
        db.tune("twice", TuneRequest())
    with pytest.raises(UsageError, match="is a program, not a matrix"):
        db.query("twice", op="spmm:4", platform="cpu")


def test_the_default_is_best_where_the_rounds_say_so() -> None:
    default, first = Config({"t1": 0}), Config({"t1": 8})
    done = Tuned(subject=law.asked(), default=default, by="sizes", ranked=2)
    done.tried, done.finalists = {default: 2.0, first: 1.0}, (first,)
    assert done.best == first and done.gain == 2.0
    done.rounds = {default: [1.0, 1.1], first: [1.2, 1.3]}
    assert done.best == default and done.gain == 1.0


def test_without_a_model_it_says_who_is_asked_instead(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "this_machine", lambda *_, **__: (Tiles(), law.here()))
    notes: list[str] = []
    made = db.tune([law.asked()], TileTuneRequest(by="model", count=3), note=notes.append)
    assert made.kernels[0].by == "sizes" and "neighbours choose" in notes[0]


def test_a_model_that_is_refused_is_told_of(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "this_machine", lambda *_, **__: (Tiles(), law.here()))
    monkeypatch.setattr(Lookup, "graph_model", lambda *_: (None, "of another version"))
    notes: list[str] = []
    made = db.tune([law.asked()], TileTuneRequest(count=3), note=notes.append)
    assert notes == ["of another version; the analytical model chooses"]
    assert made.kernels[0].by == "analytical"


def test_a_program_without_a_model_is_tuned_by_hardware(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusion, "this_machine", lambda *_, **__: (Played(crowded_s), HERE))
    notes: list[str] = []
    asked = TuneRequest(model_s=1.0, hardware_s=0.05, rounds=1)
    made = db.tune(chain(), asked, note=notes.append)
    assert made.platform == HERE.id and made.tried and made.gain is not None
    assert "hardware alone" in notes[0]


def test_what_is_not_there_is_told(db: Database) -> None:
    for request in (TuneRequest(hardware_s=1), TileTuneRequest()):
        with pytest.raises(MatrixError, match="vgg: no such file, and no pattern of that name"):
            db.tune("vgg", request)


def test_a_matrix_by_name_or_given(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loops:
        """In the place of gcc: fast with many columns."""

        ran = 0.0

        def run(
            self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: Any
        ) -> Iterator[tuple[Config, Measurement]]:
            for config in configs:
                self.ran += 1
                took = 1e-3 / float(config.get("ktile") or 1)
                yield config, Measurement(times_s=(took,), when=self.ran)

    here = load_platform("cpu").at("somewhere", {"threads": "2"})
    monkeypatch.setattr(matrices, "this_machine", lambda *_: (Loops(), here))
    asked = MatrixTuneRequest(model_s=0.0, hardware_s=0.05, rounds=1)
    matrix = sparse.random_array((60, 40), density=0.1, format="csr", rng=0)
    made = db.tune(matrix, asked, op="spmm:32")
    assert made.platform == here.id and made.tuned.gain is not None and made.tuned.gain >= 1
    again = db.tune(made.tuned.subject.id, asked, op="spmm:32")
    assert set(made.tuned.tried) <= set(again.tuned.tried)
    with pytest.raises(UsageError, match="cpu tunes no nest"):
        db.tune(matrix, asked, op="nest")
    with pytest.raises(NothingFound, match="only known by name"):
        db.store.put_patterns([WorkloadInfo(id="00" * 16, m=3, n=3, nnz=3, name="stub")])
        db.tune("stub", asked, op="spmm:32")
