"""`embeddb tune`, as people type it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measured_kernels as law
import pytest
import scipy.sparse
from command_line import run_verb
from hlo_texts import FOLDER
from played_xla import HERE, Played, PlayedModel, chain, crowded_s
from tensors import dot_add, row_sum
from tile_kernels import Kernel

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.database import Database
from embeddb.index.lookup import Lookup
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import Platform, load_platform
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape
from embeddb.tensors.tensor_text import tensor_text
from indexer import tensor_runs as cut_runs
from indexer.runners.xla import VARIABLE
from tuners import tune_fusion as fusion
from tuners import tune_matrix as matrices
from tuners import tune_tiles as tiles

FAST = ("--op", "fusion", "--hardware-seconds", "1", "--rounds", "2")


@pytest.fixture
def db(tmp_path: Path) -> str:
    """Two programs and a kernel."""
    place = tmp_path / "t.db"
    with Database.create(place) as opened:
        for made in (chain(12), dot_add(kind="program"), row_sum()):
            opened.store.put_structure(made, WorkloadInfo.whole(made))
    return str(place)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """In the place of XLA."""
    made = Played(crowded_s)

    def here(platform: Platform, threads: int) -> tuple[Played, Platform]:
        assert (platform.name, threads) == ("xla-cpu", 1)
        return made, HERE

    monkeypatch.setattr(fusion, "this_machine", here)
    monkeypatch.setattr(cut_runs, "time", SimpleNamespace(perf_counter=made.spent_s))
    return made


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PlayedModel:
    made = PlayedModel(crowded_s)
    monkeypatch.setattr(Lookup, "graph_model", lambda *_: (made, ""))
    return made


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run_verb([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code, said = run_verb(words), capsys.readouterr().err
    assert said.count("\n") <= 2
    return code, said


def test_by_a_model(
    db: str, played: Played, model: PlayedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tune", db, "chain12", *FAST, "--model-seconds", "0.3")
    told = printed(capsys, *words)
    assert told["model"] == model.version and told["tried"] > 0 and told["gain"] > 1
    assert told["model_seconds"]["spent"] >= told["model_seconds"]["asked"] == 0.3
    assert [row["what"] for row in told["rows"]] == [
        *("whole (XLA's own)", "compiler's cut", "best predicted", "best measured")
    ]
    best = told["rows"][-1]
    assert best["seconds"] == pytest.approx(best["predicted_s"]) and len(best["rounds_s"]) == 2
    assert best["gain"] == told["gain"]
    with Database.open(db, readonly=True) as opened:
        assert opened.problems() == []
        runs = list(opened.store.runs(HERE.id, Op("fusion"), chain(12).id))
    assert best["cut"] in {str(run.config["cut"]) for run in runs}
    again = printed(capsys, *words)
    assert again["fresh"] == again["kernels"] == 0 and again["gain"] == told["gain"]
    assert run_verb(words) == 0
    said = capsys.readouterr().out
    assert "best predicted" in said and "in 2 alternating rounds" in said


def test_without_a_model(db: str, played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["tune", db, "chain12", *FAST, "--start", "random", "--seed", "3"]) == 0
    said = capsys.readouterr()
    assert "hardware alone" in said.err and "best measured" in said.out
    assert "best predicted" not in said.out
    told = printed(capsys, "tune", db, "chain12", *FAST, "--model-seconds", "0")
    assert told["model"] is None and told["predicted"] == {"cuts": 0, "kernels": 0}


def test_nothing_of_hardware(
    db: str, played: Played, model: PlayedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model-seconds", "0.2", "--hardware-seconds", "0")
    told = printed(capsys, "tune", db, "chain12", "--op", "fusion", *words)
    assert played.timed == [] and told["gain"] is None and told["rows"][-1]["seconds"] is None
    assert run_verb(["tune", db, "chain12", "--op", "fusion", *words]) == 0
    said = capsys.readouterr().out
    assert "nothing ran" in said and "this is a prediction" in said


def test_what_fails_is_named(
    db: str, played: Played, model: PlayedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    played.breaks = frozenset({"tanh"})
    assert run_verb(["tune", db, "chain12", *FAST, "--model-seconds", "0.2"]) == 0
    said = capsys.readouterr()
    assert "failed: build: XLA has none" in said.err and "failure" in said.out


def test_ctrl_c_says_that_it_goes_on(
    db: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.left, played.stop = 6, KeyboardInterrupt
    words = ("tune", db, "chain12", "--op", "fusion", "--hardware-seconds", "1")
    code = run_verb(words)
    assert code == 130 and "the same command continues" in capsys.readouterr().err
    with Database.open(db, readonly=True) as opened:
        kept = sum(1 for one in played.timed for _ in opened.store.runs(HERE.id, Op("fused"), one))
    assert kept == 6


def test_bad_input(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    fusion = ("--op", "fusion")
    code, said = refused(capsys, "tune", db, "chain13", *fusion)
    assert code == 1 and "no such file" in said and "chain12" in said
    code, said = refused(capsys, "tune", db, "row_sum", *fusion)
    assert code == 2 and "row_sum is a kernel, and --op fusion tunes a program" in said
    for option in ("--model-seconds", "--hardware-seconds"):
        code, said = refused(capsys, "tune", db, "chain12", *fusion, option, "-1")
        assert code == 2 and "range" in said
        code, said = refused(capsys, "tune", db, "chain12", *fusion, option, "nan")
        assert code == 2 and "not a number" in said
    both = ("--model-seconds", "0", "--hardware-seconds", "0")
    code, said = refused(capsys, "tune", db, "chain12", *fusion, *both)
    assert code == 2 and "both budgets are 0" in said
    code, said = refused(capsys, "tune", db, "chain12", *fusion, "--platform", "tile-cpu")
    assert code == 2 and "tile-cpu tunes no fusion" in said
    code, said = refused(capsys, "tune", db, "chain12", "--op", "fused")
    assert code == 2 and "fusion" in said
    code, said = refused(capsys, "tune", db, str(FOLDER / "mlp.before.txt") + ".gone", *fusion)
    assert code == 1


def test_no_jax_is_one_line_that_says_how(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    code, said = refused(capsys, "tune", db, "chain12", "--op", "fusion")
    assert code == 1 and f"{VARIABLE} names /nowhere/python" in said


def test_a_program_without_edges(
    tmp_path: Path, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    place, one = tmp_path / "one.db", chain(1)
    with Database.create(place) as opened:
        opened.store.put_structure(one, WorkloadInfo.whole(one))
    code, said = refused(capsys, "tune", str(place), "chain1", "--op", "fusion")
    assert code == 1 and "nothing to cut" in said


def test_tiles_by_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Tiles:
        """In the place of gcc."""

        ran = 0.0

        def run(self, kernel: Any, op: Op, configs: list[Config], *, options: Any) -> Any:
            for config in configs:
                self.ran += 1
                yield config, Measurement(times_s=(law.seconds(kernel, config),), when=self.ran)

    monkeypatch.setattr(tiles, "this_machine", lambda *_, **__: (Tiles(), law.here()))
    place = law.make(tmp_path / "k.db")
    file = tmp_path / "asked.json"
    kernel = law.asked()
    file.write_bytes(tensor_text(kernel))
    near = ("--by", "neighbours")
    told = printed(capsys, "tune", str(place), str(file), "--op", "tile", "-k", "4", *near)
    (row,) = told["kernels"]
    assert row["by"] == "neighbours" and row["tried"] == 5 and row["gain"] > 1.2
    assert told["fresh"] == 5 + 2 * 3
    assert (
        printed(capsys, "tune", str(place), str(file), "--op", "tile", "-k", "4", *near)["fresh"]
        == 0
    )


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A database, a matrix file, and in the place of gcc what is fast with many columns."""

    class Loops:
        ran = 0.0

        def run(self, pattern: Any, op: Op, configs: list[Config], *, options: Any) -> Any:
            for config in configs:
                self.ran += 1
                time.sleep(0.005)
                took = 1e-3 / float(config.get("ktile") or 1)
                yield config, Measurement(times_s=(took,), when=self.ran)

    here = load_platform("cpu").at("somewhere", {"threads": "2"})
    monkeypatch.setattr(matrices, "this_machine", lambda *_: (Loops(), here))
    file, place = tmp_path / "a.npz", tmp_path / "m.db"
    scipy.sparse.save_npz(file, scipy.sparse.random(60, 40, 0.1, format="csr", rng=0))
    Database.create(place).close()
    return str(place), str(file)


