"""`train costmodel --predictor auto`: which predictor becomes the model, and what is said of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_verb

from embeddb.database import Database

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from builders import fill, patterns, tiny

from embeddb.core.config import Op
from embeddb.core.sizes import Sizes
from embeddb.cost_model.model import CostModel
from embeddb.learning import boosting
from embeddb.learning.samples import SampleRow, Samples
from tuners.evaluation import choose_predictor as judging

ASKED = ("--platform", "tiny", "--op", "spmm:32", "--json")
QUICK = ("--members", "1", "--epochs", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def fewer_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boosting.ONE_MACHINE, "num_iterations", 20)
    monkeypatch.setattr(judging, "_FEW_RUNS", 100)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    for count in (6, 10):
        with Database.create(folder / f"{count}.db") as db:
            fill(db, tiny(), patterns(count))
    return folder


def trained(
    filled: Path, tmp_path: Path, capsys: Any, groups: int, *words: str
) -> tuple[dict[str, Any], str]:
    """The document and stderr of a training on so many groups."""
    shutil.copytree(filled / f"{groups}.db", tmp_path / "runs.db", dirs_exist_ok=True)
    return retrained(tmp_path, capsys, *words)


def retrained(tmp_path: Path, capsys: Any, *words: str) -> tuple[dict[str, Any], str]:
    """The document and stderr of a training on `runs.db`."""
    db = str(tmp_path / "runs.db")
    assert run_verb(["train", "costmodel", db, *ASKED, *QUICK, *words]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_from_few_groups_a_process_learns(filled: Path, tmp_path: Path, capsys: Any) -> None:
    told, err = trained(filled, tmp_path, capsys, 6)
    assert told["settings"]["predictor"] == "gp"
    assert told["curves"] == []
    assert "rank" in told["held_out"]["spmm:32"]
    assert "others" not in told
    assert "predictor gp: from" in err
    assert CostModel.load(told["file"]).version == told["version"]


def test_an_operation_that_one_matrix_ran_is_learned_from_and_not_judged(
    filled: Path, tmp_path: Path, capsys: Any
) -> None:
    db = str(shutil.copytree(filled / "6.db", tmp_path / "runs.db"))
    with Database.open(db) as opened:
        fill(opened, tiny(), patterns(1), op=Op("spmm", 64))
    assert run_verb(["train", "costmodel", db, *ASKED, "--op", "spmm:64", *QUICK]) == 0
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)["held_out"]) == ["spmm:32"]
    assert "spmm:64 on tiny: nothing to judge the model by" in shown.err


#: Runs the command line where torch is not installed.
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] == "torch"
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path = [Finder() if one is PathFinder else one for one in sys.meta_path]
from embeddb.ui.cli.main import run
run(sys.argv[1:])
"""


def test_a_process_learns_without_torch(filled: Path, tmp_path: Path) -> None:
    db = str(shutil.copytree(filled / "6.db", tmp_path / "runs.db"))
    ended = [
        subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, "train", "costmodel", db, *ASKED, *words],
            capture_output=True,
            text=True,
        )
        for words in ((), ("--predictor", "mlp", "--threads", "1"))
    ]
    assert ended[0].returncode == 0, ended[0].stderr
    assert json.loads(ended[0].stdout)["settings"]["predictor"] == "gp"
    assert ended[1].returncode == 1
    assert "embeddb: training needs torch (install the extra `learn`" in ended[1].stderr


