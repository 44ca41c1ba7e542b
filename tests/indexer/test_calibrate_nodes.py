"""Calibration of machines that are elsewhere: chosen at once, worked on by an executor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
from campaign_board import LawRunner
from command_line import run_verb
from inline_executor import InlineExecutor
from test_calibrate import CONFIGS, OPS, TOML, Clock, Runner, matrix, seconds

from embeddb.core.errors import InputError, UsageError
from embeddb.core.records import Run, WorkloadInfo
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform, parse_platform
from indexer.calibrate import CalibrationRequest
from indexer.calibration.choice import AGAIN
from indexer.calibration.on_nodes import NodesCalibration, calibrated
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import NodesJob, effort_on_nodes
from indexer.campaign.plan import from_file
from indexer.embed import embed
from indexer.runners.base import RunOptions

BOARD = parse_platform(TOML)


class NodeRunner(Runner, LawRunner):  # type: ignore[misc]  # one law in place of the other
    """What measures on a node: a machine on which other tiles are fastest."""

    def __init__(self, name: str = "node") -> None:
        Runner.__init__(self, Clock(), name=name, best=4)


@pytest.fixture
def db() -> Database:
    """What another machine measured, on which tiles of 2 are fastest."""
    made = Database.in_memory()
    where = BOARD.at("one", {"threads": "2"})
    made.store.put_platform(where)
    for pattern in (matrix(150 + 10 * i, 4 + 4 * (i % 8), f"e{i}") for i in range(12)):
        made.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        for op in OPS:
            runs = [Run(pattern.id, op, where.id, config, _took(seconds(pattern, config, 1)))
                    for config in CONFIGS]  # fmt: skip
            made.store.append(runs)
    embed(made.index)
    return made


def _took(seconds_: float) -> Any:
    from embeddb.core.records import Measurement

    return Measurement(times_s=(seconds_,))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "matrices"
    place.mkdir()
    for at in range(5):
        pattern = matrix(205 + 10 * at, 3 + 4 * at, f"m{at}")
        sp.save_npz(place / f"m{at}.npz", sp.csr_matrix(pattern.to_scipy()))
    return place


def asked(
    db: Database, folder: Path, seconds_: float = 600.0, platform: Platform = BOARD
) -> NodesCalibration:
    return NodesCalibration(db.index, platform, CalibrationRequest(OPS, seconds_), folder)


def executor(**more: Any) -> InlineExecutor:
    return InlineExecutor(lambda *_: NodeRunner(), read=from_file, options=RunOptions(), **more)


def test_what_is_measured_is_frozen_in_the_folder(
    db: Database, files: Path, tmp_path: Path
) -> None:
    wanted = asked(db, tmp_path / "camp")
    campaign = wanted.planned(files)
    plan = campaign.plan
    assert sorted(m.name for m in plan.matrices) == [f"m{at}" for at in range(5)]
    for held in plan.matrices:
        assert Path(held.path).parent == tmp_path / "camp" / "matrices"
        assert from_file(held).id == read_pattern(files / f"{held.name}.npz").id
    first, again = Campaign(tmp_path / "camp").tasks()[0], campaign.tasks()[-1]
    assert (first.round, again.round) == (0, 1)
    default = campaign.default(first)
    for task in campaign.tasks():
        run = campaign.wanted(task)
        assert default in run, "gains stay within one node"
        assert len(run) == (AGAIN if task.round else len(set(run)))
    assert asked(db, tmp_path / "camp").planned(None).id == campaign.id, "it is gone on with"
    with pytest.raises(InputError, match="another platform"):
        NodesCalibration(
            db.index, BOARD, CalibrationRequest(OPS[:1], 9.0), tmp_path / "camp"
        ).planned(files)  # fmt: skip


def test_less_time_is_fewer_matrices_and_none_is_told(db: Database, tmp_path: Path) -> None:
    few = asked(db, tmp_path / "few", 15.0).planned()
    more = asked(db, tmp_path / "more", 90.0).planned()
    assert 0 < len(few.plan.matrices) < len(more.plan.matrices)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no matrix that can be measured"):
        asked(db, tmp_path / "camp").planned(tmp_path / "none")
    assert not (tmp_path / "camp" / "plan.json").exists()


def test_generated_matrices_that_all_ran_are_an_error_without_a_folder(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.calibration.choice.generated", lambda **_: iter(()))
    with pytest.raises(InputError, match=r"^no matrix that can be measured") as error:
        asked(db, tmp_path / "camp").planned()
    assert error.value.hint == "name a folder with other matrix files"


def test_nodes_are_calibrated_and_the_report_is_of_them(
    db: Database, files: Path, tmp_path: Path
) -> None:
    wanted = asked(db, tmp_path / "camp")
    job = NodesJob(campaign=wanted.planned(files), db=db.index, executor=executor())
    report = calibrated(wanted, job)
    assert report.platform == "board@node" and report.complete and report.indexed
    for op in report.ops:
        assert op.measured == op.matrices == 5 and op.failures == 0
        assert op.before is not None and op.after is not None and op.after >= op.before
        assert op.shift is not None and op.shift > 1.0
    runs = sum(1 for op in OPS for _ in db.store.runs("board@node", op))
    assert runs == sum(op.runs for op in report.ops)
    again = executor()
    same = calibrated(
        wanted, NodesJob(campaign=wanted.planned(files), db=db.index, executor=again)
    )  # fmt: skip
    assert again.started == [] and same.document() == report.document()
    answer = db.query(matrix(400, 9, "new"), platform=BOARD.at("node", {}), op=OPS[0])
    assert answer.best["tile"] == 16, "what the node likes"


def test_matrices_that_the_instance_ran_are_left_to_others(
    db: Database, files: Path, tmp_path: Path
) -> None:
    """Where it is known which machines the nodes are, a second call looks at other matrices."""
    wanted = asked(db, tmp_path / "camp")
    calibrated(wanted, NodesJob(campaign=wanted.planned(files), db=db.index, executor=executor()))
    node = BOARD.at("node", {"threads": "2"})
    with pytest.raises(InputError, match="no matrix that can be measured"):
        asked(db, tmp_path / "again", platform=node).planned(files)
    sp.save_npz(files / "new.npz", sp.csr_matrix(matrix(333, 8, "new").to_scipy()))
    planned = asked(db, tmp_path / "more", platform=node).planned(files)
    assert [m.name for m in planned.plan.matrices] == ["new"]
    every = asked(db, tmp_path / "unknown").planned(files)
    assert len(every.plan.matrices) == 6, "of nodes that nobody named nothing is known"


def test_before_anything_came_back_there_is_no_platform(
    db: Database, files: Path, tmp_path: Path
) -> None:
    wanted = asked(db, tmp_path / "camp")
    job = NodesJob(campaign=wanted.planned(files), db=db.index, executor=executor(), wait=False)
    report = calibrated(wanted, job)
    assert report.platform == "" and not report.complete and report.ops == []


# -- in words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--executor", "local"], "--executor and --campaign go together"),
        (["--campaign", "camp"], "--executor and --campaign go together"),
        (["--no-wait"], "--no-wait is of an --executor"),
        (["--executor", "carrier", "--campaign", "camp"], "executors there are"),
        (["--executor", "local", "--campaign", "camp", "--no-wait"], "leave out --no-wait"),
    ],
)
def test_words_that_do_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Database.create(tmp_path / "runs.db").close()
    command = ["calibrate", "runs.db", "--platform", "spade", "--op", "spmm:32", "--minutes", "0.1"]
    assert run_verb([*command, *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert said in told[-1]


def test_python_has_the_same_words(tmp_path: Path) -> None:
    with Database.in_memory() as db:
        for call in (
            lambda: db.campaign(tmp_path, script="x.sh"),
            lambda: db.calibrate(platform="spade", ops=["spmm:32"], no_wait=True),
        ):
            with pytest.raises((UsageError, InputError)) as refused:
                call()
            assert "is of an --executor" in str(refused.value) or "no campaign" in str(
                refused.value
            )
    assert effort_on_nodes(RunOptions(repeats=7, threads=2)).repeats == 7
    assert effort_on_nodes(RunOptions(), "my.toml").platform == str(Path("my.toml").resolve())
    assert effort_on_nodes(RunOptions(), "cpu").platform == "cpu"
    assert effort_on_nodes(RunOptions(), BOARD).platform == ""
    with pytest.raises(UsageError, match="only repeats and threads"):
        effort_on_nodes(RunOptions(timeout_s=1.0))


@pytest.mark.slow
def test_through_processes_of_this_machine(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The verb, and the same in Python; and a campaign in Python."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    place = tmp_path / "runs.db"
    Database.create(place).close()
    command = ["calibrate", str(place), "--platform", "spade", "--op", "spmm:32"]
    more = ["--minutes", "2", "--matrices", str(files), "--executor", "local"]
    assert run_verb([*command, *more, "--campaign", str(tmp_path / "camp"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["platform"].startswith("spade@") and told["complete"] and told["runs"] > 5 * 18
    with Database.open(place) as db:
        report = db.calibrate(
            platform="spade",
            ops=["spmm:32"],
            minutes=2,
            campaign=tmp_path / "camp",
            executor="local",
        )
        assert report.document() == told
        from indexer.campaign.plan import PlanOptions

        done = db.campaign(
            tmp_path / "plain",
            platform="spade",
            ops=["spmm:32"],
            matrices=files,
            options=PlanOptions(configs=3, rounds=1),
            executor="local",
        )
        assert done.tasks_stored == done.tasks == 5
