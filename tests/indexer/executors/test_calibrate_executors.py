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
    assert run_verb([*words, "--no-wait"]) == 0
    told = capsys.readouterr().out
    # Where this process had to wait for a core, the first jobs have ended: then they are reported.
    early = told.startswith("submitted; this collects and reports: ")
    assert early or "the same again goes on from here: " in told, told
    assert f": embeddb calibrate {place} --platform spade --op spmm:32" in told
    assert run_verb([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] and found["runs"] > 0 and found["platform"].startswith("spade@")
