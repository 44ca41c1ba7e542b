"""The model of tensor kernels as a database has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run_verb
from tiled_database import FUSED, TILE, tiled_database
from tiled_kernels import kernels, tiles

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.cost_model.graph_model import GraphModel
from embeddb.database import Database
from embeddb.platforms.platform import load_platform

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ("--hidden", "8", "--epochs", "2", "--threads", "1", "--json")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiled_database(tmp_path_factory.mktemp("board") / "tiled.db")


def train(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run_verb(["train", "kernels", *words, *SHORT]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_database_trains_its_own_and_finds_it(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = train(capsys, str(board), "--task", "tile", "--tests", str(board))
    assert Path(told["file"]).name == "kernels-tiles-tile.safetensors"
    assert told["patterns"] == 16 and told["kind"] == "kernels"
    assert set(told["figures"]) == {"valid", "tests"}
    with Database.open(board) as db:
        (entry,) = db.store.models.entries()
        assert (entry.version, entry.file) == (told["version"], Path(told["file"]).name)
        assert db.problems() == []
        (partition,) = [p for p in db.store.partitions() if p.op == TILE]
        where = db.store.platform(partition.platform)
        model, why = db.index.graph_model(where, TILE)
        assert model is not None and model.version == told["version"], why
        made = next(kernels(2))
        said = model.predict(made, tiles(made))
        gain, spread = model.gains(made, tiles(made))
        assert list(np.argsort(said)) == list(np.argsort(-gain))
        assert abs(gain.mean()) < 1e-9 and (spread == spread[0]).all()
        with pytest.raises(ModelError, match="not predict seconds"):
            model.seconds(made)
        assert db.index.graph_model(where, FUSED) == (None, "")
        assert "platform" in model.mismatch(load_platform("nest-cpu"), TILE)
        assert db.index.model(where, TILE) is model
    assert run_verb(["db", "stat", str(board)]) == 0
    assert f"cost model {told['version']} on operations" in capsys.readouterr().out


def test_seconds_of_fused_kernels(
    board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fused.safetensors"
    words = (str(board), "--task", "fused", "--hidden", "8", "-o", str(out))
    told = train(capsys, *words, "--predictor", "network")
    assert told["settings"]["loss"] == "squared" and "mape" in told["figures"]["valid"]
    assert GraphModel.load(out).seconds(next(kernels(2))) > 0
    own = board / "models" / "kernels-tiles-fused.safetensors"
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(out.read_bytes())
    assert run_verb(["db", "stat", str(board)]) == 0
    off = f"predicts seconds: MAPE {told['figures']['valid']['mape']:.1f} % in cross-validation"
    assert off in capsys.readouterr().out
    own.unlink()
    # A file that is there is not written over, and a training that ended is not gone on with.
    assert run_verb(["train", "kernels", *words, *SHORT]) != 0
    assert "already exists" in capsys.readouterr().err
    asked = ["train", "kernels", str(board), "--task", "tile", "-o", str(tmp_path / "x.st")]
    assert run_verb([*asked, *SHORT, "--platform", "x"]) != 0
    assert len(capsys.readouterr().err.strip().splitlines()) <= 3


def test_damaged_models_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from embeddb.tensors.encoding.predictor import NetworkSpec
    from indexer.training.tensors.network import TrainedNetwork

    spec = NetworkSpec(hidden=8)
    file = tmp_path / "kernels.safetensors"
    card = {"kind": "kernels", "network": spec.card}
    fit = {"slope": 1.0, "floor": 0.1}
    named = {"name": "tiles", "id": "tiles", "space": "x"}
    for wrong in (
        {},
        {"platform": named},
        {"platform": named, "calibration": {**fit, "slope": -1.0}},
        {"platform": {"name": 3}, "calibration": fit},
        {"platform": named, "calibration": fit, "network": {**spec.card, "layers": 9}},
    ):
        model_file.save(file, TrainedNetwork(spec).state_dict(), {**card, **wrong})
        with pytest.raises(ModelError, match=file.name.replace(".", "[.]")):
            GraphModel.load(file)
    version = model_file.save(
        file, TrainedNetwork(spec).state_dict(), {**card, "platform": named, "calibration": fit}
    )
    # Version and weights are of one content, whenever the file is replaced.
    monkeypatch.setattr(model_file, "version_of", lambda path: "of another")
    assert GraphModel.load(file).version == version
