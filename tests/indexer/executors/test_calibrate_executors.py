"""Nodes of a queue are calibrated from Python and by the verb, on what is installed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_verb
from slurm_node import SlurmNode

from embeddb.database import Database

pytestmark = pytest.mark.slow


def _place(folder: Path) -> Path:
    place = folder / "runs.db"
    Database.create(place).close()
    return place


def test_through_dask(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra dask")
    with Database.open(_place(tmp_path)) as db:
        report = db.calibrate(
            platform="spade",
            ops=["spmm:32"],
            minutes=0.5,
            campaign=tmp_path / "camp",
            executor="dask",
        )
        assert report.complete and report.platform.startswith("spade@")
        assert report.ops[0].measured == report.ops[0].matrices > 0


def test_through_slurm(node: SlurmNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, camp = str(_place(tmp_path)), str(tmp_path / "camp")
    words = ["calibrate", place, "--platform", "spade", "--op", "spmm:32", "--minutes", "0.5"]
    words += ["--executor", "slurm", "--campaign", camp]
    # Jobs wait until they are told of: where all cores are busy they would have ended before.
    node.say("scontrol", "update", "PartitionName=only", "State=DOWN")
    assert run_verb([*words, "--no-wait"]) == 0
    assert "submitted; this collects and reports: embeddb calibrate" in capsys.readouterr().out
    node.say("scontrol", "update", "PartitionName=only", "State=UP")
    assert run_verb([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] and told["runs"] > 0 and told["platform"].startswith("spade@")
