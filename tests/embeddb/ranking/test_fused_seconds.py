"""What a fused kernel takes: measured, and by operation as a model says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_verb
from played_xla import CALL_S, EACH_S, HERE, chain, plain_s, played
from tensors import dot_add
from tiled_kernels import kernels

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run
from embeddb.database import open_database
from embeddb.ranking.kernel_prediction import fused_seconds_of
from embeddb.tensors.analysis import FREE
from embeddb.tensors.tensor_text import tensor_text
from indexer.tensor_runs import FusionJob, FusionRequest

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of eight families that were measured, and a model of them."""
    db = tmp_path_factory.mktemp("fused") / "db"
    with open_database(db, create=True) as opened:
        FusionJob(played(opened.index), FusionRequest()).kernels(list(kernels(4)))
    told = ["train", "kernels", str(db), "--task", "fused", "--predictor", "trees"]
    assert run_verb(told) == 0
    return db


def test_seconds_are_measured_and_told_by_operation(place: Path) -> None:
    made = next(iter(kernels(4)))
    with open_database(place, readonly=True) as db:
        (one,) = fused_seconds_of(db.index, made)
        (new,) = fused_seconds_of(db.index, dot_add())
        assert fused_seconds_of(db.index, chain()) == []
    assert one.platform == HERE.id and one.measured == pytest.approx(plain_s(made))
    assert one.predicted == pytest.approx(plain_s(made), rel=0.5) and one.apart == 1.0
    assert one.call is not None and one.predicted == pytest.approx(
        one.call + sum(one.operations.values()), rel=1e-4
    )
    doing = [at for at, op in enumerate(made.operations) if op.opcode not in FREE]
    assert list(one.operations) == doing and min(one.operations.values()) > 0
    assert new.measured is None and new.model == one.model
    assert CALL_S / 10 < (new.predicted or 0) < 10 * (CALL_S + 9 * EACH_S)


def test_they_are_shown_beside_the_operations(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = next(iter(kernels(4)))
    capsys.readouterr()
    assert run_verb(["kernel", "show", str(place), made.id]) == 0
    said = capsys.readouterr().out
    assert f"{HERE.id}: " in said and " measured, " in said and " by model " in said
    assert "predicted" in said and "µs" in said
    assert run_verb(["kernel", "show", str(place), made.id, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["seconds"]
    assert told["measured"] == pytest.approx(plain_s(made)) and len(told["operations"]) >= 1


def test_a_question_about_a_fused_kernel_tells_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = next(iter(kernels(4)))
    words = ["query", str(place), made.id, "--platform", HERE.id, "--op", "fused"]
    capsys.readouterr()
    run_verb(words)
    said = capsys.readouterr()
    assert f"{HERE.id}: " in said.out and " by model " in said.out
    assert "does not rank" not in said.out + said.err
    run_verb([*words, "--json"])
    (told,) = json.loads(capsys.readouterr().out)["seconds"]
    assert told["measured"] == pytest.approx(plain_s(made))


def test_a_kernel_in_a_file_is_predicted(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.json"
    file.write_bytes(tensor_text(dot_add(24, 48, 16)))
    run_verb(["query", str(place), str(file), "--platform", HERE.id, "--op", "fused"])
    assert f"{HERE.id}: not measured, " in capsys.readouterr().out


def test_without_a_model_what_was_measured_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = dot_add()
    with open_database(tmp_path / "db", create=True) as db:
        FusionJob(played(db.index), FusionRequest()).kernels([kernel])
        (one,) = fused_seconds_of(db.index, kernel)
        failed = dot_add(m=8)
        run = Run(failed.id, Op("fused"), HERE.id, Config({}), Measurement("build", error="no"))
        db.index.record([run], failed, HERE)
        assert fused_seconds_of(db.index, failed) == []
    assert (one.model, one.predicted, one.operations) == (None, None, {})
    assert run_verb(["kernel", "show", str(tmp_path / "db"), kernel.id]) == 0
    said = capsys.readouterr().out
    assert f"{HERE.id}: 113 µs measured\n" in said and "predicted" not in said
