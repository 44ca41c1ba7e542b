"""Cycles: times by a clock, and numbers of cycles where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import random as random_matrix

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, ReaderError, StoreError
from embeddb.database import Database
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.store import memory_store
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions

BOARD = """
name = "tina"
version = "1"
title = "A simulator"
simulated = true
runner = "command"
[traits]
rows = 16
[command]
run = ["sh", "sim.sh", "{matrix}", "{config.lanes}"]
time = { regex = 'cycles: (\\d+)', unit = "cycles" }
[log.columns]
time = "total_cyc"
[[space]]
kernels = ["spmm"]
[space.params]
lanes = { type = "int", values = [2, 4] }
[space.default]
lanes = 2
"""
OP = Op.parse("spmm:32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tina.toml").write_text(BOARD)
    (tmp_path / "sim.sh").write_text("echo cycles: $((1000 * $2))\n")
    (tmp_path / "log.csv").write_text("matrix,lanes,total_cyc\na,2,2000\na,4,4000\n")
    mmwrite(tmp_path / "b.mtx", random_matrix(9, 8, 0.3, random_state=1))
    return tmp_path


def clocked(folder: Path, ghz: float) -> Path:
    file = folder / "clocked.toml"
    file.write_text(BOARD.replace("rows = 16", f"clock_ghz = {ghz}"))
    return file


@pytest.mark.parametrize(("ghz", "seconds"), [(None, 2e-6), (0.5, 4e-6)])
def test_a_log_of_cycles(folder: Path, ghz: float | None, seconds: float) -> None:
    platform = load_platform(folder / "tina.toml" if ghz is None else clocked(folder, ghz))
    options = ReadOptions(op=OP, unit="cycles")
    store = memory_store()
    report = ingest(store, folder / "log.csv", platform=platform, options=options)
    runs = {run.config: run.seconds for run in store.runs(platform.id, OP)}
    assert report.rejected == 0
    assert runs[Config({"lanes": 2})] == pytest.approx(seconds)
    assert platform.time_unit == ("cycles" if ghz is None else "s")


def test_seconds_are_no_times_of_a_platform_that_counts_cycles(folder: Path) -> None:
    (folder / "log.csv").write_text("matrix,lanes,time_ms\na,2,2000\n")
    platform = parse_platform(BOARD.replace('[log.columns]\ntime = "total_cyc"', ""))
    with pytest.raises(ReaderError, match="cycles"):
        ingest(memory_store(), folder / "log.csv", platform=platform, options=ReadOptions(op=OP))


def test_a_clock_that_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(PlatformError, match="clock_ghz"):
        load_platform(clocked(folder, 0))


def test_cycles_and_seconds_do_not_lie_under_one_name(folder: Path) -> None:
    counted, timed = load_platform(folder / "tina.toml"), load_platform(clocked(folder, 1))
    store = memory_store()
    store.put_platform(counted)
    with pytest.raises(StoreError, match="cycles"):
        store.put_platform(timed)


def test_answers_are_in_cycles(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, matrix = str(folder / "a.db"), str(folder / "b.mtx")
    asked = ["--platform", str(folder / "tina.toml"), "--op", "spmm:32"]
    Database.create(db).close()
    assert run_verb(["measure", db, matrix, *asked]) == 0
    assert "2,000 cycles" in capsys.readouterr().out
    assert run_verb(["measure", db, matrix, *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["time_unit"] == "cycles"
    assert run_verb(["query", db, matrix, *asked, "--measure"]) == 0
    shown = capsys.readouterr().out
    assert "2,000 cycles" in shown and "4,000 cycles" in shown
    answer = shown.split("answer ")[1].split(":")[0]
    assert run_verb(["explain", db, answer]) == 0
    assert "2,000 cycles" in capsys.readouterr().out
    assert run_verb(["explain", db, answer, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_unit"] == "cycles"
    with Database.open(db, readonly=True) as opened:
        assert "2,000 cycles" in opened.recommendation(answer)._repr_html_()
    assert run_verb(["query", db, matrix, *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_unit"] == "cycles"


def test_rows_in_another_unit_are_rejected_where_there_is_no_clock(folder: Path) -> None:
    log = folder / "units.csv"
    log.write_text("matrix,lanes,total_cyc,unit\na,2,2000,cycles\na,4,5,ns\nb,2,9,cycles\n")
    platform = load_platform(folder / "tina.toml")
    options = ReadOptions(op=OP, columns={"unit": "unit"})
    report = ingest(memory_store(), log, platform=platform, options=options)
    assert (report.added, report.rejected) == (2, 1)
    (reject,) = (folder / "units.csv.rejects.jsonl").read_text().splitlines()
    assert json.loads(reject)["line"] == 3 and "cycles" in json.loads(reject)["reason"]
