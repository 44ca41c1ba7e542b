"""A stranger's log at the first try: columns and words proposed, kept by the platform's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_verb
from scipy.sparse import random as random_matrix
from scipy.sparse import save_npz

from embeddb.core.config import Op
from embeddb.core.errors import PlatformError, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform, parse_platform
from embeddb.ui.cli.logs import accepted
from indexer.index_runs import index_runs
from indexer.ingest import completed
from indexer.readers.base.proposal import Proposal, propose
from indexer.readers.base.row import ReadOptions

OP = Op.parse("spmm:64")
BOARD = """
name = "lattice"
version = "1"
title = "A simulator"
simulated = true
runner = "command"
[traits]
clock_ghz = 2.0
[command]
run = ["python3", "sim.py", "{matrix}", "{config.row_tile}", "{config.flow}", "{config.banks}"]
time = { json = "cycles", unit = "cycles" }
[[space]]
kernels = ["spmm"]
constraints = ["row_tile * banks <= 512"]
[space.params]
row_tile = { type = "int", values = [64, 256] }
flow = { type = "choice", values = ["gust", "outer"], aliases = { OuterProduct = "outer" } }
banks = { type = "int", values = [1, 2, 4] }
[space.default]
row_tile = 64
flow = "gust"
banks = 1
"""
HEAD = "matrix,rowtile,dataflow,nbanks,cycles,result,family"
ROWS = (
    "HB/a.mtx,64,gust,1,200,OK,f",
    "HB/a.mtx,256,OuterProduct,2,,BUFFER_OVERFLOW,f",
    "b.npz,64,gust,1,4000,OK,g",
    "b.npz,64,outer,1,1000,ok,g",
    "lost,64,gust,1,10,OK,g",
)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    (tmp_path / "lattice.toml").write_text(BOARD)
    (tmp_path / "sim.py").write_text("")
    (tmp_path / "runs.csv").write_text("\n".join((HEAD, *ROWS, "")))
    (tmp_path / "matrices").mkdir()
    for seed, name in enumerate("ab"):
        matrix = random_matrix(20, 20, 0.2, format="csr", random_state=seed)
        save_npz(tmp_path / "matrices" / f"{name}.npz", matrix)
    return tmp_path


def proposal(at: Path, platform: Platform | None = None, op: Op | None = OP) -> Proposal | None:
    board = platform or load_platform(at / "lattice.toml")
    options = completed(ReadOptions(op=op), board)
    return propose(at / "runs.csv", "csv", board, options)


def test_columns_words_and_units_are_proposed_and_why(at: Path) -> None:
    found = proposal(at)
    assert found is not None and not found.unused and not found.open
    assert dict(found.log.columns) == {
        "config.row_tile": "rowtile",
        "config.flow": "dataflow",
        "config.banks": "nbanks",
        "time_cycles": "cycles",
        "status": "result",
        "group": "family",
    }
    assert dict(found.log.statuses) == {"buffer_overflow": "oom"}
    assert found.log.instance == "this"
    assert all(guess.why for guess in found.guesses)


def test_what_is_kept_in_the_file_is_not_asked_again(at: Path) -> None:
    found = proposal(at)
    assert found is not None
    file = at / "kept.toml"
    file.write_text(f'{BOARD}\n{found.log.toml}\nop = "spmm:64"\n'.replace("\nop =", "\n#"))
    kept = load_platform(file)
    assert kept.log == found.log and kept.digest == load_platform(at / "lattice.toml").digest
    assert proposal(at, kept) is None
    with Database.in_memory() as db:
        report = index_runs(
            db.index,
            [at / "runs.csv"],
            platform=str(file),
            matrices=at / "matrices",
            options=ReadOptions(op=OP),
        ).files[0]
        assert (report.added, report.rejected) == (5, 0)
        assert report.matrices_missing == ["lost"]
        (platform,) = report.platforms
        times = [r.measurement.times_s for r in db.store.runs(platform, OP)]
        assert (1e-7,) in times and () in times  # 200 cycles at 2 GHz; the one that failed


def test_log_and_command_are_one_evidence(at: Path) -> None:
    from embeddb.platforms.platform import platform_here, runner_for

    board = load_platform(at / "lattice.toml")
    here = platform_here(runner_for(board)).id
    assert "@" in here
    options = accepted([at / "runs.csv"], board, ReadOptions(op=OP), yes=True)
    with Database.in_memory() as db:
        report = index_runs(db.index, [at / "runs.csv"], platform=board, options=options).files[0]
    assert report.platforms == {here}


def test_what_nothing_tells_stays_open(at: Path) -> None:
    (at / "runs.csv").write_text("who,rowtile,took,result\nx,64,3,ODD\ny,64,3,OK\n")
    found = proposal(at, op=None)
    assert found is not None
    told = "; ".join(found.open)
    for word in (
        "no column for flow, banks",
        "names the matrix",
        "is the time",
        "'ODD'",
        "--op",
    ):
        assert word in told


def test_nothing_is_proposed_where_names_say_all(at: Path) -> None:
    (at / "runs.csv").write_text("matrix,row_tile,flow,banks,time_us,extra\nx,64,gust,1,3,9\n")
    found = proposal(at)
    assert found is not None and found.unused == ("extra",) and not found.varying
    assert not (found.guesses or found.open or found.needed)
    (at / "runs.csv").write_text("matrix,row_tile,flow,banks,time_us\nx,64,gust,1,3\n")
    assert proposal(at) is None


PLAIN = "matrix,row_tile,flow,banks,time_us"


@pytest.mark.parametrize("column", ["machine", "gpu_name", "threads", "precision", "freq"])
@pytest.mark.parametrize("words", [[], ["--yes"], ["--json"]])
def test_columns_that_are_not_used_are_named_and_what_they_pool(
    at: Path, capsys: pytest.CaptureFixture[str], column: str, words: list[str]
) -> None:
    rows = [f"{m},64,gust,1,{t},{t},{t % 2},k" for m in "xy" for t in (3, 4)]
    (at / "runs.csv").write_text("\n".join((f"{PLAIN},{column},rep,fixed", *rows, "")))
    typed = ["index", str(at / "db"), str(at / "runs.csv"), "--op", "spmm:64", *words]
    typed += ["--platform", str(at / "lattice.toml"), "--instance", "A"]
    assert run_verb(typed) == 0
    shown = capsys.readouterr()
    assert f"not used: {column}, rep, fixed" in shown.err and "not used" not in shown.out
    assert f"several values of {column}: --map instance={column}" in shown.err
    assert run_verb([*typed, "--map", f"instance={column}"]) == 0
    assert "several values" not in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "pools"), [("x,", True), ("x,x", False), ("x,y,", True)])
def test_a_flag_that_is_not_used_is_named_where_only_some_runs_have_it(
    at: Path, flags: str, pools: bool
) -> None:
    rows = [f"{m},64,gust,1,3,{flag}" for m in "xy" for flag in flags.split(",") for _ in "12"]
    (at / "runs.csv").write_text("\n".join((f"{PLAIN},aligned", *rows, "")))
    found = proposal(at)
    assert found is not None
    assert found.varying == (("aligned",) if pools else ())


@pytest.mark.parametrize(
    ("head", "cells", "role", "op"),
    [
        (f"{PLAIN},family", "64,gust,1,3,f", "group", "spmm:64"),
        ("matrix,M,N,nnz,row_tile,flow,banks,time_us", "9,9,9,64,gust,1,3", "m", "spmv"),
        (f"{PLAIN},nr,nc", "64,gust,1,3,9,9", "nr", "spmm:64"),
        (f"{PLAIN},NCols,NRows", "64,gust,1,3,9,9", "NRows", "spmm:64"),
        (f"{PLAIN},nnzs,nr", "64,gust,1,3,9,9", "nnzs", "spmm:64"),
    ],
)
def test_a_role_that_a_log_needs_not_is_taken_with_yes_and_else_named(
    at: Path, capsys: pytest.CaptureFixture[str], head: str, cells: str, role: str, op: str
) -> None:
    board = BOARD.replace('kernels = ["spmm"]', 'kernels = ["spmm", "spmv"]')
    (at / "lattice.toml").write_text(board)
    (at / "runs.csv").write_text(f"{head}\nx,{cells}\n")
    platform, options = load_platform(at / "lattice.toml"), ReadOptions(op=Op.parse(op))
    column = {"group": "family", "m": "M"}.get(role, role)
    role = {"nnzs": "nnz", "nr": "m", "NRows": "m"}.get(role, role)
    assert role not in accepted([at / "runs.csv"], platform, options).log.columns
    assert f"{column} looks like `{role}`: --map {role}={column}" in capsys.readouterr().err
    taken = accepted([at / "runs.csv"], platform, options, yes=True)
    assert taken.log.columns[role] == column
    wide = propose(
        at / "runs.csv", "csv", platform, completed(ReadOptions(op=Op("spmm", 8)), platform)
    )
    assert column != "M" or (wide is not None and wide.unused == ("M", "N"))


def test_the_verb_asks_first_and_yes_takes_it(
    at: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["index", str(tmp_path / "db"), str(at / "runs.csv"), "--op", "spmm:64"]
    typed += ["--platform", str(at / "lattice.toml"), "--matrices", str(at / "matrices")]
    assert run_verb(typed) == 2
    said = capsys.readouterr().err
    assert "rowtile" in said and "[log.columns]" in said and "--yes reads it so" in said
    assert not (tmp_path / "db").exists()
    assert run_verb([*typed, "--yes"]) == 0
    said = capsys.readouterr().out
    assert "5 runs added" in said and "2 of 3 names found" in said and "not found: lost" in said


def test_nothing_read_is_a_failure_that_groups_its_reasons(
    at: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (*("a,65,north,1,5,OK,f", "b,65,north,1,5,OK,f") * 10, "a,64,gust,1,5,ODD,f")
    (at / "runs.csv").write_text("\n".join((HEAD, *rows, "")))
    typed = ["ingest", str(tmp_path / "db"), str(at / "runs.csv"), "--op", "spmm:64", "--yes"]
    typed += ["--platform", str(at / "lattice.toml"), "--map", "config.flow=dataflow"]
    typed += ["--map", "config.row_tile=rowtile"]
    with Database.create(tmp_path / "db"):
        pass
    assert run_verb(typed) == 1
    said = capsys.readouterr()
    assert "20 rows rejected: parameter 'row_tile': 65 is not one of 64, 256; parameter" in said.out
    assert "1 row rejected: unknown status 'ODD'" in said.out
    assert "none of its 21 rows could be used" in said.err
    assert run_verb([*typed, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"]["unknown status 'ODD'"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('unit = "h"', "log.unit"),
        ('op = "sddmm:8"', "log.op"),
        ('instance = "a b"', "log.instance"),
        ("odd = 1", "log.odd"),
        ('[log.status]\nBAD = "broken"', "log.status.BAD"),
        ("[log.columns]\nmatrix = 3", "log.columns.matrix"),
    ],
)
def test_a_wrong_table_names_its_key(text: str, told: str) -> None:
    with pytest.raises(PlatformError, match=told):
        parse_platform(f"{BOARD}\n[log]\n{text}")


def test_cycles_need_a_clock() -> None:
    timeless = BOARD.replace("clock_ghz = 2.0", "").replace(', unit = "cycles"', ', unit = "s"')
    with pytest.raises(PlatformError, match="clock_ghz"):
        parse_platform(f'{timeless}\n[log]\nunit = "cycles"')


def test_nobody_at_the_terminal_agrees_to_nothing(at: Path) -> None:
    board = load_platform(at / "lattice.toml")
    with pytest.raises(UsageError, match="would be guessed"):
        accepted([at / "runs.csv"], board, ReadOptions(op=OP))