def test_a_matrix(matrix: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tune", *matrix, "--op", "spmm:32", "--hardware-seconds", "0.2", "--rounds", "2")
    told = printed(capsys, *words, "--by", "analytical")
    assert (told["by"], told["op"], told["platform"]) == ("analytical", "spmm:32", "cpu@somewhere")
    assert 1 < told["tried"] < told["ranked"] and told["hardware_seconds"]["spent"] >= 0.2
    assert [len(row["rounds_s"]) for row in told["rows"]] == [2] * len(told["rows"])
    with Database.open(matrix[0], readonly=True) as opened:
        assert opened.problems() == []
        kept = list(opened.store.runs("cpu@somewhere", Op("spmm", 32), told["matrix"]["id"]))
    assert len(kept) == told["fresh"]
    again = printed(capsys, *words, "--by", "analytical")
    assert again["fresh"] == 0 and again["gain"] == told["gain"]
    assert run_verb([*words, "--by", "analytical"]) == 0
    assert "ranked by: analytical" in capsys.readouterr().out
    assert run_verb([*words, "--by", "analytical", "--hardware-seconds", "0"]) == 0
    assert "rank" in capsys.readouterr().out


def test_a_matrix_of_which_nothing_is_known(
    matrix: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tune", *matrix, "--op", "spmm:32", "--hardware-seconds", "0.05", "--rounds", "1")
    assert run_verb([*words]) == 0
    assert "ranked by: nothing; measured seconds direct the search" in capsys.readouterr().out
    code, said = refused(capsys, *words, "--by", "neighbours")
    assert code == 3 and "--by analytical needs none" in said
    code, said = refused(capsys, "tune", *matrix, "--op", "spmm:32", "--platform", "tile-cpu")
    assert code == 2 and "tile-cpu tunes no spmm:32" in said
    code, said = refused(capsys, "tune", matrix[0], "nothing", "--op", "spmm:32")
    assert "no such file" in said
    code, said = refused(capsys, "tune", *matrix, "--op", "nest")
    assert code == 2 and "cpu tunes no nest" in said


@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_tiles_of_a_program_where_nothing_is_known(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tune", db, "dot_add_64", "--op", "tile", "-k", "2", "--rounds", "1")
    told = printed(capsys, *words)
    (row,) = told["kernels"]
    assert row["by"] == "analytical" and row["tried"] == 3 and told["gain"] == row["gain"]
    assert run_verb((*words, "--by", "model")) == 0
    said = capsys.readouterr()
    assert "neighbours choose" in said.err and "3 of" in said.out


def test_tiles_of_which_none_runs_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    k = Kernel()
    k.op("subtract", (8, 8), *(k.given(8, 8, dtype="pred") for _ in range(2)), dtype="pred")
    k2 = Kernel()
    two = Operation("reduce", (Shape("f32"), Shape("f32")), (0, 0), {"raw": "to_apply=pick"})
    k2.given(8)
    first = Operation("get-tuple-element", (Shape("f32"),), (1,), {"index": 0})
    pair = computation([*k2.operations, two, first], (2,), name="pair", kind="program")
    db = str(tmp_path / "t.db")
    with Database.create(db) as opened:
        for made in (k.done(name="wrong"), pair):
            opened.store.put_structure(made, WorkloadInfo.whole(made))
    code, said = refused(capsys, "tune", db, "pair", "--op", "tile")
    assert code == 1 and "pair cuts into no kernel (operations with several results" in said
    if cpu_build.compiler() is not None:
        code, said = refused(capsys, "tune", db, "wrong", "--op", "tile", "-k", "2")
        assert code == 1 and "nothing could be measured (wrong: invalid: its reference" in said