@pytest.mark.parametrize("best", ["gp", "mlp", "trees"])
def test_from_many_groups_the_better_one_is_kept(
    best: str, filled: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(self: judging.Judge, *_: Any) -> Any:
        share = 0.9 if self.settings.predictor == best else 0.8
        return {"spmm:32": {"rank": {"of_optimum@1": share, "of_optimum@5": 0.95}}}

    monkeypatch.setattr(judging.Judge, "__call__", judged)
    told, err = trained(filled, tmp_path, capsys, 10)
    others = {"gp", "mlp", "trees"} - {best}
    assert told["settings"]["predictor"] == best
    assert told["held_out"]["spmm:32"]["rank"]["of_optimum@1"] == 0.9
    shares = {"spmm:32": {"of_optimum@1": 0.8, "of_optimum@5": 0.95}}
    assert told["others"] == dict.fromkeys(others, shares)
    assert f"predictor {best}" in err
    assert f"{best} 0.900" in err
    assert all(f"{other} 0.800" in err for other in others)


def test_groups_that_the_source_knows_do_not_judge(
    filled: Path, tmp_path: Path, capsys: Any
) -> None:
    source, _ = trained(filled, tmp_path, capsys, 6, "--predictor", "mlp")
    words = ("--predictor", "mlp", "--from", source["file"])
    card, err = trained(filled, tmp_path / "few", capsys, 10, *words)
    assert "learned run times of 6 of the 10 groups that judge this one" in err
    assert card["held_out"]["spmm:32"]["rank"]["groups"] == 10
    with Database.open(tmp_path / "few" / "runs.db") as db:
        fill(db, tiny(), patterns(14))
    card, err = retrained(tmp_path / "few", capsys, *words)
    assert "judged by the 8 groups that the model to start from never saw" in err
    assert card["held_out"]["spmm:32"]["rank"]["groups"] == 8


def test_all_are_judged_on_what_was_held_out(filled: Path, tmp_path: Path, capsys: Any) -> None:
    told, _ = trained(filled, tmp_path, capsys, 10)
    own = told["held_out"]["spmm:32"]["rank"]
    for rest in told["others"].values():
        assert own["of_optimum@1"] >= rest["spmm:32"]["of_optimum@1"] > 0


def test_without_a_judge_the_network_is_taken(filled: Path, tmp_path: Path, capsys: Any) -> None:
    told, err = trained(filled, tmp_path, capsys, 10, "--no-judge")
    assert told["settings"]["predictor"] == "mlp"
    assert told["held_out"] == {}
    assert "--no-judge" in err


def test_trees_and_their_number_when_asked_for(filled: Path, tmp_path: Path, capsys: Any) -> None:
    words = ("--predictor", "trees", "--no-judge", "--members", "0")
    told, _ = trained(filled, tmp_path, capsys, 10, *words)
    assert (told["settings"]["predictor"], told["settings"]["members"]) == ("trees", 2)
    source = tmp_path / "source.safetensors"
    shutil.copy(told["file"], source)
    fine, err = trained(filled, tmp_path, capsys, 10, "--no-judge", "--from", str(source))
    assert fine["settings"]["predictor"] == "trees"
    assert fine["source"]["platform"]["name"] == "tiny"
    assert "the model to start from" in err
    assert (
        run_verb(
            [
                "train",
                "costmodel",
                str(tmp_path / "runs.db"),
                *ASKED,
                *QUICK,
                "--predictor",
                "mlp",
                "--from",
                str(source),
            ]
        )
        == 2
    )
    assert "cannot go on from trees" in capsys.readouterr().err


def test_fewer_runs_than_asked_for_are_noted(filled: Path, tmp_path: Path, capsys: Any) -> None:
    document, err = trained(filled, tmp_path, capsys, 6, "--samples", "500")
    assert document["samples"] == 96 and "96 runs" in err and "500" in err
    assert document["held_out"]["spmm:32"]["rank"]["groups"] == 6


def test_matrices_with_few_runs_make_room_for_others() -> None:
    """One matrix ran 100 configurations and 40 ran 16: 500 runs are of more than five matrices."""
    counts = [100, *[16] * 40]
    sizes = Sizes(1000, 1000, 5000)
    rows = tuple(SampleRow(f"{i:02}", Op("spmm", 32), f"g{i}", sizes) for i in range(len(counts)))
    known = Samples(
        tiny(),
        rows,
        np.zeros((len(counts), 2), dtype=np.float32),
        (),
        np.cumsum([0, *counts]).astype(np.int64),
        np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        np.zeros(sum(counts)),
    )
    taken = judging.TrainingRequest(samples=500).limited(known)
    assert len(taken.rows) > 20 and 400 <= len(taken.gain) <= 600


def test_the_better_one_by_hand() -> None:
    def held(*shares: float) -> judging.HeldOut:
        return {f"spmm:{2 ** (5 + i)}": {"rank": {"of_optimum@1": s}} for i, s in enumerate(shares)}

    assert judging.better({"mlp": held(0.8, 0.9), "trees": held(0.9, 0.9)})[0] == "trees"
    assert judging.better({"mlp": held(0.9), "trees": held(0.9)})[0] == "mlp"
    assert judging.better({"mlp": {}, "trees": {}})[0] == "mlp"
